"""Where the weights of a model are, and in which form they are stored there."""

import dataclasses
import warnings

import jax
from flax import nnx

from .. import parallel
from ..errors import SpecjaxWarning
from ..kernels.cpu.product import is_installed
from ..kernels.cpu.tiles import instructions
from ..models.config import ModelConfig
from ..models.quantised_weights import SCHEMES
from ..parallel import RULES, Rules
from .config import check_dtype, check_scheme

STORED = "stored", "stored:exact"
"""The forms of weights that keep the numbers of a checkpoint that packs them."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices and the form of weights that are read from a checkpoint.

    Attributes:
      mesh: devices to split the weights over, see ``parallel.make_mesh``. Each device reads only
        its own part. None for the default device.
      rules: the mesh axis of each logical axis, see ``parallel.RULES``; with ``parallel.WHOLE``
        each device holds all weights.
      dtype: one of ``config.DTYPES``; by default the checkpoint's.
      quantize: one of ``models.quantised_weights.SCHEMES``, or of ``STORED`` for the numbers of a
        checkpoint that packs them; by default weights keep their dtype.
      offload: whether the layers stay in the host's memory, see ``models.offload``.

    Raises RequestError for another dtype and another form.
    """

    mesh: jax.sharding.Mesh | None = None
    rules: Rules = dataclasses.field(default_factory=lambda: RULES)
    dtype: str | None = None
    quantize: str | None = None
    offload: bool = False

    def __post_init__(self):
        if self.dtype is not None:
            object.__setattr__(self, "dtype", check_dtype(self.dtype))
        check_scheme("quantize", self.quantize, (*SCHEMES, *STORED))

    @property
    def keeps_numbers(self) -> bool:
        """Whether weights keep the numbers of a packed checkpoint, also those of a GGUF file."""
        return self.quantize in STORED

    def split(self, config: ModelConfig) -> ModelConfig:
        """The configuration of a model whose heads are split over the mesh.

        Raises RequestError for a mesh that does not divide the model, see
        ``ModelConfig.split_over``.
        """
        axis = self.rules.get("heads")
        return config if self.mesh is None or axis is None else config.split_over(self.mesh.shape[axis])

    def for_device(self, config: ModelConfig) -> "Placement":
        """The placement, with float16 for a bfloat16 checkpoint on a GPU without bfloat16.

        Warns where weights of fewer bits lack their kernel, or instructions for it.
        """
        device = jax.devices()[0] if self.mesh is None else self.mesh.devices.flat[0]
        capability = float(getattr(device, "compute_capability", 8))
        if self.quantize not in (None, "fp8") and (lack := _lack(device.platform, capability)):
            warnings.warn(f"{self.quantize} weights {lack}", SpecjaxWarning, stacklevel=3)
        if self.dtype is not None or config.dtype != "bfloat16" or device.platform != "gpu" or capability >= 8:
            return self
        message = f"a GPU of compute capability {capability} has no bfloat16, so the weights are float16"
        warnings.warn(f"{message}; dtype='float32' keeps bfloat16's range", SpecjaxWarning, stacklevel=3)
        return dataclasses.replace(self, dtype="float16")

    def sharding(self, param: nnx.Param) -> jax.sharding.Sharding:
        """The devices of a parameter, and the part of each, see ``parallel.sharding``."""
        return parallel.sharding(param, self.mesh, self.rules)


def _lack(platform: str, capability: float) -> str | None:
    """What weights of fewer bits lack on a device for fast products, and what follows."""
    widens = "without it each product widens them"
    if platform == "cpu" and not is_installed():
        return f"need the kernel of the extra cpu; {widens}, several times slower; pip install 'specjax[cpu]'"
    if platform == "cpu" and instructions() == "plain":
        return "need VNNI, AVX2 or the dot products of Arm; without them the kernel multiplies one by one, slower"
    if platform == "gpu" and capability < 8:
        return f"have no kernel on a GPU of compute capability {capability}; {widens}, slower; use 8.0 or newer"
    return None
