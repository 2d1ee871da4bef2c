"""The result of a request, made from a batch that the device has decoded."""

import dataclasses

import jax

from ..checkpoints.load import LanguageModel
from ..core.stats import Choice, Counters, Stats, stats_of
from ..errors import NumericsError
from ..parallel import fetch
from ..requests.batch import Batch
from ..requests.grammar_masks import RowGrammar
from ..requests.vocabulary import decode_continuation, token_bytes
from ..rules.acceptance import is_lossy
from .session import Decoding, Session

HALF = "\ufffd"
"""The character that decoding puts in place of the bytes of an incomplete character."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One prompt's continuation.

    Attributes:
      text: the new text without special tokens. It ends before a stop string, and before an
        end-of-text or end-of-turn token.
      token_ids: the new tokens. The last one may be a stop token, or the token that completes a
        stop string.
      prompt_token_ids: the prompt's tokens.
      finish_reason: "stop" at an end-of-text token, a stop token or a stop string; "length" at
        ``max_new_tokens`` or at the end of the context.
      stats: the cost of the request.
      from_draft: for each of ``token_ids``, whether it is an accepted draft. The target drew the
        other tokens.
      sample: the number of this sample of its prompt, from 0; see the option ``n``.
      stop_reason: the stop string or the id of ``stop_token_ids`` that ended the text, else None
        (as in vLLM).
      logprobs: the log-probability of each new token under the model, before any option is applied;
        None if it was not asked for.
      top_logprobs: for each new token {token id: log-probability} of the likeliest tokens.
      policy_logprobs: the log-probability of each new token under the distribution from which it
        was drawn, after all options; None if it was not asked for.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    stats: Stats
    from_draft: list[bool]
    sample: int = 0
    stop_reason: str | int | None = None
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None
    policy_logprobs: list[float] | None = None

    def as_dict(self) -> dict:
        """An object for JSON: the fields that have a value, and all figures of ``stats``."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return fields | {"stats": self.stats.as_dict()}


def results_of(
    decoding: Decoding, target: LanguageModel, rule: str, session: Session | None = None, together: int | None = None
) -> list[Result]:
    """One Result for each row. Raises NumericsError if a row failed.

    Args:
      session: tells the choices of a method that chooses.
      together: the rows that were decoded together, if they are more than those of ``decoding``.
    """
    # 1. Fetch the arrays of the whole batch.
    state = decoding.state
    batch = decoding.batch
    times = decoding.prefill_seconds, decoding.decode_seconds, decoding.compile_seconds
    device = state.tokens, state.from_draft, state.cache.length, state.failed, state.counters, state.logprobs
    tokens, from_draft, lengths, failed, counters, logprobs = fetch(device)
    ahead = None if decoding.draft is None else fetch(decoding.draft.hits)
    # 2. Refuse rows that failed.
    if failed.any():
        raise NumericsError(_failure(int(failed.argmax()), batch))
    # 3. Make a result of each row.
    sampled = jax.device_get(batch.requests.sampling.temperature) > 0
    results = []
    for b, prompt in enumerate(batch.prompts):
        place = slice(len(prompt), lengths[b] + 1)
        new = tokens[b, place].tolist()
        at_stop_id = bool(new) and new[-1] in batch.requests.stop_ids[b]
        at_own_id = at_stop_id and new[-1] in batch.extra_stops[b]  # a stop id of the user is part of the text
        shown = new[:-1] if at_stop_id and not at_own_id else new
        text = decode_continuation(target.tokenizer, target.config.vocab_size, prompt, shown)
        text, stop_string = _cut(text, shown, target, batch.stop_strings[b])
        stopped = at_stop_id or stop_string is not None
        by_id = at_own_id and stop_string is None
        stats = stats_of(counters, b, len(new), *times, lossy=is_lossy(rule, bool(sampled[b])))
        stats = stats if ahead is None else dataclasses.replace(stats, drafted_ahead=int(ahead[b]))
        if session is not None:
            load = together or len(lengths), int(lengths[b]), bool(sampled.any())
            stats = dataclasses.replace(stats, choices=_choices(session, counters, b, load))
        reason = "stop" if stopped else "length"
        stop = new[-1] if by_id else stop_string
        sample = b % batch.samples
        drafts = from_draft[b, place].tolist()
        recorded = _logprobs(logprobs, b, place, batch.logprobs[b])
        policy = logprobs.policy[b, place].tolist() if batch.policy_logprobs[b] else None
        results.append(Result(text, new, list(prompt), reason, stats, drafts, sample, stop, *recorded, policy))
    return results


def _failure(b: int, batch: Batch) -> str:
    """The message about row ``b``, for which no token was possible."""
    constraint = batch.constraints[b]
    if isinstance(constraint, RowGrammar) and constraint.failure:
        return f"{constraint.name} allows no token for prompt {b} ({constraint.failure}); simplify it"
    return (
        f"no token is possible for prompt {b}: its logits became NaN or the options rule out every token; check the "
        "weights, load the model with dtype='float32', or ease the options"
    )


def settled_text(text: str, token_ids: list[int], target: LanguageModel, stop_strings: list[str]) -> str:
    """The part of an unfinished text that later tokens neither change nor cut."""
    text = text.rstrip(HALF)
    seen = _seen_text(token_ids, target).rstrip(HALF) if stop_strings else ""
    held = max((n for stop in stop_strings for n in range(1, len(stop)) if seen.endswith(stop[:n])), default=0)
    return text[: max(len(text) - held, 0)]


def _cut(text: str, ids: list[int], target: LanguageModel, stop_strings: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, and that stop string or None.

    If several stop strings are complete at the same place, the text ends before the longest.
    """
    seen = _seen_text(ids, target) if stop_strings else ""
    matches = [(seen.find(stop) + len(stop), seen.find(stop), stop) for stop in stop_strings if stop in seen]
    if not matches:
        return text, None
    _, start, stop = min(matches)
    return text[: max(len(text) - len(seen[start:]), 0)], stop


def _seen_text(ids: list[int], target: LanguageModel) -> str:
    """The text in which stop strings are searched: the bytes of all tokens, special ones too."""
    table = token_bytes(target.tokenizer, target.config.vocab_size)
    return b"".join(table[token] or b"" for token in ids).decode(errors="replace")


def _choices(session: Session, counters: Counters, b: int, load: tuple[int, int, bool]) -> tuple[Choice, ...]:
    """The rounds of row ``b`` in each arm, for a method that names its arms.

    ``load``: the batch, the context, and whether rows were sampled, see ``Chooser.describe_arms``.
    """
    chooser = session.drafter.chooser
    arms = chooser.describe_arms(session.parameters, *load) if chooser else []
    rounds = counters.chosen[b].tolist()
    tokens = counters.emitted[b].tolist()
    return tuple(Choice(name, n, emitted, time) for (name, time), n, emitted in zip(arms, rounds, tokens))


def _logprobs(recorded, b: int, place: slice, wanted: int | None) -> tuple[list | None, list | None]:
    """Log-probabilities of the tokens in ``place``, and of the ``wanted`` likeliest ones there."""
    if wanted is None:
        return None, None
    pairs = zip(recorded.top_ids[b, place, :wanted].tolist(), recorded.top[b, place, :wanted].tolist())
    return recorded.chosen[b, place].tolist(), [dict(zip(ids, values)) for ids, values in pairs]
