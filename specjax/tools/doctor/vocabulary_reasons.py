"""Reasons in what a draft reads: lacking tokens, other ids, special tokens, the chat template."""

import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...models.draft_vocabulary import Translated
from ...models.layers import lookup
from ...requests.chat import render_chat
from .distributions import Places, compare_places
from .measurements import Evidence, Reason, if_accepted_more, tokens_of

_MOST_LACKING = 0.1
"""The share of a text's tokens that a draft may lack."""

_LEAST_SPREAD = 1.2
"""Cosines of random vectors of size E spread by 1 / sqrt(E).

Those of trained embeddings spread more.
"""

_TOKENS = 512
"""The most tokens whose embeddings are compared."""

_LEAST_TOKENS = 64
"""The least tokens for which the comparison of embeddings is sound."""


def lacking_tokens(evidence: Evidence) -> Reason | None:
    """The draft's vocabulary lacks tokens of the texts, so the draft can never propose them."""
    draft = evidence.draft
    if not isinstance(draft, Translated):
        return None
    used = np.concatenate([tokens_of(text) for text in evidence.texts])
    lacking = float(1 - np.asarray(draft.shared[...])[used].mean())
    if lacking <= _MOST_LACKING:
        return None
    text = (
        f"the draft's vocabulary lacks {lacking:.0%} of the tokens of these texts, and can never propose them; "
        "use a draft with the target's tokenizer"
    )
    return Reason("vocabulary", text, {"lacking": lacking})


def other_ids(evidence: Evidence) -> Reason | None:
    """The same ids stand for other tokens in the draft's weights.

    Tokens that are alike for one trained model are alike for another. So the cosines between the
    embeddings of pairs of tokens agree between two models of one vocabulary. If the ids of one
    model are permuted, the cosines do not agree, although each model's own have a structure.
    """
    target = evidence.generator.target.model
    draft = evidence.draft
    is_translated = isinstance(draft, Translated)
    embed = getattr(draft.model if is_translated else draft, "embed", None)
    if embed is None:  # a head with the target's embeddings
        return None
    used = np.unique(np.concatenate([tokens_of(text) for text in evidence.texts]))
    if is_translated:
        used = used[np.asarray(draft.shared[...])[used]]
    ids = np.random.default_rng(0).permutation(used)[:_TOKENS]
    own_ids = np.asarray(draft.own[...])[ids] if is_translated else ids

    def rows(table, ids: np.ndarray) -> np.ndarray:
        return np.asarray(lookup(table[...], jnp.asarray(ids)), np.float64)

    return compare_embeddings(rows(target.embed, ids), rows(embed, own_ids))


def compare_embeddings(ours: np.ndarray, theirs: np.ndarray) -> Reason | None:
    """The verdict of ``other_ids`` for embeddings [n, E] and [n, E'] of the same n ids."""
    if len(ours) < _LEAST_TOKENS:
        return None
    a = _cosines(ours)
    b = _cosines(theirs)
    spreads = [x.std() * np.sqrt(table.shape[1]) for x, table in ((a, ours), (b, theirs))]
    rng = np.random.default_rng(0)
    agreement = float(np.corrcoef(a, b)[0, 1])
    chance = [np.corrcoef(a, _cosines(theirs[rng.permutation(len(theirs))]))[0, 1] for _ in range(9)]
    if min(spreads) < _LEAST_SPREAD or agreement > max(chance) + 3 * np.std(chance):
        return None
    text = (
        f"the draft's ids stand for other tokens: its embeddings have a structure, and it agrees with that of the "
        f"target's by {agreement:.2f}, no more than for ids in random order; use the tokenizer that the draft was "
        "trained with, or another draft"
    )
    return Reason("vocabulary", text, {"agreement": agreement, "agreement_of_random_ids": max(map(float, chance))})


def special_tokens(evidence: Evidence) -> Reason | None:
    """The draft accepts more if it reads its own special tokens in place of the target's."""
    generator = evidence.generator
    draft = next(iter(generator.drafts), None)
    model = evidence.draft
    if not isinstance(draft, LanguageModel) or model is not draft.model:
        return None  # A head has no tokenizer, and ``Translated`` maps special tokens by their roles.
    ours = generator.target.tokenizer
    theirs = draft.tokenizer
    roles = {role: (getattr(ours, role), getattr(theirs, role)) for role in ("bos_token_id", "eos_token_id")}
    other = {a: b for a, b in roles.values() if a != b and a is not None and b is not None and b < len(ours)}
    begins = [tuple(tokenizer.encode("")) for tokenizer in (ours, theirs)]
    texts = [tokens_of(text) for text in evidence.texts]
    own = [[other.get(id, id) for id in _begin_anew(ids, *begins)] for ids in texts]
    if own == texts:
        return None
    first = 1 + len(begins[0])
    target = generator.target.model
    before = [compare_places(target, model, ids, first, temperature=1.0) for ids in texts]
    after = [compare_places(target, model, ids, first, temperature=1.0, seen=seen) for ids, seen in zip(texts, own)]
    text = (
        "the draft has other special tokens: it is accepted with {before:.2f} if it reads the target's and with "
        "{after:.2f} if it reads its own; use a draft with the target's special tokens"
    )
    return if_accepted_more("special tokens", text, before, after, "acceptance_with_own_tokens")


def _begin_anew(ids: list[int], ours: tuple, theirs: tuple) -> list[int]:
    """The text with the draft's beginning in place of the target's."""
    return [*theirs, *ids[len(ours) :]] if tuple(ids[: len(ours)]) == ours else ids


def _cosines(table: np.ndarray) -> np.ndarray:
    """The cosines between all pairs of rows, after the mean row is subtracted."""
    rows = table - table.mean(0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return (rows @ rows.T)[np.triu_indices(len(rows), 1)]


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
    text = (
        "the draft was trained with another chat template: it is accepted with {before:.2f} after the target's "
        "template and with {after:.2f} after its own; use a draft trained with the target's template"
    )
    return if_accepted_more("chat template", text, before, after, "acceptance_in_own_template")
