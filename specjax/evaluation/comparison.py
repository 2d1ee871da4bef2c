"""Measures methods against each other on the same prompts.

Runs alternate in one process, so drift of the machine affects all methods equally.
"""

import dataclasses
import os
import platform
from collections.abc import Callable, Sequence
from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import bootstrap

from ..apart import ApartSession
from ..checkpoints.heads import choose_head
from ..checkpoints.load import LanguageModel
from ..drafter import Models, Nothing, TrainedHead
from ..drafters import check_drafts, make_drafter, needs_of, own_options
from ..errors import RequestError
from ..generate import Generator, Prompt, load_drafts
from ..heads.base import Head
from ..models import product_kernel
from ..processor import matrix_extensions, processor
from ..result import Result
from ..stats import total
from .shares import drafting_share

_TIE_ULPS = 8
"""Two logits tie if they differ by at most this many units in the last place."""


def compare(
    target: LanguageModel,
    methods: Sequence[str],
    prompts: Sequence[Prompt],
    *,
    draft=None,
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
      max_new_tokens: the number of new tokens after each prompt.
      repeats: the number of runs of each prompt.
      shares: whether to measure the share of a round that drafting takes, on the first prompt. This
        compiles two more programs for each method.
      progress: called with the number of finished runs and of all runs.
      drafting: options of methods. Each method gets its own options.

    Returns an object for JSON: "machine", "settings" and "methods"; see ``_summarise``.

    Raises RequestError for bad input.
    """
    ids = _encode(target, prompts)
    methods = list(dict.fromkeys(["none", *methods]))
    generators = make_generators(target, methods, draft, drafting)
    if shares and any(isinstance(generator.session, ApartSession) for generator in generators.values()):
        raise RequestError(
            "shares are measured with drafts on the target's devices; leave out --shares or --draft-mesh"
        )
    path = max(generator.drafter.depth for generator in generators.values()) + 1
    room = min(max(map(len, ids)) + max_new_tokens, target.config.context)
    room += path * (1 + shares)  # The measurement of shares needs room for a second round.
    for generator in generators.values():
        generator.session.capacity = room
    runs = _alternate(generators, ids, max_new_tokens, repeats, progress)
    setting: dict[str, object] = dict(
        model=target.name, prompts=len(ids), max_new_tokens=max_new_tokens, repeats=repeats
    )
    setting["drafters"] = {method: dataclasses.asdict(g.drafter) for method, g in generators.items()}
    setting["options"] = {name: value for name, value in drafting.items() if isinstance(value, int | float | str)}
    used = dict.fromkeys(draft.name for generator in generators.values() for draft in generator.drafts)
    if used:
        setting["draft"] = ", ".join(used)
    summaries = [_summarise(method, runs[method], runs["none"], target) for method in generators]
    for summary in summaries:
        summary["drafting_share"] = drafting_share(generators[summary["method"]], ids[0]) if shares else None
    return {"machine": machine(target), "settings": setting, "methods": summaries}


def make_generators(target: LanguageModel, methods: Sequence[str], draft, drafting: dict) -> dict[str, Generator]:
    """A generator for each method, with those of the drafts and options that the method takes."""
    drafts = load_drafts(target, draft) if any(needs_of(method) != Nothing() for method in methods) else ()
    fit = {method: (select_drafts(method, drafts), select_options(method, drafting)) for method in methods}
    return {method: Generator(target, method, own, **options) for method, (own, options) in fit.items()}


def left_out(target: LanguageModel, methods: Sequence[str], drafts: tuple, **drafting) -> dict[str, str]:
    """The methods that the target and the loaded drafts do not allow, each with the reason."""
    reasons = {}
    for method in methods:
        try:
            needs, fit = needs_of(method), select_drafts(method, drafts)
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
    """The drafts that a method can use: language models, or heads of its kind."""
    needs = needs_of(method)
    if isinstance(needs, TrainedHead):
        return tuple(draft for draft in drafts if isinstance(draft, Head) and draft.config.kind == needs.kind)
    return tuple(draft for draft in drafts if isinstance(draft, LanguageModel)) if isinstance(needs, Models) else ()


def machine(target: LanguageModel) -> dict:
    """Describes a measurement's machine: device, processor, versions, and dtype of the weights."""
    return {
        "platform": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cpu": processor(),
        "matrix_extensions": list(matrix_extensions()),
        "product_kernel": product_kernel.is_installed(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "flax": flax.__version__,
        "dtype": str(target.model.embed[...].dtype),
    }


def interval(statistic: Callable, *samples) -> list[float] | None:
    """The 95 % bootstrap interval of ``statistic`` over paired samples; None for one sample."""
    if len(samples[0]) < 2:
        return None
    found = bootstrap(samples, statistic, paired=True, vectorized=True, n_resamples=2000, method="percentile", rng=0)
    return [float(found.confidence_interval.low), float(found.confidence_interval.high)]


def rate(a, b, axis=-1):
    """The ratio of sums: tokens per second of tokens and seconds, a speed-up of two times."""
    return np.sum(a, axis) / np.sum(b, axis)


def _encode(target: LanguageModel, prompts: Sequence[Prompt]) -> list[list[int]]:
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


def _alternate(
    generators: dict, ids: list, max_new_tokens: int, repeats: int, progress
) -> dict[str, list[list[Result]]]:
    """The results of all repeats, by method and prompt."""
    lengths = {(len(prompt) - 1).bit_length(): prompt for prompt in ids}  # one prompt for each compiled prefill
    names, done, of = list(generators), 0, len(generators) * (len(lengths) + len(ids) * repeats)
    runs = {name: [[] for _ in ids] for name in names}
    jobs = [(prompt, None) for prompt in lengths.values()] + list(zip(ids, range(len(ids)))) * repeats
    for turn, (prompt, kept) in enumerate(jobs):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            result = generators[name](prompt, max_new_tokens=max_new_tokens, ignore_eos=True)
            if kept is not None:
                runs[name][kept].append(result)
            done += 1
            progress(done, of)
    return runs


def _summarise(method: str, runs: list[list[Result]], plain: list[list[Result]], target: LanguageModel) -> dict:
    """The figures of one method.

    ``tokens_per_second`` is all new tokens over all seconds of decoding. ``speedup`` is the seconds
    of plain decoding over the seconds of the method. Both have a 95 % bootstrap interval over
    prompts. ``mean_acceptance_length`` is new tokens over target calls. As in Spec-Bench, the
    ``spec_bench`` figures are means over prompts of tokens per second, prefill included.
    """
    tokens = np.array([r[0].stats.generated for r in runs])
    seconds, plain_seconds = _seconds(runs), _seconds(plain)
    spec_bench, plain_spec_bench = (float(np.mean(tokens / _seconds(r, prefill=True))) for r in (runs, plain))
    differences = [d for i in range(len(runs)) if (d := difference(i, runs[i][0], plain[i][0], target))]
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
        "note": _note(method, speedup, differences),
    }


def _seconds(runs: list[list[Result]], prefill: bool = False) -> np.ndarray:
    """The median time of each prompt's repeats."""
    return np.array(
        [np.median([r.stats.decode_seconds + prefill * r.stats.prefill_seconds for r in results]) for results in runs]
    )


def _note(method: str, speedup: float, differences: list[dict]) -> str | None:
    notes = []
    if method != "none" and speedup < 1:
        notes.append(
            f"{method} is slower than plain decoding here ({speedup:.2f}x): "
            "leave it out, or draft another number of tokens"
        )
    if not all(d["tie"] for d in differences):
        notes.append(
            f"{method} differs from plain decoding by more than rounding; "
            "if it also does with dtype float32, please report it"
        )
    return "; ".join(notes) or None


def difference(
    prompt: int, result: Result, plain: Result, target: LanguageModel, logits_of: Callable | None = None
) -> dict | None:
    """The first difference between a result and plain decoding; None if they are equal.

    ``margin`` is the distance in logits between the likeliest token and the less likely one of the
    two different tokens. ``tie`` is true if rounding explains the difference: the margin is at most
    a few units in the last place.

    Args:
      prompt: the number of the prompt, for the report.
      result: the result of a method.
      plain: the result of plain decoding.
      target: gives the logits, unless ``logits_of`` does.
      logits_of: a function of the tokens so far and the prompt's length, which gives the logits [V]
        to compare.
    """
    pairs = zip(result.token_ids, plain.token_ids)
    k = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if k is None:
        if len(result.token_ids) == len(plain.token_ids):
            return None
        shorter = min(len(result.token_ids), len(plain.token_ids))
        return {"prompt": prompt, "token": shorter, "margin": None, "tie": False}
    logits_of = logits_of or partial(logits_after, target)
    logits = logits_of([*plain.prompt_token_ids, *plain.token_ids[:k]], len(plain.prompt_token_ids))
    margin = float(logits.max() - min(logits[result.token_ids[k]], logits[plain.token_ids[k]]))
    exponent = np.floor(np.log2(np.abs(logits[np.isfinite(logits)]).max()))
    unit = float(jnp.finfo(target.model.embed[...].dtype).eps) * 2.0**exponent
    return {"prompt": prompt, "token": k, "margin": margin, "tie": bool(margin <= _TIE_ULPS * unit)}


def logits_after(target: LanguageModel, ids: list[int], prompt: int) -> np.ndarray:
    """Logits float32 [V] after ``ids``, from one forward without a cache.

    ``prompt`` is the prompt's length. Padding to powers of two saves compilations.
    """
    size = 1 << (len(ids) - 1).bit_length()
    tokens = np.zeros((1, size), np.int32)
    tokens[0, : len(ids)] = ids
    return np.asarray(_score(target.model, tokens, jnp.int32(len(ids) - 1), jnp.int32(prompt)))


@jax.jit
def _score(model, tokens, last, prompt):
    positions = jnp.arange(tokens.shape[1])[None]
    mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
    out = model(tokens, positions, mask, rope_lengths=jnp.maximum(positions + 1, prompt))
    return model.logits(out.hidden[:, last])[0]
