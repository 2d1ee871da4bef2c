"""Log-probabilities in the forms of the OpenAI protocol, and tokens as texts."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate

from ..checkpoints.load import LanguageModel
from ..engine import Handle
from ..errors import RequestError
from ..requests.vocabulary import token_bytes

LEAST_LOGPROB = -9999.0
"""JSON has no infinity: the log-probability of an impossible token."""


@dataclasses.dataclass(frozen=True)
class Spelling:
    """The tokens of a model as text."""

    model: LanguageModel

    @cached_property
    def _table(self) -> Sequence[bytes | None]:
        try:
            return token_bytes(self.model.tokenizer, self.model.config.vocab_size)
        except RequestError:  # a tokenizer without a table of bytes
            return ()

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; those of its name for a special token."""
        tokenizer = self.model.tokenizer
        data = self._table[token] if self._table else str(tokenizer.decode([token])).encode()
        return str(tokenizer.convert_ids_to_tokens(token) or "").encode() if data is None else data

    def text_of(self, token: int) -> str:
        """The text of a token, with marks in place of half characters."""
        return self.bytes_of(token).decode(errors="replace")

    def texts_of(self, pairs: Iterable[tuple[int, float]]) -> dict[str, float]:
        """Tokens as texts, with their log-probabilities, the likeliest first.

        Of several tokens with one text the likeliest counts.
        """
        texts: dict[str, float] = {}
        for token, logprob in pairs:
            texts.setdefault(self.text_of(token), finite(logprob))
        return texts


def finite(logprob: float) -> float:
    """A log-probability as a number of JSON."""
    return max(logprob, LEAST_LOGPROB)


def chat_logprobs(spelling: Spelling, handle: Handle, tokens: slice) -> dict:
    """The log-probabilities of new ``tokens`` in the form of ``/v1/chat/completions``."""
    new = zip(handle.token_ids[tokens], handle.logprobs[tokens], handle.top_logprobs[tokens])
    entry = lambda token, logprob: _entry(spelling.bytes_of(token), logprob)
    content = [
        entry(token, logprob) | {"top_logprobs": [*map(entry, top, top.values())]} for token, logprob, top in new
    ]
    return {"content": content, "refusal": None}


def _entry(spelled: bytes, logprob: float) -> dict:
    return {"token": spelled.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(spelled)}


def text_logprobs(spelling: Spelling, handle: Handle, tokens: slice) -> dict[str, list]:
    """The log-probabilities of new ``tokens`` in the form of ``/v1/completions``.

    Those of a prompt that was scored stand before them. Its first token has none.
    """
    ids = handle.token_ids[tokens]
    logprobs: list[float | None] = [*handle.logprobs[tokens]]
    tops: list[dict[int, float] | None] = [*handle.top_logprobs[tokens]]
    if handle.prompt_top is not None:
        ids = [*handle.prompt, *ids]
        logprobs = [None, *handle.prompt_logprobs, *logprobs]
        tops = [None, *handle.prompt_top_logprobs, *tops]
    texts = [spelling.text_of(token) for token in ids]
    begin = sum(len(spelling.text_of(token)) for token in handle.token_ids[: tokens.start or 0])
    return {
        "tokens": texts,
        "token_logprobs": [None if value is None else finite(value) for value in logprobs],
        "top_logprobs": [None if top is None else spelling.texts_of(top.items()) for top in tops],
        "text_offset": [*accumulate(map(len, texts[:-1]), initial=begin)] if texts else [],
    }
