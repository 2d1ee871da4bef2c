"""The figures of an evaluation, by task and in all, from its answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..comparison import interval, rate
from ..suites import Question
from .answers import Answer, Turn
from .scores import SCORES, rouge

ALL = "all"
"""The name of the group of all questions."""


def figures_by_task(
    answers: Mapping[str, Mapping[int | str, Answer]], questions: Sequence[Question], scores: Mapping[str, str]
) -> dict[str, dict[str, dict]]:
    """By task, the figures of each method, see ``figures``.

    The last task is ``ALL``, for all questions, where there is more than one task.

    Args:
      answers: by method and question id. "none" is plain decoding.
      questions: the questions that were answered.
      scores: for each task whose answers have a score, a key of ``scores.SCORES``.
    """
    tasks: dict[str, list[Question]] = {}
    for question in questions:
        tasks.setdefault(question.task, []).append(question)
    groups = {**tasks, ALL: list(questions)} if len(tasks) > 1 else tasks

    def answers_to(group: Sequence[Question], method: str) -> list[Answer]:
        return [answers[method][question.id] for question in group]

    return {
        task: {
            method: figures(answers_to(group, method), answers_to(group, "none"), group, scores.get(task))
            for method in answers
        }
        for task, group in groups.items()
    }


def figures(
    answers: Sequence[Answer], plain: Sequence[Answer], questions: Sequence[Question], score: str | None = None
) -> dict:
    """The figures of one method on some questions, an object for JSON.

    Intervals are 95 % bootstrap intervals over questions. Times are seconds.

    - ``mean_acceptance_length``: new tokens / target calls. It is Spec-Bench's mean of accepted
      tokens, tau in the EAGLE papers, and TAR as the code of 2402.01528 counts it.
    - ``accepted_per_call``: accepted drafts / target calls, TAR without the target's own token.
    - ``draft_acceptance_rate``: accepted drafts / drafted tokens.
    - ``acceptance_rate_per_position``: for each depth, drafts accepted there / target calls.
    - ``acceptance_by_information``: the share of -log p, summed over new tokens, that accepted
      drafts have. A token that the target was sure of counts little.
    - ``tokens_per_second``, ``speedup``: of decoding alone, by sums over all questions.
    - ``spec_bench_...``: by the formulas of Spec-Bench: means over questions of tokens / seconds,
      prefill included. The baseline's tokens are those of its text, less one.
    - ``first_token``, ``token``, ``round``: the median and the 95 % quantile over turns of the time
      to the first token, of the decoding time a new token, and of that a round.
    - ``rouge``: the mean F of Rouge-1, 2 and L of the answers against plain decoding's.
    - ``differences``: the first differences from plain decoding, one for each turn that differs.
      Sampled turns are not compared.
    """
    # 1. Sums over turns and questions.
    turns = _turns(answers)
    plain_turns = _turns(plain)
    tokens = _sums(answers, lambda turn: len(turn.token_ids))
    seconds, plain_seconds = (_sums(each, lambda turn: turn.decode_seconds) for each in (answers, plain))
    plain_tokens = _sums(plain, lambda turn: len(turn.token_ids))
    calls = sum(turn.target_calls for turn in turns)
    accepted = sum(sum(turn.accepted_at) for turn in turns)
    drafted = sum(turn.drafted for turn in turns)
    information = sum(turn.information for turn in turns)
    joules = [turn.joules for turn in turns if turn.joules is not None]
    speed = _spec_bench_speed(answers)
    baseline = _spec_bench_speed(plain, baseline=True)
    # 2. The figures.
    return {
        "questions": len(answers),
        "turns": len(turns),
        "generated": int(tokens.sum()),
        "target_calls": calls,
        "mean_acceptance_length": float(tokens.sum() / calls),
        "mean_acceptance_length_interval": interval(rate, tokens, _sums(answers, lambda turn: turn.target_calls)),
        "accepted_per_call": accepted / calls,
        "draft_acceptance_rate": accepted / max(drafted, 1),
        "acceptance_rate_per_position": [sum(at) / calls for at in zip(*(turn.accepted_at for turn in turns))],
        "acceptance_by_information": sum(turn.accepted_information for turn in turns) / information
        if information
        else None,
        "tokens_per_second": float(rate(tokens, seconds)),
        "tokens_per_second_interval": interval(rate, tokens, seconds),
        "speedup": float(_speedup(tokens, seconds, plain_tokens, plain_seconds)),
        "speedup_interval": interval(_speedup, tokens, seconds, plain_tokens, plain_seconds),
        "spec_bench_tokens_per_second": speed,
        "spec_bench_baseline_tokens_per_second": baseline,
        "spec_bench_speedup": speed / baseline if baseline else None,
        "spec_bench_equal": [turn.text for turn in turns] == [turn.text for turn in plain_turns],
        "first_token": _quantiles([turn.first_token_seconds for turn in turns]),
        "token": _quantiles([turn.decode_seconds / len(turn.token_ids) for turn in turns]),
        "round": _quantiles([turn.decode_seconds / turn.target_calls for turn in turns]),
        "differences": [turn.difference for turn in turns if turn.difference],
        "joules_per_token": sum(joules) / int(tokens.sum()) if len(joules) == len(turns) else None,
        "rouge": np.mean([rouge(a.text, b.text) for a, b in zip(turns, plain_turns)], axis=0).tolist(),
        "score": None if score is None else SCORES[score](answers, questions),
    }


def _turns(answers: Sequence[Answer]) -> list[Turn]:
    return [turn for answer in answers for turn in answer.turns]


def _sums(answers: Sequence[Answer], figure) -> np.ndarray:
    """The sums of a figure over the turns of each question."""
    return np.array([sum(map(figure, answer.turns)) for answer in answers])


def _speedup(tokens, seconds, plain_tokens, plain_seconds, axis=-1):
    """The ratio of the rates. The counts of tokens differ where a tie or a sample ended a text."""
    return rate(tokens, seconds, axis) / rate(plain_tokens, plain_seconds, axis)


def _spec_bench_speed(answers: Sequence[Answer], baseline: bool = False) -> float:
    """The mean over questions of tokens / seconds, as Spec-Bench's ``speed.py`` computes it."""
    count = (lambda turn: turn.retokenised - 1) if baseline else (lambda turn: len(turn.token_ids))
    seconds = _sums(answers, lambda turn: turn.prefill_seconds + turn.decode_seconds)
    return float(np.mean(_sums(answers, count) / seconds))


def _quantiles(values: Sequence[float]) -> list[float]:
    return np.quantile(values, [0.5, 0.95]).tolist()
