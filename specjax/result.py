"""What a request returns, made from a batch that the device has decoded."""

import dataclasses

import jax

from .checkpoints.load import LanguageModel
from .errors import NumericsError
from .requests.vocabulary import token_bytes
from .session import Decoding
from .stats import Stats, stats_of
from .verify import LOSSY

HALF = "\ufffd"
"""What decoding gives for a character of which some bytes are missing."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One prompt's continuation.

    Attributes:
      text: the new text, special tokens left out; it ends before a stop string.
      token_ids: the new tokens, a final stop token included, up to the one that completes a stop string.
      prompt_token_ids: the prompt as the model saw it.
      finish_reason: "stop" at an end-of-text or stop token or a stop string, "length" at ``max_new_tokens`` or the end of the context.
      stats: what it cost.
      stop_reason: the stop string or the id among ``stop_token_ids`` that ended it, else None (as in vLLM).
      logprobs: of each new token under the model alone, before any option; None if not asked for.
      top_logprobs: for each new token {token id: log-probability} of the likeliest.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    stats: Stats
    stop_reason: str | int | None = None
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None


def results_of(decoding: Decoding, target: LanguageModel, rule: str) -> list[Result]:
    """One Result for each row. Raises NumericsError where a row failed.

    ``rule``: name of the acceptance rule.
    """
    state, batch = decoding.state, decoding.batch
    times = decoding.prefill_seconds, decoding.decode_seconds, decoding.compile_seconds
    host = jax.device_get((state.tokens, state.cache.length, state.failed, state.counters, state.logprobs))
    tokens, lengths, failed, counters, logprobs = host
    if failed.any():
        raise NumericsError(
            f"no token is possible for prompt {int(failed.argmax())}: its logits became NaN or the options rule out every token; "
            "check the weights, load the model with dtype='float32', or ease the options"
        )
    sampled = jax.device_get(batch.sampling.temperature) > 0
    results = []
    for b, prompt in enumerate(decoding.prompts):
        place = slice(len(prompt), lengths[b] + 1)
        new = tokens[b, place].tolist()
        text = target.tokenizer.decode(new, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text, stop_string = _cut(text, new, target, batch.stop_strings[b])
        stopped = stop_string is not None or bool(new) and new[-1] in batch.stop_ids[b]
        by_id = stopped and stop_string is None and new[-1] in batch.extra_stops[b]
        stats = stats_of(counters, b, len(new), *times, lossy=rule in LOSSY and bool(sampled[b]))
        reason, stop = "stop" if stopped else "length", new[-1] if by_id else stop_string
        results.append(Result(text, new, list(prompt), reason, stats, stop, *_logprobs(logprobs, b, place, batch.logprobs[b])))
    return results


def settled_text(result: Result, target: LanguageModel, stop_strings: list[str]) -> str:
    """The part of a growing text that no later token can change or cut."""
    text = result.text.rstrip(HALF)
    said = _said(result.token_ids, target).rstrip(HALF) if stop_strings else ""
    held = max((n for stop in stop_strings for n in range(1, len(stop)) if said.endswith(stop[:n])), default=0)
    return text[: max(len(text) - held, 0)]


def _cut(text: str, ids: list[int], target: LanguageModel, stop_strings: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, and that string; of several, the one that begins first."""
    said = _said(ids, target) if stop_strings else ""
    found = [(said.find(stop) + len(stop), said.find(stop), stop) for stop in stop_strings if stop in said]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[: max(len(text) - len(said[start:]), 0)], stop


def _said(ids: list[int], target: LanguageModel) -> str:
    """The text in which the device looks for stop strings. Decoders may strip spaces from its beginning; its end is that of the text."""
    table = token_bytes(target.tokenizer, target.config.vocab_size)
    return b"".join(table[token] or b"" for token in ids).decode(errors="replace")


def _logprobs(recorded, b: int, place: slice, wanted: int | None) -> tuple[list | None, list | None]:
    """Log-probabilities of the tokens in ``place``, and the ``wanted`` likeliest of each."""
    if wanted is None:
        return None, None
    pairs = zip(recorded.top_ids[b, place, :wanted].tolist(), recorded.top[b, place, :wanted].tolist())
    return recorded.chosen[b, place].tolist(), [dict(zip(ids, values)) for ids, values in pairs]
