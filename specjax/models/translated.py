"""A draft model of another vocabulary, seen through the target's: token-level intersection (Timor et al. 2025, section 4)."""

from functools import lru_cache
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..errors import RequestError
from ..vocabulary import token_bytes
from .decoder import Decoder, Output

if TYPE_CHECKING:
    from .hub import LanguageModel

LACKING = -1e30
"""The logit of a token that the draft lacks. Beside any other it has no probability; but where the options rule out all others it is
finite, and q is uniform over what is left: a distribution like any, which can be drawn from and tested."""


class Translated(nnx.Module):
    """A Decoder that takes and scores the target's tokens, so that drafters need not know.

    Its distribution is the draft's over the tokens that both vocabularies have, restricted and renormalised. Tokens are drawn from it
    and judged by it, so the output is exact whatever the mapping; only acceptance suffers from a poor one.

    Attributes:
      model: the draft.
      own: int32 [V], for each of the target's tokens the draft's that is read in its place.
      shared: bool [V], whether it is the same token, and may be drafted.
    """

    def __init__(self, model: Decoder, own: jax.Array, shared: jax.Array):
        self.model = model
        self.config = model.config
        self.own = nnx.Variable(jnp.asarray(own))
        self.shared = nnx.Variable(jnp.asarray(shared))

    def __call__(self, tokens: jax.Array, *args, **kwargs) -> Output:
        """As ``Decoder``, of the target's tokens."""
        return self.model(self.own[...][tokens], *args, **kwargs)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 [..., V] over the target's vocabulary of hidden states [..., E]."""
        return jnp.where(self.shared[...], self.model.logits(hidden)[..., self.own[...]], LACKING)


def speaking(draft: "LanguageModel", target: "LanguageModel") -> Decoder | Translated:
    """The draft's model for the target's tokens: itself where the vocabularies are the same. Raises RequestError where no text is shared."""
    if draft.config.vocab_size == target.config.vocab_size and draft.tokenizer.get_vocab() == target.tokenizer.get_vocab():
        return draft.model
    own, shared = shared_tokens(target.tokenizer, target.config.vocab_size, draft.tokenizer, draft.config.vocab_size)
    text = np.array([piece is not None for piece in token_bytes(target.tokenizer, target.config.vocab_size)])
    if not (shared & text).any():
        raise RequestError(
            f"draft {draft.name!r} and target {target.name!r} share 0 of {text.sum()} tokens of text; use a draft of a similar vocabulary"
        )
    return Translated(draft.model, own, shared)


@lru_cache(8)
def shared_tokens(target, target_size: int, draft, draft_size: int) -> tuple[np.ndarray, np.ndarray]:
    """``own`` and ``shared`` of ``Translated``, for two tokenizers and the sizes of their models' vocabularies.

    Tokens are the same if they stand for the same bytes, however a vocabulary spells them; special tokens if they are spelled alike
    or both begin or both end the text. A token that the draft lacks is read as the longest end of its text that the draft has as a
    token, since the newest characters say most about the next; failing that as the unknown token.
    """
    theirs, ours = _surfaces(target, target_size), _surfaces(draft, draft_size)
    own, shared = np.full(target_size, draft.unk_token_id or 0, np.int32), np.zeros(target_size, bool)
    for surface, token in theirs.items():
        if surface in ours and not shared[token]:
            own[token], shared[token] = ours[surface], True
    for token, text in enumerate(token_bytes(target, target_size)):
        ends = (ours[text[i:]] for i in range(len(text or b"")) if text[i:] in ours)
        if not shared[token]:
            own[token] = next(ends, own[token])
    return own, shared


def _surfaces(tokenizer, size: int) -> dict[bytes | str, int]:
    """What tokens stand for: bytes, or names of special tokens, with the id of each. Of several with the same bytes it is the lowest,
    but a SentencePiece byte such as <0x41> gives way to the letter."""
    text, found = token_bytes(tokenizer, size), {}
    vocabulary = sorted((token.startswith("<0x"), id, token) for token, id in tokenizer.get_vocab().items() if id < size)
    for _, id, token in vocabulary:
        found.setdefault(token if text[id] is None else text[id], id)
    for role in ("bos_token_id", "eos_token_id"):  # behind the spellings, which go before
        id = getattr(tokenizer, role)
        if id is not None and id < size:
            found[role] = id
    return found
