"""Draft models of another vocabulary: token-level intersection (Timor et al. 2025, section 4)."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..checkpoints.load import LanguageModel
from ..errors import RequestError
from ..heads import Head
from ..models.decoder import Decoder
from ..models.draft_vocabulary import DraftVocabulary, Translated
from .vocabulary import token_bytes


def translate_draft(draft: LanguageModel, target: LanguageModel) -> Decoder | Translated:
    """The draft's model over the target's tokens; the model itself where vocabularies are equal.

    Raises RequestError where the vocabularies share no token that has text, and where only one of
    the models has an encoder, or their decoders begin differently.
    """
    if draft.config.decoder_prompt != target.config.decoder_prompt:
        raise RequestError(
            f"draft {draft.name!r} begins its text with tokens {draft.config.decoder_prompt} and target "
            f"{target.name!r} with {target.config.decoder_prompt}; an encoder-decoder drafts "
            "for encoder-decoders that begin like it"
        )
    same_size = draft.config.vocab_size == target.config.vocab_size
    if same_size and draft.tokenizer.get_vocab() == target.tokenizer.get_vocab():
        return draft.model
    draft.config.refuse_encoder("a draft of another vocabulary")
    own, shared = shared_tokens(target.tokenizer, target.config.vocab_size, draft.tokenizer, draft.config.vocab_size)
    text = np.array([piece is not None for piece in token_bytes(target.tokenizer, target.config.vocab_size)])
    if not (shared & text).any():
        raise RequestError(
            f"draft {draft.name!r} and target {target.name!r} share 0 of {text.sum()} tokens of text; "
            "use a draft of a similar vocabulary"
        )
    return Translated(draft.model, own, shared)


def restrict_draft(
    draft: LanguageModel | Head, target: LanguageModel, tokens: Sequence[int] | np.ndarray
) -> LanguageModel:
    """The draft with an output matrix for ``tokens`` only; it drafts no other token of the target.

    Its tokenizer and its vocabulary are the target's. A token that the draft lacks is left out.
    Raises RequestError for tokens outside the target's vocabulary, and if the draft has none.
    """
    if not isinstance(draft, LanguageModel):
        raise RequestError(
            f"draft {draft.name!r} is a head of kind {draft.config.kind!r}; only draft models take another vocabulary"
        )
    draft.config.refuse_encoder("a draft vocabulary")
    ids = np.unique(np.asarray(tokens, np.int64))
    if not ids.size or ids[0] < 0 or ids[-1] >= target.config.vocab_size:
        raise RequestError(f"a draft vocabulary has tokens from 0 to {target.config.vocab_size - 1}, and at least one")
    model = translate_draft(draft, target)
    if isinstance(model, Translated):
        ids = ids[np.asarray(model.shared[...])[ids]]
    if not ids.size:
        raise RequestError(f"draft {draft.name!r} has none of the tokens of the draft vocabulary; name more tokens")
    model = DraftVocabulary(model, ids)
    return dataclasses.replace(draft, model=model, config=model.config, tokenizer=target.tokenizer, generators={})


@lru_cache(8)
def shared_tokens(target, target_size: int, draft, draft_size: int) -> tuple[np.ndarray, np.ndarray]:
    """``own`` and ``shared`` of ``Translated``, for two tokenizers and their vocabularies' sizes.

    Two tokens are the same if they stand for the same bytes, even if their vocabularies spell them
    differently. Two special tokens are the same if they have the same spelling, or if both begin or
    both end a text.

    In place of a token that the draft lacks, the draft reads one of its own tokens: that for the
    longest end of the token's text, because the newest characters say most about the next token.
    Without such a token it reads its unknown token.
    """
    theirs = _meanings(target, target_size)
    ours = _meanings(draft, draft_size)
    own = np.full(target_size, draft.unk_token_id or 0, np.int32)
    shared = np.zeros(target_size, bool)
    for meaning, token in theirs.items():
        if meaning in ours and not shared[token]:
            own[token] = ours[meaning]
            shared[token] = True
    for token, text in enumerate(token_bytes(target, target_size)):
        ends = (ours[text[i:]] for i in range(len(text)) if text[i:] in ours) if text else iter(())
        if not shared[token]:
            own[token] = next(ends, own[token])
    return own, shared


def _meanings(tokenizer, size: int) -> dict[bytes | str, int]:
    """Maps the bytes of tokens, and the names of special tokens, to token ids.

    Of several tokens with the same bytes the lowest id counts. A letter goes before a SentencePiece
    byte such as <0x41>.
    """
    text = token_bytes(tokenizer, size)
    meanings = {}
    vocabulary = sorted(
        (token.startswith("<0x"), id, token) for token, id in tokenizer.get_vocab().items() if id < size
    )
    for _, id, token in vocabulary:
        meanings.setdefault(token if text[id] is None else text[id], id)
    for role in ("bos_token_id", "eos_token_id"):  # The spellings come first in the dict and go before roles.
        id = getattr(tokenizer, role)
        if id is not None and id < size:
            meanings[role] = id
    return meanings
