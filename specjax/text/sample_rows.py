"""Rows of a prompt's samples: one row reads the prompt, and the batch has a row for each sample."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ..core.state import DecodeState, Requests
from ..parallel import place, split_rows


def first_samples(requests: Requests, n: int) -> Requests:
    """Sample 0 of each prompt, from the requests of ``n`` rows for each prompt."""
    if n == 1:
        return requests
    first = jax.tree.map(lambda x: x[::n], requests.without_automata())
    return first.with_automata(requests.sampling.constraint, requests.stops)


def place_requests(requests: Requests, mesh: Mesh | None) -> Requests:
    """The requests on the devices of ``mesh``: arrays of rows split by rows, automata whole."""
    automata = place((requests.sampling.constraint, requests.stops), mesh, rows=False)
    return place(requests.without_automata(), mesh, rows=True).with_automata(*automata)


@partial(jax.jit, static_argnames="n")
def repeat_state(state: DecodeState, requests: Requests, n: int) -> DecodeState:
    """The state after the prefill, with ``n`` rows for each prompt, and their ``requests``."""
    rows = jax.tree.map(lambda x: jnp.repeat(x, n, axis=0), state.replace(request=None, round=None))
    rows = split_rows(rows, requests.limit.size)
    return rows.replace(request=requests, round=state.round, constraint_state=requests.sampling.start)
