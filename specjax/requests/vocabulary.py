"""The bytes of tokens. Constraints and stop strings match them, and texts consist of them."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from ..errors import RequestError


@lru_cache(8)
def token_bytes(tokenizer, vocab_size: int) -> tuple[bytes | None, ...]:
    """The bytes of each of ``vocab_size`` tokens; None for special tokens and ids without a token.

    Reads byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-like BPE (Llama 2, Mistral).
    Raises RequestError for other kinds.
    """
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    read_token = _reader_of(spec)
    if read_token is None:
        raise RequestError(
            "stop strings, constraints and drafts of another vocabulary need a byte-level or SentencePiece tokenizer; "
            "leave them out, or use another model"
        )
    special = {token["id"] for token in spec["added_tokens"] if token["special"]} | set(tokenizer.all_special_ids)
    added = {token["id"]: token["content"] for token in spec["added_tokens"]}
    table: list[bytes | None] = [None] * vocab_size
    for token, id in tokenizer.get_vocab().items():
        if id < vocab_size and id not in special:
            table[id] = added[id].encode() if id in added else read_token(token)
    return tuple(table)


def decode_continuation(tokenizer, vocab_size: int, prompt_ids: Sequence[int], new_ids: Sequence[int]) -> str:
    """The text that ``new_ids`` add to the text of ``prompt_ids``, without special tokens.

    The prompt's text and this text together are the text of all tokens. This text consists of the
    bytes in ``token_bytes``. So it matches the request's regular expression, it contains the stop
    strings that the device saw, and it keeps a leading space, even after a prompt without text.
    Bytes that are not a whole character become U+FFFD.

    Where ``token_bytes`` cannot read the tokenizer, the text is the difference between the decoded
    prompt with and without the new tokens.
    """
    if has_bytes(tokenizer):
        table = token_bytes(tokenizer, vocab_size)
        return b"".join(table[id] or b"" for id in new_ids).decode(errors="replace")
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    before = decode(list(prompt_ids))
    whole = decode([*prompt_ids, *new_ids])
    return whole[len(before) :] if whole.startswith(before) else decode(list(new_ids))


@lru_cache(8)
def has_bytes(tokenizer) -> bool:
    """Whether ``token_bytes`` can read this tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and _reader_of(json.loads(backend.to_str())) is not None


def _reader_of(spec: dict):
    """The function that turns a token's spelling into bytes; None for an unknown decoder."""
    decoder = json.dumps(spec["decoder"], ensure_ascii=False)
    kinds = set(re.findall(r'"type": ?"(\w+)"', decoder))
    if "ByteLevel" in kinds:
        return _from_byte_level
    return _from_sentencepiece if "ByteFallback" in kinds or "▁" in decoder else None


@lru_cache(1)
def _byte_of() -> dict[str, int]:
    """GPT-2's alphabet. Printable bytes stand for themselves, others are characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _from_byte_level(token: str) -> bytes | None:
    table = _byte_of()
    return bytes(table[c] for c in token) if all(c in table for c in token) else None


def _from_sentencepiece(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
