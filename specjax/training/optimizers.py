"""The rules by which parameters change: AdamW as in the papers, or Muon for hidden matrices."""

import dataclasses

import jax
import optax

from ..errors import RequestError

_NAMES = ("muon", "adamw")
_VOCABULARY = {"embed", "head", "first", "second"}
"""Parameters whose rows are tokens: they stay with Adam."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How parameters change. The rate rises over ``warmup`` steps to ``rate``, stays, and falls to zero over the last ``decay`` of all steps.

    Attributes:
      name: "adamw", or "muon" for hidden matrices and Adam for the rest, which learns more in few steps.
      rate: the highest.
      warmup: in steps.
      decay: a fraction of all steps.
      clip: the global norm that gradients are scaled down to.
      weight_decay: of matrices under Muon, of everything under AdamW.
    """

    name: str = "muon"
    rate: float = 3e-3
    warmup: int = 50
    decay: float = 0.4
    clip: float = 1.0
    weight_decay: float = 0.05

    def __post_init__(self):
        if self.name not in _NAMES:
            raise RequestError(f"optimizer {self.name!r} is unknown; use one of {', '.join(_NAMES)}")
        if not (self.rate > 0 and self.clip > 0 and self.warmup >= 0 and 0 <= self.decay <= 1):
            raise RequestError("optimizer: rate and clip must be above 0, warmup from 0, and decay from 0 to 1")

    def rule(self, steps: int) -> optax.GradientTransformation:
        """The optax transformation. Until the fall begins a run does not depend on ``steps``."""
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
            return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(rate, b1=0.9, b2=0.95, weight_decay=self.weight_decay))
        muon = optax.contrib.muon(
            rate,
            consistent_rms=0.2,
            ns_steps=4,
            preconditioning="aol",
            weight_decay=self.weight_decay,
            adam_b2=0.95,
            muon_weight_dimension_numbers=_matrices,
        )
        return optax.chain(optax.clip_by_global_norm(self.clip), muon)


def _matrices(params):
    """Marks hidden matrices for Muon."""
    dims = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    hidden = lambda path, x: x.ndim == 2 and not _VOCABULARY & {str(getattr(key, "key", key)) for key in path}
    return jax.tree_util.tree_map_with_path(lambda path, x: dims if hidden(path, x) else None, params)
