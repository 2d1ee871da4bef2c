"""Slots: rows of a ``DecodeState`` that requests use one after another.

Pure functions for the device.

A request is read into a state of one row. ``admit`` writes this row into a slot, whole: text,
options, caches, the drafter's state and counters. An empty slot is a row that has ended. So rounds
do not know of slots, and a request leaves nothing to the next one.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from ..core.blocks import is_blocks, map_arrays, without_arrays
from ..core.cache import KVCache, is_cache, without_keys
from ..core.logit_adjustments import RowConstraints
from ..core.logprobs import Logprobs
from ..core.state import DecodeState, Requests
from ..core.stored_rows import full_dtype
from ..errors import RequestError
from ..loop import decode
from ..loop.drafter import Drafter
from ..loop.jump_forward import MOST_FORCED
from ..loop.prefill import Filled, begin_decoding, nothing_filled
from ..loop.prompts_together import fill_together, join_rows
from ..models.base import Model
from ..parallel import split_rows


class Choices(struct.PyTreeNode):
    """What a method that chooses learns from one call of ``advance``.

    Attributes:
      rounds: int32 [B, A], the rounds of each of ``Chooser.choices``.
      context: int32, the tokens of the longest row.
      sampled: bool, whether any row has a temperature above 0.
    """

    rounds: jax.Array
    context: jax.Array
    sampled: jax.Array


class RoundResults(struct.PyTreeNode):
    """The progress of B rows in one call of ``advance``.

    Attributes:
      tokens: int32 [B, W], the new tokens of each row; void from ``count`` on.
      count: int32 [B].
      rounds: int32 [B, R, 3], the drafted tokens of each round that the target scored, the accepted
        ones among them, and the emitted tokens; zeros after a row's last round.
      choices: None for a method that does not choose; each array takes time to fetch.
      done, failed: bool [B], see ``DecodeState``.
      logprobs: the records of ``tokens``, for T = W; None if they are not recorded.
    """

    tokens: jax.Array
    count: jax.Array
    rounds: jax.Array
    choices: Choices | None
    done: jax.Array
    failed: jax.Array
    logprobs: Logprobs | None

    def of_rows(self, rows: Sequence[int]) -> "RoundResults":
        """The results of some of the rows, on the host."""
        return jax.tree.map(lambda x: x[list(rows)] if x.ndim else x, self)

    def of_row(self, row: int) -> "RoundResults":
        """The results of one row, on the host, without an axis of rows."""
        return jax.tree.map(lambda x: x[row], self.replace(choices=None))


def find_row_axes(target: Model, draft, one: Requests, *, drafter: Drafter, dtype, **static) -> DecodeState:
    """For each array of a state its axis of rows, -1 for ``round``, which has none.

    The axis is where the shapes of states of one and of two rows differ. Nothing is computed.

    Args:
      one: requests of one row.
      dtype, static: the static arguments of ``begin_decoding``.

    Raises RequestError if the drafter's state has an array that rows share.
    """

    def begin(target, draft, requests):  # without a prompt, whose reading takes long to trace
        B, T = requests.tokens.shape
        filled = nothing_filled(target, B, T, dtype, drafter.taps)
        drafted = begin_reading_draft(target, draft, requests, filled, drafter=drafter, dtype=dtype)
        return begin_row(target, draft, requests, filled, drafted, drafter=drafter, dtype=dtype, **static)

    two = jax.eval_shape(lambda tree: jax.tree.map(lambda x: jnp.concatenate([x, x]), tree), one)
    states = [jax.eval_shape(begin, target, draft, requests) for requests in (one, two)]
    axes = jax.tree.map(_row_axis, *states)
    named = [(jax.tree_util.keystr(path), axis) for path, axis in jax.tree_util.tree_leaves_with_path(axes)]
    shared = [name for name, axis in named if axis < 0 and name != ".round"]
    if shared:
        raise RequestError(
            f"an engine needs a method with a state for each row, and the rows of {type(drafter).__name__} share "
            f"{', '.join(shared)}; call a Generator"
        )
    return axes


def _row_axis(one, two) -> int:
    differ = [i for i, sizes in enumerate(zip(one.shape, two.shape)) if sizes == (1, 2)]
    return differ[0] if differ and one.shape[: differ[0]] == two.shape[: differ[0]] else -1


def begin_reading(target: Model, *, capacity: int, dtype, taps: tuple[int, ...], in_blocks: bool = False) -> Filled:
    """One row before the first chunk of its prompt.

    ``in_blocks``: whether it is without keys and values, see ``blocks.without_arrays``.
    """
    filled = nothing_filled(target, 1, capacity, dtype, taps)
    return filled._replace(cache=without_arrays(filled.cache)) if in_blocks else filled


def read_chunk(
    target: Model, requests: tuple, filled: tuple, starts, *, chunk: int, taps: tuple[int, ...]
) -> tuple[Filled, ...]:
    """Rows of one after ``chunk`` more tokens of their prompts, from places ``starts`` [P] on.

    ``requests`` and ``filled`` have a record for each of P rows. Donate ``filled``.
    """
    tokens, lengths = join_rows([(each.tokens, each.lengths) for each in requests])
    return fill_together(target, tokens, lengths - 1, filled, starts, chunk, taps)


def read_first_chunk(target: Model, requests: Requests, *, chunk: int, **sizes) -> Filled:
    """One row after the first ``chunk`` tokens of its prompt.

    ``sizes``: the arguments of ``begin_reading``.
    """
    filled = begin_reading(target, **sizes)
    return read_chunk(target, (requests,), (filled,), jnp.zeros(1, jnp.int32), chunk=chunk, taps=sizes["taps"])[0]


def begin_reading_draft(
    target: Model, draft, requests: Requests, filled: Filled, *, drafter: Drafter, dtype, in_blocks: bool = False
):
    """One row before the draft's first chunk of its prompt.

    It is None for a drafter that reads no chunks. ``in_blocks``: see ``begin_reading``.
    """
    draft_reader = drafter.reads(target, draft, requests.tokens, requests.lengths, filled.taps)
    if draft_reader is None:
        return None
    B, T = requests.tokens.shape
    drafted = nothing_filled(draft_reader[0], B, T, full_dtype(dtype))
    return drafted._replace(cache=without_arrays(drafted.cache)) if in_blocks else drafted


def read_draft_chunk(
    target: Model, draft, requests: tuple, taps: tuple, drafted: tuple, starts, *, drafter: Drafter, chunk: int
) -> tuple[Filled, ...]:
    """Rows of one after the draft has read ``chunk`` more tokens, as in ``read_chunk``.

    ``taps`` are those of each row. Donate ``drafted``.
    """
    tokens, lengths = join_rows([(each.tokens, each.lengths) for each in requests])
    draft_reader = drafter.reads(target, draft, tokens, lengths, join_rows(taps))
    assert draft_reader is not None  # there is a row to read in
    return fill_together(draft_reader[0], tokens, draft_reader[1], drafted, starts, chunk)


def begin_row(
    target: Model, draft, requests: Requests, filled: Filled, drafted: Filled | None, **static
) -> DecodeState:
    """A state of one row after its prompt is read.

    ``static`` are arguments of ``begin_decoding``.
    """
    return begin_decoding(target, draft, requests, filled, drafted=drafted, **static)


def spread(row: DecodeState, *, axes: DecodeState, slots: int) -> DecodeState:
    """A state of ``slots`` rows, each of them ``row``, a state of one row."""
    return split_rows(jax.tree.map(lambda axis, x: x if axis < 0 else jnp.repeat(x, slots, axis), axes, row), slots)


def place(state: DecodeState, row: DecodeState, slot: jax.Array, *, axes: DecodeState) -> DecodeState:
    """``state`` with ``row``, a state of one row, in the place ``slot``. Donate ``state``.

    A table gives the row its blocks.
    """

    def write(axis, whole, part):
        return whole if is_blocks(axis) or axis < 0 else lax.dynamic_update_slice_in_dim(whole, part, slot, axis)

    return map_arrays(write, axes, state, row)


def admit(
    target: Model,
    draft,
    state: DecodeState,
    requests: Requests,
    filled: Filled,
    drafted: Filled | None,
    slot: jax.Array,
    *,
    axes: DecodeState,
    **static,
) -> DecodeState:
    """``state`` with the row of ``begin_row`` in ``slot``. Donate ``state``.

    One program copies a prompt's keys and values once. Two would copy them twice.
    """
    return place(state, begin_row(target, draft, requests, filled, drafted, **static), slot, axes=axes)


def free(state: DecodeState, empty: DecodeState, slot: jax.Array, *, axes: DecodeState) -> DecodeState:
    """``state`` with an empty row in ``slot``. Donate ``state``.

    The keys and values of the slot stay as they are: the row has ended, and the next one overwrites
    all of them. ``empty``: a row that has ended, ``without_keys``.
    """
    rest = place(without_keys(state), empty, slot, axes=without_keys(axes))
    keep = lambda old, new: old.replace(length=new.length, omitted=new.omitted) if is_cache(old) else new
    return jax.tree.map(keep, state, rest, is_leaf=is_cache)


def release(
    state: DecodeState, empty: DecodeState, slot: jax.Array, *, axes: DecodeState
) -> tuple[DecodeState, DecodeState]:
    """``state`` after ``free``, and the text that the slot had, see ``take_text``.

    Donate ``state``.
    """
    return free(state, empty, slot, axes=axes), take_text(state, slot)


def suspend(
    state: DecodeState, empty: DecodeState, slot: jax.Array, *, axes: DecodeState
) -> tuple[DecodeState, DecodeState]:
    """``state`` after ``free``, and the row that the slot had, a state of one row.

    Donate ``state``. Keys and values in blocks stay there.
    """
    take = lambda axis, x: x if is_blocks(axis) or axis < 0 else lax.dynamic_slice_in_dim(x, slot, 1, axis)
    return free(state, empty, slot, axes=axes), map_arrays(take, axes, state)


def take_text(state: DecodeState, slot: jax.Array) -> DecodeState:
    """The row in ``slot`` as a state of one row. It has no options, caches or drafter's state."""
    text = state.replace(request=None, cache=KVCache((), state.cache.length), drafter=(), rounds=None)
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, slot, 1) if x.ndim else x, text)


