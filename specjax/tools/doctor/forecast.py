"""Predicts the speed of a method from the number of rounds of texts and the seconds of a round."""

import numpy as np

from ..plan.plan import break_even
from .round_time import RoundTimes


def expected_longest(values: np.ndarray, batch: int) -> np.ndarray:
    """The mean of the largest of ``batch`` values that are drawn from ``values`` [..., n].

    A batch ends with its slowest row. With one row this is the mean. Returns float64 [...].
    """
    n = values.shape[-1]
    chance = (np.arange(n + 1) / n) ** batch
    return (np.sort(values, -1) * np.diff(chance)).sum(-1)


def forecast(rounds: np.ndarray, tokens: int, times: RoundTimes, batch: int, depth: int) -> dict:
    """The expected speed of a method at one batch and temperature.

    Args:
      rounds: int [texts, samples], the rounds of texts of ``tokens`` new tokens each.
      times: the seconds of rounds at this batch.
      depth: the longest path of the method, in edges.

    Returns an object for JSON. ``speedup`` is the time of plain decoding over that of the method,
    until all rows of a batch have ended. Times are compared within a turn of the timed runs,
    because all runs of a turn meet the machine in the same state. Its 95 % interval is a bootstrap
    over texts and over turns. ``break_even_tokens`` are the tokens a round from which the method
    pays. ``break_even_acceptance`` is the chance of a draft from which a chain pays (Leviathan et
    al. 2023, eq. 1); None if none suffices.
    """
    # 1. The rounds of the slowest row, and the times of rounds in seconds and in plain rounds.
    slowest = expected_longest(rounds.reshape(-1).astype(np.float64), batch)
    plain, verify, whole = (float(np.median(x)) for x in (times.plain, times.verify, times.whole))
    of_verify, of_whole = (float(1 / np.median(times.plain / x)) for x in (times.verify, times.whole))

    def speed(plain_rounds: float) -> float:
        """The speed-up if a round takes as long as this number of plain rounds."""
        return float(tokens / slowest / plain_rounds)

    # 2. The speeds that follow.
    return {
        "batch": batch,
        "tokens_per_round": float(tokens / rounds.mean()),
        "tokens_per_round_of_slowest": float(tokens / slowest),
        "plain_ms": plain * 1e3,
        "verify_ms": verify * 1e3,
        "draft_ms": max(whole - verify, 0) * 1e3,
        "round_ms": whole * 1e3,
        "speedup": speed(of_whole),
        "speedup_interval": _interval(rounds, tokens, times, batch),
        "speedup_if_verification_were_free": speed(1 + max(of_whole - of_verify, 0)),
        "speedup_if_drafting_were_free": speed(min(of_verify, of_whole)),
        "break_even_tokens": of_whole,
        "break_even_acceptance": break_even(1 / of_whole, depth) if depth else None,
    }


def _interval(rounds: np.ndarray, tokens: int, times: RoundTimes, batch: int) -> list[float] | None:
    """The 95 % bootstrap interval of the speed-up; None for one text."""
    from scipy.stats import bootstrap  # a second of imports

    if len(rounds) < 2:
        return None

    def speedup(text, ratio, axis=-1):
        picked = rounds[text.astype(int)]  # [..., texts, samples]
        slowest = expected_longest(picked.reshape(*text.shape[:-1], -1).astype(np.float64), batch)
        return tokens / slowest * np.median(ratio, -1)

    data = (np.arange(len(rounds)), times.plain / times.whole)
    result = bootstrap(data, speedup, vectorized=True, n_resamples=1000, method="percentile", rng=0, axis=-1)
    return [float(result.confidence_interval.low), float(result.confidence_interval.high)]
