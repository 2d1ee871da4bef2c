"""The bytes that each token stands for: what regular expressions and stop strings are matched against."""

import json
import re
from functools import lru_cache

from ..errors import RequestError


@lru_cache(8)
def token_bytes(tokenizer, vocab_size: int) -> tuple[bytes | None, ...]:
    """For each of ``vocab_size`` ids its bytes; None for special tokens and ids that the tokenizer does not have.

    Knows byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-like BPE (Llama 2, Mistral). Raises RequestError for other kinds.
    """
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    kinds = set(re.findall(r'"type": ?"(\w+)"', json.dumps(spec["decoder"])))
    if "ByteLevel" in kinds:
        decode = _from_byte_level
    elif "ByteFallback" in kinds or "▁" in json.dumps(spec["decoder"], ensure_ascii=False):
        decode = _from_sentencepiece
    else:
        raise RequestError(
            "stop strings, constraints and drafts of another vocabulary need byte-level or SentencePiece tokenizers, and this is neither"
        )
    special = {token["id"] for token in spec["added_tokens"] if token["special"]} | set(tokenizer.all_special_ids)
    added = {token["id"]: token["content"] for token in spec["added_tokens"]}
    table = [None] * vocab_size
    for token, id in tokenizer.get_vocab().items():
        if id < vocab_size and id not in special:
            table[id] = added[id].encode() if id in added else decode(token)
    return tuple(table)


@lru_cache(1)
def _byte_of() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _from_byte_level(token: str) -> bytes | None:
    table = _byte_of()
    return bytes(table[c] for c in token) if all(c in table for c in token) else None


def _from_sentencepiece(token: str) -> bytes:
    byte = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
