"""Grammars on the host: JSON schemas, Lark grammars, and expressions too large for a table.

The library llguidance reads them. Its lexer makes states as a text reaches them, so a grammar takes
about a millisecond before the first token.
"""

import dataclasses
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import RequestError
from .limits import MOST_GRAMMAR_PARTS, MOST_LEXER_STATES
from .vocabulary import token_bytes

_JSON: Any = {"whitespace_pattern": r"( |\r?\n[ \t]{0,60})"}
"""Between two symbols of JSON stands nothing, one space, or a new line with its indentation.

A small model may go on with spaces without end. A schema's own "x-guidance" replaces this.
"""

_LONGEST_REASON = 200
"""Characters of the library's reason in a message."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grammar:
    """The grammar of one constraint, on the host.

    Attributes:
      name: the option that gave it, for messages.
      start: llguidance's matcher before the first token; rows take copies of it.
      end_ids: the tokens that end a text.
      words: the number of uint32 that hold a bit for each token of the vocabulary.
    """

    name: str
    start: Any
    end_ids: frozenset[int]
    words: int


def compile_grammar(tokenizer, eos_ids: tuple[int, ...], vocab_size: int, kind: str, value: str) -> Grammar:
    """The grammar of the texts that match in full; ``eos_ids`` are allowed after a full match.

    Args:
      kind: the option.
      value: JSON text for "json_schema", a grammar in llguidance's form of Lark for "grammar", and
        a regular expression in the syntax of Rust for "regex" and "choices".

    Raises RequestError for a grammar that llguidance refuses, and for one without a first token.
    """
    from llguidance import LLMatcher

    read = {
        "json_schema": lambda schema: LLMatcher.grammar_from_json_schema(schema, defaults=_JSON),
        "grammar": LLMatcher.grammar_from_lark,
        "regex": LLMatcher.grammar_from_regex,
        "choices": LLMatcher.grammar_from_regex,
    }[kind]
    try:
        text = read(value)
    except ValueError as error:
        raise RequestError(f"{kind} cannot be read: {short_reason(error)}; correct it") from None
    start = LLMatcher(_tokenizer(tokenizer, eos_ids, vocab_size), text, log_level=0, limits=_limits())
    if start.is_error():
        raise RequestError(f"{kind} cannot be used: {short_reason(start.get_error())}; change it")
    grammar = Grammar(kind, start, frozenset(eos_ids), -(-vocab_size // 32))
    first = start.deep_copy()
    allowed = np.flatnonzero(np.unpackbits(np.frombuffer(first.compute_bitmask(), np.uint8), bitorder="little"))
    # Where no token spells the bytes that a grammar begins with, the library allows wrong tokens.
    if (
        first.is_error()
        or not allowed.size
        or not (first.is_accepting() or first.validate_tokens(allowed[:1].tolist()))
    ):
        raise RequestError(f"{kind} cannot match over this vocabulary; change it, or use characters that tokens spell")
    return grammar


def short_reason(error) -> str:
    """The library's reason on one line, without its account of the parser's state."""
    text = " ".join(str(error).split("<state>")[0].split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."


def _limits():
    """The limits on the work of one grammar, and of one step. The library's defaults are larger."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=MOST_LEXER_STATES, max_grammar_size=MOST_GRAMMAR_PARTS, verbose_errors=False)


@lru_cache(8)
def _tokenizer(tokenizer, eos_ids: tuple[int, ...], vocab_size: int):
    """llguidance's form of a tokenizer. A special token begins there with the byte 255."""
    from llguidance import LLTokenizer

    texts = token_bytes(tokenizer, vocab_size)
    special = [token for token, text in enumerate(texts) if text is None]
    names = dict(zip(special, tokenizer.convert_ids_to_tokens(special)))
    spelled = [b"\xff" + (names[i] or f"<[{i}]>").encode() if text is None else text for i, text in enumerate(texts)]
    vocabulary: Any = _Vocabulary(tokenizer, eos_ids[0], spelled, special)
    return LLTokenizer(vocabulary, vocab_size, list(eos_ids))


class _Vocabulary:
    """What ``LLTokenizer`` asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer, eos_token_id: int, tokens: list[bytes], special_token_ids: list[int]):
        self.eos_token_id = eos_token_id
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self._backend = tokenizer.backend_tokenizer
        self._ids = {text: token for token, text in enumerate(tokens) if text}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str | bytes) -> list[int]:
        """The usual tokens of bytes that a grammar forces; none if no tokens spell them.

        The tokenizer may put a space before a text, and it may lack characters. The longest tokens
        that spell the text take the place of such tokens.
        """
        spelled = text.encode() if isinstance(text, str) else text
        usual = self._backend.encode(spelled.decode(errors="replace"), add_special_tokens=False).ids
        if b"".join(self.tokens[token] for token in usual if token < len(self.tokens)) == spelled:
            return usual
        tokens = []
        while spelled:
            longest = min(self._longest, len(spelled))
            size = next((n for n in range(longest, 0, -1) if spelled[:n] in self._ids), None)
            if size is None:
                return []
            tokens.append(self._ids[spelled[:size]])
            spelled = spelled[size:]
        return tokens
