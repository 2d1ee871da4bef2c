"""Mixtures of experts: a router chooses a few of many gated MLPs for each node.

The layer is that of Shazeer et al. 2017, section 2, with the gates of Mixtral (Jiang et al. 2024,
section 2.1). No expert has a capacity, so no node is dropped, and a node's result does not depend
on the other nodes.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from ...errors import RequestError
from ...parallel import sum_over_parts
from ..kinds import FeedForwardConfig, LayerConfig
from ..layers import linear, matrix, param, value_of
from ..stacks import Stack
from .expert_products import UNIT_AXES, Weights, expected_experts, multiply_chosen
from .gated import GatedMlp, GatedMlpConfig
from .grouped_routing import GroupedRouting, choose_in_groups


@dataclasses.dataclass(frozen=True)
class ExpertsConfig(FeedForwardConfig):
    """X gated MLPs of F units, of which each node reads k.

    Attributes:
      count, chosen, width: X, k and F.
      normed: whether the weights of a node's experts sum to one. Without it they are the experts'
        probabilities among all X.
      bias: whether the router and the experts have biases.
      clamp: alpha and the limit of the clamped units of gpt-oss; None for SiLU.
      shared: the MLP that all nodes read beside their experts; or None.
      shared_gate: whether a sigmoid gate weights ``shared``.
      scales_inputs: whether the sigmoid of an expert's logit multiplies the expert's input, and its
        output has no weight (Llama 4).
      routing: how the experts are chosen in groups (DeepSeek); None for the experts with the
        highest logits.
    """

    count: int
    chosen: int
    width: int
    normed: bool = True
    bias: bool = False
    clamp: tuple[float, float] | None = None
    shared: GatedMlpConfig | None = None
    shared_gate: bool = True
    scales_inputs: bool = False
    routing: GroupedRouting | None = None

    @property
    def stacks(self) -> dict[str, Stack]:
        shared = {} if self.shared is None else self.shared.stacks
        return {f"shared.{name}": stack for name, stack in shared.items()}

    def count_weights(self, width: int) -> int:
        shared = 0 if self.shared is None else self.shared.count_weights(width) + width * self.shared_gate
        return self.count * width * (3 * self.width + 1) + shared

    def expected_experts(self, nodes: int) -> float:
        """How many experts ``nodes`` nodes read, see ``expert_products.expected_experts``."""
        return expected_experts(self.count, self.chosen, nodes)

    def split_over(self, devices: int) -> "ExpertsConfig":
        if self.width % devices:
            fits = ", ".join(str(n) for n in range(1, self.width + 1) if self.width % n == 0)
            raise RequestError(
                f"a mesh with model={devices} cannot hold the model's {self.count} experts, because it does not divide "
                f"the {self.width} channels of each; use model={fits}"
            )
        return self if self.shared is None else dataclasses.replace(self, shared=self.shared.split_over(devices))


class Experts(nnx.Module):
    """The experts of a layer, with their router.

    Parameters: ``router`` [X, E], ``gates`` and ``ups`` [X, F, E], ``downs`` [X, E, F], their
    biases, ``shared`` and its gate ``shared_gate`` [1, E], and ``correction`` [X], see
    ``GroupedRouting``.

    A mesh splits the units of each expert. Then all devices read equally much, whichever experts
    the nodes choose, and the layer needs one all-reduce. If each device held some whole experts, a
    round would wait for the device whose experts are chosen most.
    """

    router: nnx.Param
    gates: nnx.Param
    ups: nnx.Param
    downs: nnx.Param
    router_bias: nnx.Param | None
    gates_bias: nnx.Param | None
    ups_bias: nnx.Param | None
    downs_bias: nnx.Param | None
    shared: GatedMlp | None
    shared_gate: nnx.Param | None
    correction: nnx.Param | None

    def __init__(self, config: LayerConfig, keys: jax.Array, dtype):
        mlp, E = config.mlp, config.width
        assert isinstance(mlp, ExpertsConfig)
        X, F = mlp.count, mlp.width
        shapes = {"router": (X, E), "gates": (X, F, E), "ups": (X, F, E), "downs": (X, E, F)}
        axes = {"router": ("choice", "embed"), "gates": (None, "mlp", "embed")}
        axes |= {"ups": axes["gates"], "downs": (None, "embed", "mlp")}
        self.config = mlp
        for (name, shape), key in zip(shapes.items(), jax.random.split(keys[0], 4)):
            scale = 0.02 / (2 * config.depth) ** 0.5 if name == "downs" else 0.02
            setattr(self, name, matrix(key, shape, axes[name], dtype, scale))
            bias = param(jnp.zeros(shape[:-1], dtype), axes[name][:-1]) if mlp.bias else None
            setattr(self, f"{name}_bias", bias)
        gate_key, *shared_keys = jax.random.split(keys[1], 3)
        shared = mlp.shared and dataclasses.replace(config, mlp=mlp.shared)
        self.shared = GatedMlp(shared, jnp.stack(shared_keys), dtype) if shared else None
        self.shared_gate = matrix(gate_key, (1, E), (None, "embed"), dtype) if shared and mlp.shared_gate else None
        # Not of ``dtype``: rounding could change the choice.
        corrected = mlp.routing is not None and mlp.routing.corrected
        self.correction = param(jnp.zeros(X, jnp.float32), (None,)) if corrected else None

    @jax.named_scope("experts")
    def __call__(self, normed: jax.Array) -> jax.Array:
        chosen, share = route(
            normed, self.router[...], value_of(self.router_bias), self.config, value_of(self.correction)
        )
        inputs = normed
        if self.config.scales_inputs:  # each choice of a node becomes a node
            inputs = (normed[:, :, None] * share[..., None]).reshape(len(normed), -1, normed.shape[-1])
            chosen = chosen.reshape(len(normed), -1, 1)
            share = jnp.ones_like(chosen, jnp.float32)
        matrices = tuple(map(value_of, (self.gates, self.ups, self.downs, self.gates_bias, self.ups_bias)))

        def of_part(normed, chosen, share, *matrices):
            return multiply_chosen(normed, chosen, share, Weights(*matrices), self.config.clamp)

        y = sum_over_parts(of_part, (inputs, chosen, share), matrices, UNIT_AXES)
        y = y.reshape(*normed.shape[:2], -1, normed.shape[-1]).sum(2)
        if self.downs_bias is not None:
            y = y + jnp.einsum("bnk,bnke->bne", share, self.downs_bias[...].astype(jnp.float32)[chosen])
        if self.shared is not None:
            weight = 1.0 if self.shared_gate is None else jax.nn.sigmoid(linear(normed, self.shared_gate[...]))
            y = y + weight * self.shared(normed)
        return y


def route(
    x: jax.Array, router: jax.Array, bias: jax.Array | None, config: ExpertsConfig, correction: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The experts of each node, int32 [B, N, k], and their weights, float32 [B, N, k].

    The logits are float32 products of x [B, N, E] and the router [X, E]. A product of fewer bits
    could choose other experts for a node in a tree than for the same node alone.
    """
    highest = lax.Precision.HIGHEST
    logits = jnp.einsum("bne,xe->bnx", x.astype(jnp.float32), router.astype(jnp.float32), precision=highest)
    logits = logits if bias is None else logits + bias.astype(jnp.float32)
    if config.routing is not None:
        return choose_in_groups(logits, correction, config.routing, config.chosen, config.normed)
    top, chosen = lax.top_k(logits, config.chosen)
    if config.scales_inputs:
        return chosen, jax.nn.sigmoid(top)
    total = jax.nn.logsumexp(top if config.normed else logits, axis=-1, keepdims=True)
    return chosen, jnp.exp(top - total)
