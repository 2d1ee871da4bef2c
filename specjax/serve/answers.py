"""Answers of the OpenAI protocol: whole texts, and the chunks of a stream."""

import dataclasses
import json
import time
import uuid
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..checkpoints.load import LanguageModel
from ..engine import Handle
from ..errors import RequestError
from ..requests.vocabulary import token_bytes
from ..text.result import Result

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


@dataclasses.dataclass(frozen=True)
class Answer:
    """The objects of one answer.

    Attributes:
      spelling: the texts of tokens.
      name: the name of the model.
      chat: whether the answer is that of ``/v1/chat/completions``.
      seed: the seed of the texts.
      echoes: for each prompt, the text before its answers.
      samples: the number of texts for each prompt. Text number i is of prompt ``i // samples``.
    """

    spelling: Spelling
    name: str
    chat: bool
    seed: Any
    echoes: list[str]
    samples: int
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def whole(self, handles: Sequence[Handle], results: Sequence[Result]) -> dict:
        """The answer with all texts."""
        choices = []
        for i, (handle, result) in enumerate(zip(handles, results)):
            text = self.echoes[i // self.samples] + result.text
            held = {"message": {"role": "assistant", "content": text, "refusal": None}} if self.chat else {"text": text}
            choices.append(self._choice(i, held, result.finish_reason, handle, slice(None)))
        figures = [_figures(handle) for handle in handles]
        totals: dict[str, Any] = {name: sum(one[name] for one in figures) for name in ("drafted", "accepted")}
        totals["accepted_by_position"] = [sum(column) for column in zip(*(handle.accepted_at for handle in handles))]
        calls = sum(result.stats.target_calls for result in results)
        return self._envelope(choices) | {
            "usage": self.usage(handles),
            "specjax": totals | {"target_calls": calls, "seed": self.seed},
        }

    def chunk(
        self, number: int, text: str, handle: Handle, new: slice, *, figures: bool, end: str | None = None
    ) -> dict:
        """A chunk of text ``number``.

        Args:
          new: the rounds of the handle that the chunk tells of.
          figures: whether the chunk has the figures of each round and the texts of its tokens.
          end: the reason why the text has ended, in the last chunk.
        """
        begin = sum(emitted for _, _, emitted in handle.rounds[: new.start])
        rounds = handle.rounds[new]
        tokens = slice(begin, begin + sum(emitted for _, _, emitted in rounds))
        held = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        own = _figures(handle)
        if figures:
            own["rounds"] = [list(each) for each in rounds]
            own["tokens"] = [self.spelling.text_of(token) for token in handle.token_ids[tokens]]
            own["accepted_by_position"] = list(handle.accepted_at)
        return self._envelope([self._choice(number, held, end, handle, tokens)], ".chunk") | {"specjax": own}

    def opening(self, number: int) -> dict:
        """The first chunk of a text: the role of a conversation, or the echo of the prompt."""
        delta = {"role": "assistant", "content": ""}
        held = {"delta": delta} if self.chat else {"text": self.echoes[number // self.samples]}
        choice = {"index": number, **held, "logprobs": None, "finish_reason": None}
        return self._envelope([choice], ".chunk")

    def closing(self, handles: Sequence[Handle]) -> dict:
        """The chunk with the usage of a stream."""
        return self._envelope([], ".chunk") | {"usage": self.usage(handles), "specjax": {"seed": self.seed}}

    def usage(self, handles: Sequence[Handle]) -> dict[str, Any]:
        """The tokens of prompts and texts. A prompt counts once for all its samples."""
        firsts = handles[:: self.samples]
        prompts = sum(len(handle.prompt) for handle in firsts)
        texts = sum(len(handle.token_ids) for handle in handles)
        cached = {"cached_tokens": sum(handle.cached_tokens for handle in firsts)}
        return {
            "prompt_tokens": prompts,
            "completion_tokens": texts,
            "total_tokens": prompts + texts,
            "prompt_tokens_details": cached,
        }

    def _envelope(self, choices: list[dict], chunk: str = "") -> dict:
        kind, prefix = (f"chat.completion{chunk}", "chatcmpl-") if self.chat else ("text_completion", "cmpl-")
        return {
            "id": prefix + self.id,
            "object": kind,
            "created": self.created,
            "model": self.name,
            "choices": choices,
        }

    def _choice(self, number: int, held: dict, end: str | None, handle: Handle, tokens: slice) -> dict:
        """A choice with the log-probabilities of the handle's ``tokens``."""
        logprobs = None
        own = {}
        if handle.logprobs:
            logprobs = (self._chat_logprobs if self.chat else self._logprobs)(handle, tokens)
        if handle.policy_logprobs:
            own["policy_logprobs"] = [max(value, LEAST_LOGPROB) for value in handle.policy_logprobs[tokens]]
        return {"index": number, **held, "logprobs": logprobs, **own, "finish_reason": end}

    def _chat_logprobs(self, handle: Handle, tokens: slice) -> dict:
        content = [
            self._entry(token, logprob) | {"top_logprobs": [self._entry(*pair) for pair in top.items()]}
            for token, logprob, top in _records(handle, tokens)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict:
        spelled = self.spelling.bytes_of(token)
        return {
            "token": spelled.decode(errors="replace"),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(spelled),
        }

    def _logprobs(self, handle: Handle, tokens: slice) -> dict:
        offset = sum(len(self.spelling.text_of(token)) for token in handle.token_ids[: tokens.start or 0])
        record: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, top in _records(handle, tokens):
            text = self.spelling.text_of(token)
            record["tokens"].append(text)
            record["token_logprobs"].append(max(logprob, LEAST_LOGPROB))
            likeliest = {self.spelling.text_of(one): max(value, LEAST_LOGPROB) for one, value in top.items()}
            record["top_logprobs"].append(likeliest)
            record["text_offset"].append(offset)
            offset += len(text)
        return record


def _figures(handle: Handle) -> dict[str, Any]:
    return {"drafted": handle.drafted, "accepted": sum(handle.accepted_at)}


def _records(handle: Handle, tokens: slice) -> list[tuple[int, float, dict[int, float]]]:
    return list(zip(handle.token_ids[tokens], handle.logprobs[tokens], handle.top_logprobs[tokens]))


def event(value: dict | str) -> bytes:
    """A server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
