"""Measures the times of method "auto": a round of each arm, by temperature, batch and context."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.cache import is_cache, without_keys
from ...core.checks import whole
from ...core.state import DecodeState
from ...drafters.auto.arms import Arm
from ...drafters.auto.constants import CONSTANTS
from ...drafters.auto.times import Times
from ...requests.limits import MOST_SAMPLES
from ...text import round_times
from ...text.drafts import as_list
from ...text.generator import Generator
from ...text.session import Decoding

CANDIDATES = (Arm(0), Arm(2), Arm(5), Arm(15), Arm(2, True), Arm(5, True))
"""The arms that are measured. Those that never win are dropped."""

TREES = (Arm(5, True, 15), Arm(6, True, 59))
"""Further arms for devices other than a CPU, where scoring many nodes costs little."""

CONTEXTS = (64, 512)
"""Tokens of the rows in which rounds are timed."""

TEMPERATURES = (0.0, 1.0)
"""Rounds of sampled rows take longer, and drafts more than plain decoding."""

_SECONDS = 16.0
"""The time that the timed runs may take in total."""

_ROUNDS = 30
"""The most rounds of a timed run.

The first rounds of a run take longer: a plain round of a small model by a third.
"""

_EMPTY = 9
"""The calls without a round that are timed.

Runs of few rounds would make drafts look cheap by the time of a call.
"""

_NEVER = 1e9
"""The time of an arm that must not be chosen."""


def tune_auto(
    target: LanguageModel,
    draft=None,
    *,
    file: Path | None = None,
    batches: Sequence[int] = (1, 4),
    contexts: Sequence[int] = CONTEXTS,
    anew: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Measures the times, and writes them to a file, by default in the cache folder.

    A file of this machine, these versions and these models stays, unless ``anew``. Any other is
    replaced.

    Returns an object for JSON: the record of the file, see ``text.round_times.make_record``,
    with the keys "file" and "note", the reason for a new measurement or for none.

    Raises RequestError for a file of another kind, a file that cannot be written, and a batch
    above ``MOST_SAMPLES``.
    """
    # 1. The file, if it holds.
    for batch in batches:
        whole("batch", batch, most=MOST_SAMPLES)
    generator = Generator(target, "auto", draft)
    drafts = generator.drafts
    file = file or round_times.default_file(target, drafts)
    note = "measured"
    if file.exists():
        record = round_times.read_costs(file)
        other = round_times.describe_difference(record, target, drafts)
        if not other and max(batches) > max(record["batches"]):
            other = "smaller batches"
        if not (other or anew):
            return record | {"file": str(file), "note": "measured before on this machine; --anew measures again"}
        note = f"measured anew: the file was of {other}" if other else "measured anew"
    round_times.check_writable(file)
    # 2. The times of rounds, and the arms that are best somewhere.
    candidates = CANDIDATES if jax.default_backend() == "cpu" else CANDIDATES + TREES
    arms = [arm for arm in candidates if drafts or not arm.model]
    contexts = sorted({min(context, target.config.context // 2) for context in contexts})
    seconds = measure(target, drafts, arms, batches, contexts, progress)
    chosen = choose_arms(arms, seconds)
    record = round_times.make_record(
        target, drafts, [arms[i] for i in chosen], batches, contexts, seconds[..., chosen].tolist()
    )
    round_times.write_costs(file, record)
    return record | {"file": str(file), "note": note}


def batches_up_to(most: int) -> list[int]:
    """1, 4, 16, ... and ``most``: the time of a round is not linear in the batch."""
    return sorted({most, *(4**i for i in range(most.bit_length()) if 4**i < most)})


def measure(target, drafts, arms, batches, contexts, progress=lambda done, of: None) -> np.ndarray:
    """The seconds of a round, float64 [temperatures, batches, contexts, arms].

    One program of rounds is compiled for each batch size: that of method auto itself. The times in
    its parameters make it choose each arm. Runs of the arms alternate.
    """
    # 1. A session with room for all runs, and the number of steps.
    generator = Generator(target, "auto", as_list(drafts) or None)
    session = generator.session
    seconds = np.zeros((len(TEMPERATURES), len(batches), len(contexts), len(arms)))
    session.drafter = dataclasses.replace(generator.drafter, arms=tuple(arms))
    session.parameters = session.parameters.replace(times=_times_of(np.ones(len(arms))))
    cells = seconds[..., 0].size
    room = (_ROUNDS + 1) * (session.drafter.depth + 1)
    all_steps = len(contexts) + len(batches) + cells
    steps = iter(range(1, all_steps + 1))
    session.capacity = max(contexts) + room + session.drafter.depth + 1

    def start(batch: int, context: int) -> Decoding:
        """Rows of one prompt, which is read once. Their last tokens and rounds differ."""
        tokens = np.random.default_rng(context).integers(0, target.config.vocab_size, context + batch)
        requests = generator.read_options([tokens[:context].tolist()], n=batch, max_new_tokens=room, ignore_eos=True)
        decoding = session.start(requests)
        texts = decoding.state.tokens.at[np.arange(batch), context - 1].set(tokens[context:])
        return dataclasses.replace(decoding, state=decoding.state.replace(tokens=texts))

    def compile_prefill(context: int) -> None:
        start(min(batches), context)
        progress(next(steps), all_steps)

    def compile_rounds(batch: int) -> None:
        session.advance(start(batch, min(contexts)), 0)
        progress(next(steps), all_steps)

    # 2. The programs. Compiling one keeps a core and a half busy. On a mesh, programs that two
    # threads run at the same time may reach the devices in different orders, and then wait for one
    # another for ever.
    with ThreadPoolExecutor(max_workers=None if session.mesh is None else 1) as pool:
        list(pool.map(compile_prefill, contexts))
        list(pool.map(compile_rounds, batches))
    # 3. The timed runs.
    for b, c in np.ndindex(len(batches), len(contexts)):
        decoding = start(batches[b], contexts[c])
        bare = _copy(without_keys(decoding.state))
        for t, temperature in enumerate(TEMPERATURES):
            decoding.state = _at_temperature(_rewind(decoding.state, bare), temperature)
            seconds[t, b, c] = _time_arms(session, decoding, len(arms), _SECONDS / cells)
            progress(next(steps), all_steps)
    return seconds


def _at_temperature(state: DecodeState, temperature: float) -> DecodeState:
    """``state`` with another temperature in all rows."""
    temperatures = jnp.full_like(state.request.sampling.temperature, temperature)
    sampling = state.request.sampling.replace(temperature=temperatures)
    return state.replace(request=state.request.replace(sampling=sampling))


def _times_of(seconds: np.ndarray) -> Times:
    """Times of the arms for all batches and contexts."""
    return Times.of_table([[seconds]], [1], [1])


def _time_arms(session, decoding: Decoding, arms: int, budget: float) -> np.ndarray:
    """The seconds of a round of each arm, float64 [arms]: the least of several runs.

    Other programs on the machine can only make a run slower. The seconds of a call without a round
    are subtracted. The rounds advance ``decoding``.
    """
    bare = _copy(without_keys(decoding.state))

    def run(arm: int, rounds: int) -> float:
        """The seconds of a call."""
        times = np.where(np.arange(arms) == arm, 1.0, _NEVER)
        session.parameters = session.parameters.replace(times=_times_of(times))
        decoding.state = jax.block_until_ready(_rewind(decoding.state, bare))
        decoding.decode_seconds = 0.0
        session.advance(decoding, rounds)
        return decoding.decode_seconds

    def run_once() -> np.ndarray:
        return np.maximum([run(arm, 1) - empty for arm in range(arms)], 1e-9)

    empty = float(np.median([run(0, 0) for _ in range(_EMPTY)]))
    first = run_once()  # the first rounds of all touch memory for the first time
    once = run_once()
    if once.sum() > budget:
        return np.minimum(first, once)
    rounds = int(np.clip(budget / 4 / once.sum(), 1, _ROUNDS))
    repeats = int(np.clip(budget / once.sum() / rounds, 3, 5))
    samples = [[run((turn + arm) % arms, rounds) for arm in range(arms)] for turn in range(repeats)]
    by_arm = [np.roll(row, turn) for turn, row in enumerate(samples)]
    return np.maximum(np.min(by_arm, 0) - empty, 1e-9) / rounds


def _copy(state):
    return jax.tree.map(lambda x: x.copy(), state)


def _rewind(state, bare):
    """``state`` as it was, but for keys, values and recurrent states.

    A cache ignores keys beyond its length.

    Recurrent states go on. Their values do not change the time of a round.

    ``bare``: the state as it was, see ``without_keys``.
    """

    def keep_keys(old, new):
        return old.replace(layers=new.layers, source=new.source) if is_cache(old) else old

    return jax.tree.map(keep_keys, _copy(bare), state, is_leaf=is_cache)


def choose_arms(arms: Sequence[Arm], seconds: np.ndarray) -> list[int]:
    """The numbers of the arms that are best at some acceptance rate, batch size and context.

    An arm competes with plain decoding and with the arms of its kind. ``seconds`` is float64
    [..., arms].
    """
    rates = np.linspace(0.02, 0.99, 98)[:, None]
    lengths, others = (np.array(x) for x in zip(*((arm.length, CONSTANTS.others * (arm.nodes > 0)) for arm in arms)))
    alpha = rates + (1 - rates) * others
    tokens = (1 - alpha ** (lengths + 1)) / (1 - alpha)
    value = tokens / seconds[..., None, :]  # [..., rates, arms]
    best = {0}
    for model in (False, True):
        own = [i for i, arm in enumerate(arms) if arm.model == model or not arm.length]
        best |= {own[i] for i in np.unique(value[..., own].argmax(-1))}
        long = [i for i in own if arms[i].length]
        if long and not best & set(long):  # The measurement may be of a bad moment: keep one arm of each kind.
            best.add(long[0])
    return sorted(best)


def table(record: dict):
    """A rich table of the record: the time of each arm in plain rounds."""
    from rich.table import Table

    grid = Table()
    for column in (
        "temperature",
        "batch",
        "context",
        "plain round, ms",
        *(str(Arm(**arm)) for arm in record["arms"][1:]),
    ):
        grid.add_column(column)
    sizes = itertools.product(TEMPERATURES, record["batches"], record["contexts"])
    for size, row in zip(sizes, np.reshape(record["seconds"], (-1, len(record["arms"])))):
        grid.add_row(*(f"{x:g}" for x in size), f"{1e3 * row[0]:.2f}", *(f"{x / row[0]:.2f}" for x in row[1:]))
    return grid


def explain(target, prompts, draft=None, *, batch: int = 1, costs: str | None = None, **options) -> dict[str, Any]:
    """Decodes ``prompts`` by method auto, ``batch`` at a time, and reports its choices.

    Args:
      target, prompts, draft: as in ``Generator``.
      batch: the number of rows that are decoded together.
      costs: see ``Auto``.
      options: as in a call of the generator.

    Returns an object for JSON: "prompts", the choices for each prompt as in ``Stats.as_dict``; and
    "lines", the same in words.
    """
    generator = Generator(target, "auto", draft, costs=costs)
    measured = generator.costs_file
    prompts = list(prompts)
    results = [r for i in range(0, len(prompts), batch) for r in generator(prompts[i : i + batch], **options)]
    lines = [
        f"times: measured by specjax tune --auto, {measured}, and corrected by the runs"
        if measured
        else "times: predicted from the models' sizes, and corrected by the runs; specjax tune --auto measures them"
    ]
    for i, result in enumerate(results):
        stats = result.stats
        lines.append(f"prompt {i}: {stats.generated} tokens in {stats.target_calls} rounds")
        lines += [f"  {choice}" for choice in stats.choices]
    return {"prompts": [result.stats.as_dict()["choices"] for result in results], "lines": lines}