def advance(
    target: Model,
    draft,
    state: DecodeState,
    rounds: jax.Array,
    constraints: RowConstraints | None = None,
    *,
    drafter: Drafter,
    rule: Callable,
    most_rounds: int,
) -> tuple[DecodeState, RoundResults]:
    """The state after ``rounds`` rounds, at most ``most_rounds``, and their results.

    Donate ``state``.

    ``constraints``: the constraints of all rows; None if no row has one.
    """
    before = state.length
    chosen_before = state.counters.chosen
    progress = jnp.zeros((before.size, most_rounds, 3), jnp.int32)
    state = _with_constraints(state.replace(round=jnp.zeros_like(state.round), progress=progress), constraints)
    state = decode.run(target, draft, state, rounds, drafter=drafter, rule=rule)
    assert state.progress is not None  # it was recorded
    places = before[:, None] + jnp.arange(most_rounds * (max(drafter.depth, MOST_FORCED) + 1))
    take = jax.vmap(lambda row, place: jnp.take(row, place, 0, mode="clip"))
    logprobs = jax.tree.map(lambda x: take(x, places), state.logprobs)
    choices = Choices(
        rounds=state.counters.chosen - chosen_before,
        context=jnp.max(state.length),
        sampled=jnp.any(state.request.sampling.temperature > 0),
    )
    results = RoundResults(
        tokens=take(state.tokens, places),
        count=state.length - before,
        rounds=state.progress,
        choices=choices if choices.rounds.size else None,
        done=state.done,
        failed=state.failed,
        logprobs=logprobs,
    )
    return _with_constraints(state.replace(progress=None), None), results


def _with_constraints(state: DecodeState, constraints: RowConstraints | None) -> DecodeState:
    sampling = state.request.sampling.replace(constraint=constraints)
    return state.replace(request=state.request.replace(sampling=sampling))
