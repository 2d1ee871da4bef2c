"""The reason "chat template": the draft was trained on conversations in another form."""

from ...checkpoints.load import LanguageModel
from ...models.vocabulary_intersection import Translated
from ...requests.chat import render_chat
from .distributions import Places, compare_places
from .measurements import Evidence, Reason, mean, rises


def chat_template(evidence: Evidence) -> Reason | None:
    """The draft accepts more if it reads the conversations in its own template.

    The target's answers stay the same. Only the draft's prompt changes.
    """
    generator = evidence.generator
    draft = next(iter(generator.drafts), None)
    model = evidence.draft
    if evidence.conversations is None or not isinstance(draft, LanguageModel) or isinstance(model, Translated):
        return None
    if not getattr(draft.tokenizer, "chat_template", None):
        return None
    before: list[Places] = []
    after: list[Places] = []
    for messages, text in zip(evidence.conversations, evidence.texts):
        prompt = list(text.prompt_token_ids)
        answer = list(text.token_ids)
        own = render_chat(draft.tokenizer, messages)
        if own == prompt:
            return None
        inputs = (generator.target.model, model, prompt + answer, len(prompt) - 1)
        before.append(compare_places(*inputs, temperature=1.0))
        after.append(compare_places(*inputs, temperature=1.0, seen=own + answer))
    if not rises(before, after):
        return None
    acceptance = mean(before, "overlap")
    own_acceptance = mean(after, "overlap")
    text = (
        f"the draft was trained with another chat template: it is accepted with {acceptance:.2f} after the target's "
        f"template and with {own_acceptance:.2f} after its own; use a draft trained with the target's template"
    )
    return Reason("chat template", text, {"acceptance": acceptance, "acceptance_in_own_template": own_acceptance})
