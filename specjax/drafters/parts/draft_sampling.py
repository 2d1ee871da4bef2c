"""Sampling options of the draft itself, for all methods that draw their tokens at random."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ...core.checks import per_row, shorten
from ...core.state import DecodeState
from ...core.tree import node_count
from ...errors import RequestError
from ...loop.drafter import Drafter
from ...rules.acceptance import Drawn

_BOUNDS: dict[str, dict[str, Any]] = {
    "draft_temperature": dict(dtype=np.float32, above=True),
    "draft_top_k": dict(dtype=np.int32),
    "draft_top_p": dict(dtype=np.float32, most=1, above=True),
}
"""The options, and the bounds that ``checks.per_row`` takes."""


@dataclasses.dataclass(frozen=True)
class Drawing(Drafter):
    """A method that draws tokens from distributions q.

    It may have sampling options of its own.

    The output stays exact, because ``Tree.q`` has the distributions from which the tokens are
    drawn. The options change the number of accepted tokens only. A method forms q from the state
    that ``drafting`` returns. Greedy rows draft the likeliest token under all of these options.

    Attributes:
      draft_temperature: temperature at which the draft draws its tokens, above 0; by default the
        request's.
      draft_top_k: tokens among which the draft draws, 0 for all; by default the request's top_k.
        With 1 the draft takes its likeliest token.
      draft_top_p: the probability of the likeliest tokens among which the draft draws; by default
        the request's top_p.
    """

    draft_temperature: float | None = dataclasses.field(default=None, kw_only=True)
    draft_top_k: int | None = dataclasses.field(default=None, kw_only=True)
    draft_top_p: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        for name, value in self.draft_options.items():
            if self.drawn is Drawn.CHOSEN:
                raise RequestError(
                    f"{name} is for tokens that are drawn at random, and with these options the method takes the "
                    "likeliest tokens; leave it out"
                )
            if isinstance(value, list | tuple):
                raise RequestError(f"{name} must be one number for all rows, not {shorten(value)}")
            per_row(name, value, 1, **_BOUNDS[name])

    @property
    def draft_options(self) -> dict[str, Any]:
        """The options of the draft that are given, by name."""
        return {name: value for name in _BOUNDS if (value := getattr(self, name)) is not None}

    def drafting(self, state: DecodeState) -> DecodeState:
        """The state from which the draft draws: its own options stand in place of the request's."""
        sampling = state.request.sampling
        own = {name.removeprefix("draft_"): value for name, value in self.draft_options.items()}
        own = {name: jnp.full_like(getattr(sampling, name), value) for name, value in own.items()}
        if "temperature" in own:
            own["temperature"] = jnp.where(sampling.temperature == 0, 0.0, own["temperature"])
        return state.replace(request=state.request.replace(sampling=sampling.replace(**own))) if own else state


@dataclasses.dataclass(frozen=True)
class DrawnChain(Drawing):
    """A method that draws a chain of ``num_speculative_tokens`` tokens, a field of the subclass."""

    if TYPE_CHECKING:  # the field of the subclasses

        @property
        def num_speculative_tokens(self) -> int: ...

    def __post_init__(self):
        node_count("num_speculative_tokens", self.num_speculative_tokens)
        super().__post_init__()

    @property
    def depth(self) -> int:
        return self.num_speculative_tokens

    @property
    def drawn(self) -> Drawn:
        return Drawn.CHAIN
