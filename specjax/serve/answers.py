"""Answers of the OpenAI protocol: whole texts, and the chunks of a stream."""

import dataclasses
import time
import uuid
from collections.abc import Sequence
from typing import Any

from ..engine import Handle
from ..text.result import Result
from .logprobs import Spelling, chat_logprobs, finite, text_logprobs
from .turns import TurnForm


@dataclasses.dataclass(frozen=True)
class Answer:
    """The objects of one answer.

    Attributes:
      spelling: the texts of tokens.
      name: the name of the model.
      chat: how the texts of ``/v1/chat/completions`` are read; None for ``/v1/completions``.
      seed: the seed of the texts.
      echoes: for each prompt, the text before its answers.
      samples: the number of texts for each prompt. Text number i is of prompt ``i // samples``.
    """

    spelling: Spelling
    name: str
    chat: TurnForm | None
    seed: Any
    echoes: list[str]
    samples: int
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))

    def whole(self, handles: Sequence[Handle], results: Sequence[Result]) -> dict:
        """The answer with all texts."""
        choices = []
        for i, (handle, result) in enumerate(zip(handles, results)):
            held: dict[str, Any] = {"text": self.echoes[i // self.samples] + result.text}
            if self.chat:
                held = {"message": self.chat.message(result.text)}
            end = end_reason(result, "tool_calls" in held.get("message", ()))
            choices.append(self._choice(i, held, end, handle, slice(None), result.stop_reason))
        figures = [_figures(handle) for handle in handles]
        totals: dict[str, Any] = {name: sum(one[name] for one in figures) for name in ("drafted", "accepted")}
        totals["accepted_by_position"] = [sum(column) for column in zip(*(handle.accepted_at for handle in handles))]
        calls = sum(result.stats.target_calls for result in results)
        return self._envelope(choices) | {
            "usage": self.usage(handles),
            "specjax": totals | {"target_calls": calls, "seed": self.seed},
        }

    def chunk(
        self,
        number: int,
        delta: dict,
        handle: Handle,
        new: slice,
        *,
        figures: bool,
        result: Result | None = None,
        has_calls: bool = False,
    ) -> dict:
        """A chunk of text ``number``.

        Args:
          delta: the new part of the message, see ``turns``.
          new: the rounds of the handle that the chunk tells of.
          figures: whether the chunk has the figures of each round and the texts of its tokens.
          result: the result of the text, in its last chunk.
          has_calls: whether the text has calls of tools.
        """
        begin = sum(emitted for _, _, emitted in handle.rounds[: new.start])
        rounds = handle.rounds[new]
        tokens = slice(begin, begin + sum(emitted for _, _, emitted in rounds))
        held = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        own = _figures(handle)
        if figures:
            own["rounds"] = [list(each) for each in rounds]
            own["tokens"] = [self.spelling.text_of(token) for token in handle.token_ids[tokens]]
            own["accepted_by_position"] = list(handle.accepted_at)
            if result is not None:
                own["choices"] = [[each.name, each.rounds, each.tokens] for each in result.stats.choices]
        end = None if result is None else end_reason(result, has_calls)
        stop = None if result is None else result.stop_reason
        return self._envelope([self._choice(number, held, end, handle, tokens, stop)], ".chunk") | {"specjax": own}

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

    def _choice(
        self, number: int, held: dict, end: str | None, handle: Handle, tokens: slice, stop: str | int | None
    ) -> dict:
        """A choice with the log-probabilities of the handle's ``tokens``."""
        logprobs = None
        own: dict[str, Any] = {} if end is None else {"stop_reason": stop}  # as in vLLM
        if handle.logprobs or handle.prompt_top is not None:
            logprobs = (chat_logprobs if self.chat else text_logprobs)(self.spelling, handle, tokens)
        if handle.policy_logprobs:
            own["policy_logprobs"] = [finite(value) for value in handle.policy_logprobs[tokens]]
        return {"index": number, **held, "logprobs": logprobs, **own, "finish_reason": end}


def _figures(handle: Handle) -> dict[str, Any]:
    return {"drafted": handle.drafted, "accepted": sum(handle.accepted_at)}


def end_reason(result: Result, has_calls: bool) -> str:
    """Why a text has ended, in the protocol's words."""
    return "tool_calls" if has_calls and result.finish_reason == "stop" else result.finish_reason
