"""Optimizers: AdamW, as in the papers, or Muon for hidden matrices."""

import dataclasses

import jax
import optax

from ..core.checks import check_known
from ..errors import RequestError
from .numbers import number

_NAMES = ("muon", "adamw")
_VOCABULARY = {"embed", "head", "first", "second"}
"""The names of parameters whose rows are tokens. Adam updates them even under "muon"."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The update of parameters. Its fields are the keys of [optimizer].

    The learning rate rises to ``rate`` over ``warmup`` steps, stays there, and falls to zero over
    the last steps.

    Attributes:
      name: "adamw" or "muon". Under "muon", Muon updates hidden matrices and Adam the rest; it
        learns more in few steps.
      rate: the highest learning rate.
      warmup: the number of steps in which the rate rises.
      decay: the fraction of all steps in which the rate falls.
      clip: the global norm to which larger gradients are scaled down.
      weight_decay: the decay of matrices under Muon, and of all parameters under AdamW.
    """

    name: str = "muon"
    rate: float = number(3e-3, 0, 10.0)
    warmup: int = 50
    decay: float = 0.4
    clip: float = 1.0
    weight_decay: float = 0.05

    def __post_init__(self):
        check_known("optimizer", self.name, _NAMES)
        if not (self.rate > 0 and self.clip > 0 and self.warmup >= 0 and 0 <= self.decay <= 1):
            raise RequestError("optimizer: rate and clip must be above 0, warmup from 0, and decay from 0 to 1")

    def make(self, steps: int) -> optax.GradientTransformation:
        """The optax transformation for ``steps`` steps.

        Before the rate falls, the updates do not depend on ``steps``.
        """
        hold = max(int(steps * (1 - self.decay)) - self.warmup, 0)
        fall = max(steps - self.warmup - hold, 1)
        rate = optax.join_schedules(
            [
                optax.linear_schedule(0, self.rate, self.warmup),
                optax.constant_schedule(self.rate),
                optax.linear_schedule(self.rate, 0, fall),
            ],
            [self.warmup, self.warmup + hold],
        )
        if self.name == "adamw":
            update = optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=self.weight_decay)
        else:
            update = optax.contrib.muon(
                rate,
                consistent_rms=0.2,
                ns_steps=4,
                preconditioning="aol",
                weight_decay=self.weight_decay,
                adam_b2=0.95,
                muon_weight_dimension_numbers=_select_hidden_matrices,
            )
        return optax.chain(optax.clip_by_global_norm(self.clip), update)


def _select_hidden_matrices(params):
    """Muon's axes of each hidden matrix; None for each parameter that Adam updates."""
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)

    def select(path, x):
        names = jax.tree_util.keystr(path, simple=True, separator="/").split("/")
        return axes if x.ndim == 2 and not _VOCABULARY.intersection(names) else None

    return jax.tree_util.tree_map_with_path(select, params)
