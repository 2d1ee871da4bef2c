"""The reason of another chat template: the draft was trained on conversations in another form."""

from ...checkpoints.load import LanguageModel
from ...models.vocabulary_intersection import Translated
from ...requests.chat import render_chat
from .distributions import compare_places
from .measurements import Evidence, Reason, mean, rises


def chat_template(evidence: Evidence) -> Reason | None:
    """The draft accepts more if it reads the conversations in its own template.

    The target's answers stay the same. Only the draft's prompt changes.
    """
    generator = evidence.generator
    draft, model = next(iter(generator.drafts), None), evidence.draft
    if evidence.conversations is None or not isinstance(draft, LanguageModel) or isinstance(model, Translated):
        return None
    if not getattr(draft.tokenizer, "chat_template", None):
        return None
    before, after = [], []
    for messages, text in zip(evidence.conversations, evidence.texts):
        prompt, answer = list(text.prompt_token_ids), list(text.token_ids)
        own = render_chat(draft.tokenizer, messages)
        if own == prompt:
            return None
        pair = generator.target.model, model, prompt + answer, len(prompt) - 1
        before.append(compare_places(*pair, temperature=1.0))
        after.append(compare_places(*pair, temperature=1.0, seen=own + answer))
    if not rises(before, after):
        return None
    found = mean(before, "overlap"), mean(after, "overlap")
    text = (
        f"the draft was trained with another chat template: it is accepted with {found[0]:.2f} after the target's "
        f"template and with {found[1]:.2f} after its own; use a draft trained with the target's template"
    )
    return Reason("chat template", text, {"acceptance": found[0], "acceptance_in_own_template": found[1]})
