"""Measures methods against each other on the same prompts.

Runs alternate in one process, so drift of the machine affects all methods equally.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...checkpoints.heads import choose_head
from ...checkpoints.load import LanguageModel
from ...core.stats import total
from ...drafters import check_drafts, make_drafter, needs_of, own_options
from ...drafters.auto.resting import can_rest
from ...errors import RequestError
from ...heads.base import Head
from ...loop.drafter import Models, Nothing, TrainedHead
from ...rules.acceptance import is_lossy
from ...text.draft_devices import ApartSession
from ...text.drafts import load_drafts
from ...text.generator import Generator, Prompt
from ...text.machine import machine
from ...text.result import Result
from .draft_share import drafting_share
from .fidelity import difference, fidelity


def compare(
    target: LanguageModel,
    methods: Sequence[str],
    prompts: Sequence[Prompt],
    *,
    draft=None,
    rule: str = "auto",
    max_new_tokens: int = 128,
    repeats: int = 1,
    shares: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
    **drafting,
) -> dict:
    """Runs every method, and plain decoding as the baseline, on every prompt.

    Decoding is greedy, at batch 1, and continues past end-of-text tokens. All programs are compiled
    before the first is timed. For each prompt the methods run in an order that rotates. The median
    of a prompt's ``repeats`` runs counts.

    Args:
      target: the model to decode with.
      methods: the names of the methods. "none" is added where it is missing.
      prompts: strings or token ids.
      draft: see ``Generator``.
      rule: the acceptance rule of all methods but "none". For a lossy rule the report has the
        distance of the texts from the target's choices, see ``fidelity``.
      max_new_tokens: the number of new tokens after each prompt.
      repeats: the number of runs of each prompt.
      shares: whether to measure the share of a round that drafting takes, on the first prompt. This
        compiles two more programs for each method.
      progress: called with the number of finished runs and of all runs.
      drafting: options of methods. Each method gets its own options.

    Returns an object for JSON: "machine", "settings" and "methods"; see ``_summarise``.

    Raises RequestError for bad input.
    """
    # 1. The generators, with caches of one size.
    ids = encode_prompts(target, prompts)
    methods = list(dict.fromkeys(["none", *methods]))
    generators = make_generators(target, methods, draft, drafting, rule)
    if shares and any(isinstance(generator.session, ApartSession) for generator in generators.values()):
        raise RequestError(
            "shares are measured with drafts on the target's devices; leave out --shares or --draft-mesh"
        )
    path = max(generator.drafter.depth for generator in generators.values()) + 1
    begin = len(target.config.decoder_prompt)
    room = min(max(map(len, ids)) + begin + max_new_tokens, target.config.context)
    room += path * (1 + shares)  # The measurement of shares needs room for a second round.
    for generator in generators.values():
        generator.session.capacity = room
    # 2. The runs.
    runs = alternate_runs(generators, ids, max_new_tokens, repeats, progress)
    # 3. The report.
    settings: dict[str, object] = dict(
        model=target.name,
        prompts=len(ids),
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        rule=rule,
        drafters={method: dataclasses.asdict(generator.drafter) for method, generator in generators.items()},
        options={name: value for name, value in drafting.items() if isinstance(value, int | float | str)},
    )
    names = dict.fromkeys(draft.name for generator in generators.values() for draft in generator.drafts)
    if names:
        settings["draft"] = ", ".join(names)
    lossy = is_lossy(rule, sampled=False)
    summaries = [_summarise(method, runs[method], runs["none"], target, lossy) for method in generators]
    for summary in summaries:
        generator = generators[summary["method"]]
        chooser = generator.drafter.chooser
        shared = shares and not (chooser and chooser.has_arms)  # rounds of arms have no one drafter
        summary["drafting_share"] = drafting_share(generator, ids[0]) if shared else None
    return {"machine": machine(target), "settings": settings, "methods": summaries}


def make_generators(
    target: LanguageModel, methods: Sequence[str], draft, drafting: dict, rule: str = "auto"
) -> dict[str, Generator]:
    """A generator for each method, with those of the drafts and options that the method takes.

    ``rule`` is the acceptance rule of all methods but "none".
    """
    drafts = load_drafts(target, draft) if any(needs_of(method) != Nothing() for method in methods) else ()
    fit = {method: (select_drafts(method, drafts), select_options(method, drafting)) for method in methods}
    rules = {method: "auto" if method == "none" else rule for method in methods}
    return {
        method: Generator(target, method, own, rule=rules[method], **options) for method, (own, options) in fit.items()
    }


def left_out(target: LanguageModel, methods: Sequence[str], drafts: tuple, **drafting) -> dict[str, str]:
    """The methods that the target and the loaded drafts do not allow, each with the reason."""
    reasons = {}
    for method in methods:
        try:
            needs = needs_of(method)
            fit = select_drafts(method, drafts)
            check_drafts(method, len(fit))
            head = choose_head(target, fit, needs.kind, method).config if isinstance(needs, TrainedHead) else None
            make_drafter(method, head=head, **select_options(method, drafting)).check(target.config)
        except RequestError as error:
            reasons[method] = str(error)
    return reasons


def select_options(method: str, options: dict) -> dict:
    """The options that a method takes, from a set of options for several methods."""
    return {name: value for name, value in options.items() if name in own_options(method)}


def select_drafts(method: str, drafts: tuple) -> tuple:
    """The drafts that a method can use: language models, or heads of its kind.

    Method auto uses a head where there is no language model.
    """
    needs = needs_of(method)
    heads = [draft for draft in drafts if isinstance(draft, Head)]
    if isinstance(needs, TrainedHead):
        return tuple(head for head in heads if head.config.kind == needs.kind)
    if not isinstance(needs, Models):
        return ()
    models = tuple(draft for draft in drafts if isinstance(draft, LanguageModel))
    if models or not needs.heads:
        return models
    return tuple(head for head in heads if can_rest(head.config))[: needs.most]


def interval(statistic: Callable, *samples) -> list[float] | None:
    """The 95 % bootstrap interval of ``statistic`` over paired samples; None for one sample."""
    from scipy.stats import bootstrap  # a second of imports

    if len(samples[0]) < 2:
        return None
    result = bootstrap(samples, statistic, paired=True, vectorized=True, n_resamples=2000, method="percentile", rng=0)
    return [float(result.confidence_interval.low), float(result.confidence_interval.high)]


def rate(a, b, axis=-1):
    """The ratio of sums: tokens per second of tokens and seconds, a speed-up of two times."""
    return np.sum(a, axis) / np.sum(b, axis)


def encode_prompts(target: LanguageModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The token ids of prompts. Raises RequestError without prompts or without room."""
    ids = [target.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    context = target.config.context
    for i, prompt in enumerate(ids, 1):
        if not 0 < len(prompt) < context:
            raise RequestError(
                f"prompt {i} has {len(prompt)} tokens; use 1 to {context - 1}, which leave room in the model's context"
            )
    if not ids:
        raise RequestError("the list of prompts is empty; give at least one")
    return ids


def alternate_runs(
    generators: dict, ids: list, max_new_tokens: int, repeats: int, progress, **options
) -> dict[Any, list[list[Result]]]:
    """The results of all repeats, by generator and prompt. ``options`` are those of the requests.

    For each prompt the generators run in an order that rotates. First each compiles its programs.
    """
    lengths = {(len(prompt) - 1).bit_length(): prompt for prompt in ids}  # one prompt for each compiled prefill
    names = list(generators)
    done = 0
    of = len(generators) * (len(lengths) + len(ids) * repeats)
    runs = {name: [[] for _ in ids] for name in names}
    jobs = [(prompt, None) for prompt in lengths.values()] + list(zip(ids, range(len(ids)))) * repeats
    for turn, (prompt, number) in enumerate(jobs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            result = generators[name](prompt, max_new_tokens=max_new_tokens, ignore_eos=True, **options)
            if number is not None:
                runs[name][number].append(result)
            done += 1
            progress(done, of)
    return runs


def _summarise(
    method: str, runs: list[list[Result]], plain: list[list[Result]], target: LanguageModel, lossy: bool = False
) -> dict:
    """The figures of one method.

    ``tokens_per_second`` is all new tokens over all seconds of decoding. ``speedup`` is the seconds
    of plain decoding over the seconds of the method. Both have a 95 % bootstrap interval over
    prompts. ``mean_acceptance_length`` is new tokens over target calls. As in Spec-Bench, the
    ``spec_bench`` figures are means over prompts of tokens per second, prefill included.
    """
    tokens = np.array([r[0].stats.generated for r in runs])
    seconds = seconds_of(runs)
    plain_seconds = seconds_of(plain)
    spec_bench, plain_spec_bench = (float(np.mean(tokens / seconds_of(r, prefill=True))) for r in (runs, plain))
    differences = [d for i in range(len(runs)) if (d := difference(i, runs[i][0], plain[i][0], target))]
    fidelity_figures = fidelity(target, [results[0] for results in runs]) if lossy else None
    stats = total([results[0].stats for results in runs])
    speedup = float(rate(plain_seconds, seconds))
    return {
        "method": method,
        "tokens_per_second": float(rate(tokens, seconds)),
        "tokens_per_second_interval": interval(rate, tokens, seconds),
        "speedup": speedup,
        "speedup_interval": interval(rate, plain_seconds, seconds),
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "acceptance_rate_per_position": stats.acceptance_rate_per_position,
        "drafted_per_call": stats.drafted / max(stats.target_calls, 1),
        "target_calls": stats.target_calls,
        "generated": stats.generated,
        "decode_seconds": float(seconds.sum()),
        "spec_bench_tokens_per_second": spec_bench,
        "spec_bench_speedup": spec_bench / plain_spec_bench,
        "equal_to_plain": not differences,
        "differences": differences,
        "fidelity": fidelity_figures,
        "note": _note(method, speedup, differences, fidelity_figures),
    }


def seconds_of(runs: list[list[Result]], prefill: bool = False) -> np.ndarray:
    """The median time of each prompt's repeats."""
    return np.array(
        [np.median([r.stats.decode_seconds + prefill * r.stats.prefill_seconds for r in results]) for results in runs]
    )


def _note(method: str, speedup: float, differences: list[dict], fidelity_figures: dict | None = None) -> str | None:
    notes = []
    if method != "none" and speedup < 1:
        notes.append(
            f"{method} is slower than plain decoding here ({speedup:.2f}x): "
            "leave it out, or draft another number of tokens"
        )
    if fidelity_figures and method != "none":
        notes.append(
            f"{method} is lossy: {100 * fidelity_figures['agreement']:.1f} % of its tokens are the target's own choice "
            f"after the same text, and a token is {fidelity_figures['nats']:.3f} nats less likely than that choice"
        )
    elif not all(d["tie"] for d in differences):
        notes.append(
            f"{method} differs from plain decoding by more than rounding; "
            "if it also does with dtype float32, please report it"
        )
    return "; ".join(notes) or None
