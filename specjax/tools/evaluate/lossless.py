"""The check of ``specjax verify``: compares a method's output with that of plain decoding."""

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...core.automata import advance_along
from ...core.sampling import adjust
from ...drafters.auto.times import Times
from ...errors import RequestError
from ...requests.batch import build_batch
from ...requests.options import Options
from ...text.generator import Generator, Prompt
from ...text.result import Result
from ...text.session import Session
from .fidelity import difference, logits_after
from .planted_faults import plant

UNLIKELY = 1e-3
"""A p-value below this is a disagreement. One check in a thousand of an exact method has one."""

_ROWS = 64
"""The number of rows of every batch, greedy ones included, so that all share one program."""

_DEAR = 1e9
"""The time of a plain round by which method auto always drafts."""

_FEWEST = 8
"""Prefixes that occur fewer times share a cell of the chi-square test."""


def verify(
    plain: Generator,
    method: Generator,
    prompts: Sequence[Prompt],
    *,
    samples: int = 512,
    tokens: int = 3,
    max_new_tokens: int = 64,
    seed: int = 0,
    inject: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **options,
) -> dict:
    """Compares a method with plain decoding.

    Greedy: both continue every prompt once. Where the texts differ, the margin between the two
    tokens shows whether rounding explains the difference.

    Sampled: both draw the first ``tokens`` tokens after each prompt ``samples`` times. A two-sample
    chi-square test compares the prefixes of every length. Bonferroni's rule combines the p-values.

    Args:
      plain: the generator of plain decoding.
      method: the generator of the method, for the same target.
      prompts: strings or token ids.
      samples: the number of draws for each prompt, rounded up to whole batches of 64.
      tokens: the number of tokens of a draw.
      max_new_tokens: the number of tokens of a greedy text.
      seed: the seed of the first batch. Every batch has a seed of its own.
      inject: a known wrong rule to plant in the method, see ``planted_faults``. The check must find
        it.
      progress: called with the number of finished batches and of all batches.
      options: see ``requests.options.Options``.

    Returns an object for JSON, in which "agree" is the verdict.

    Raises RequestError for bad input.
    """
    # 1. Checks, and the number of batches.
    temperature = options.pop("temperature", 1.0)
    if not np.all(np.asarray(temperature) > 0):
        raise RequestError(
            "temperature 0 leaves nothing to sample; give a temperature above 0, the greedy check is always made"
        )
    truncates = options.get("top_p", 1) != 1 or options.get("top_k") or options.get("min_p")
    if inject == "q-before-top-p" and not truncates:
        raise RequestError("fault 'q-before-top-p' shows only with truncation; give top_p, top_k or min_p")
    method = always_drafting(method)
    if inject is not None:
        method = plant_in(method, inject)
    batches = -(-samples // _ROWS)
    parts = [prompts[first : first + _ROWS] for first in range(0, len(prompts), _ROWS)]
    steps = itertools.count(1)
    of = 2 * (len(parts) + len(prompts) * batches)

    def run(generator: Generator, part: Sequence[Prompt], **kwargs) -> list[Result]:
        results = generator(part, **kwargs)
        progress(next(steps), of)
        return results

    # 2. Greedy texts of both.
    greedy = dict(options, temperature=0.0, max_new_tokens=max_new_tokens)
    full = [(part, [part[i % len(part)] for i in range(_ROWS)]) for part in parts]  # repeats prompts
    texts = [
        [result for part, rows in full for result in run(generator, rows, **greedy)[: len(part)]]
        for generator in (method, plain)
    ]
    differences = [d for i, pair in enumerate(zip(*texts)) if (d := _difference(i, pair[0], pair[1], plain, greedy))]

    # 3. Samples of both, and the tests of their laws.
    sampled = dict(options, temperature=temperature, max_new_tokens=tokens, n=_ROWS)  # reads a prompt once
    seeds = itertools.count(seed)  # Every batch has its own seed.
    expected, observed = (
        _draws(partial(run, generator), prompts, batches, seeds, sampled) for generator in (plain, method)
    )

    def prefixes(texts: list[tuple[int, ...]], k: int) -> Counter:
        return Counter(text[: k + 1] for text in texts)

    laws = [compare_laws(prefixes(expected, k), prefixes(observed, k), len(prompts)) for k in range(1, tokens + 1)]
    by_length, divergences = ([float(x) for x in column] for column in zip(*laws))
    p_value = min(1.0, tokens * min(by_length))
    # 4. The report.
    return {
        "method": method.method,
        "rule": inject or method.rule_name,
        "prompts": len(prompts),
        "greedy": {
            "equal": len(prompts) - len(differences),
            "differences": differences,
            "agree": all(d["tie"] for d in differences),
        },
        "sampled": {
            "samples": batches * _ROWS,
            "tokens": tokens,
            "p_values": by_length,
            "p_value": p_value,
            "divergences": divergences,
            "agree": p_value >= UNLIKELY,
        },
        "agree": all(d["tie"] for d in differences) and p_value >= UNLIKELY,
    }


def lines(report: dict) -> list[str]:
    """The report as lines of text."""
    greedy = report["greedy"]
    sampled = report["sampled"]
    verdict = "agrees with plain decoding" if report["agree"] else "DISAGREES with plain decoding"
    text = [
        f"{report['method']}, rule {report['rule']}: {verdict}",
        f"greedy: {greedy['equal']} of {report['prompts']} texts equal",
    ]
    for d in greedy["differences"]:
        if d["margin"] is None:
            why = "one text ended here"
        else:
            why = f"margin {d['margin']:.2e}, {'within' if d['tie'] else 'beyond'} rounding"
        text.append(f"  prompt {d['prompt']}, token {d['token']}: {why}")
    by_length = ", ".join(f"{p:.3g}" for p in sampled["p_values"])
    divergences = ", ".join(f"{d:.4f}" for d in sampled["divergences"])
    return [
        *text,
        f"sampled: p-value {sampled['p_value']:.3g} ({by_length} for prefixes of 1 to {sampled['tokens']} tokens)",
        f"  distance of the laws, as Jensen-Shannon divergence in nats: {divergences}",
        f"  {sampled['samples']} draws for each of {report['prompts']} prompts; a disagreement below {UNLIKELY}",
    ]


def always_drafting(generator: Generator) -> Generator:
    """The generator, or for method auto a copy that drafts in each round.

    For as many rows as a batch here has, auto would rest, and plain decoding would be compared with
    itself.
    """
    chooser = generator.drafter.chooser
    if not (chooser and chooser.has_arms):
        return generator
    seconds = [1.0 if arm.length else _DEAR for arm in chooser.arms]  # type: ignore[attr-defined]  # it has arms
    session = generator.session
    parameters = session.parameters.replace(times=Times.of_table([[seconds]], [1], [1]))
    drafting = copy.copy(generator)
    drafting.session = Session(session.target, session.drafter, parameters, session.rule, session.capacity)
    return drafting


def plant_in(generator: Generator, fault: str) -> Generator:
    """A copy of the generator with a fault planted."""
    wrong = copy.copy(generator)
    right = generator.session
    drafter, rule = plant(fault, generator.drafter, right.rule)
    wrong.session = Session(right.target, drafter, right.parameters, rule, right.capacity)
    return wrong


def _draws(
    run: Callable, prompts: Sequence[Prompt], batches: int, seeds: Iterator[int], options: dict
) -> list[tuple[int, ...]]:
    """The first tokens of all samples, each behind the number of its prompt."""
    texts = []
    for i, prompt in enumerate(prompts):
        for seed in itertools.islice(seeds, batches):
            results = run([prompt], **options, seed=seed)
            texts += [(i, *result.token_ids) for result in results]
    return texts


def compare_laws(a: Counter, b: Counter, prompts: int) -> tuple[float, float]:
    """The p-value that two samples of prefixes have the same law, and the distance of the laws.

    A prefix begins with the number of its prompt. The rare prefixes of a prompt share a cell, see
    ``_FEWEST``. The p-value is that of a chi-square test. The distance is the Jensen-Shannon
    divergence in nats, the mean Kullback-Leibler divergence of both laws from their middle. It is
    the G statistic over twice the number of draws, without the part that equal laws would have.
    """
    from scipy import stats  # a second of imports

    statistic = freedom = divergence = 0.0
    for prompt in range(prompts):
        cells = Counter()
        for sample, counts in enumerate((a, b)):
            for prefix, n in counts.items():
                if prefix[0] == prompt:
                    cells[prefix if a[prefix] + b[prefix] >= _FEWEST else None, sample] += n
        table = np.array([[cells[cell, 0], cells[cell, 1]] for cell in {cell for cell, _ in cells}])
        if len(table) > 1:
            test: Any = stats.chi2_contingency(table, correction=False)  # scipy has no types
            g: Any = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood")
            statistic += test.statistic
            freedom += test.dof
            divergence += (g.statistic - g.dof) / (2 * table.sum()) / prompts
    return float(stats.chi2.sf(statistic, freedom)) if freedom else 1.0, max(divergence, 0.0)


def _difference(i: int, result: Result, plain: Result, generator: Generator, options: dict) -> dict | None:
    """``fidelity.difference`` by logits with all options except temperature and truncation."""

    def logits(ids: list[int], prompt: int) -> np.ndarray:
        raw = logits_after(generator.target, ids, prompt)
        batch = build_batch(Options.of(options), [ids[:prompt]], generator.target, generator.processors)
        return _adjust_after(raw, ids, prompt, batch)

    return difference(i, result, plain, generator.target, logits)


def _adjust_after(raw: np.ndarray, ids: list[int], prompt: int, batch) -> np.ndarray:
    """Float32 [V]: the logits ``raw`` after the text ``ids``, adjusted as in plain decoding."""
    requests: Any = jax.device_put(batch.requests)
    tokens = jnp.asarray([ids], jnp.int32)
    length = jnp.full(1, len(ids), jnp.int32)
    constraint = requests.sampling.table
    states = requests.sampling.start
    if constraint is not None and len(ids) > prompt:
        states = advance_along(constraint, states, tokens[:, prompt:])[:, -1]
    context = requests.context(
        tokens, length, nodes=tokens[:, -1:], path=jnp.zeros((1, 1, 1), bool), states=states[:, None]
    ).replace(grammars=requests.sampling.grammar)
    return np.asarray(adjust(jnp.asarray(raw)[None, None], requests.sampling, context))[0, 0]
