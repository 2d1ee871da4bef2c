"""A draft model of another vocabulary: which of its tokens stand for the target's (Timor et al. 2025, section 4)."""

from functools import lru_cache

import numpy as np

from ..checkpoints.load import LanguageModel
from ..errors import RequestError
from ..models.decoder import Decoder
from ..models.translated import Translated
from .vocabulary import token_bytes


def translate_draft(draft: LanguageModel, target: LanguageModel) -> Decoder | Translated:
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
