"""The static configuration of a decoder: the values that its computation depends on."""

import dataclasses
import math

from ..errors import RequestError

MLP_PARTS = 16
"""The largest number of parts in which the weights of an MLP's gate and up projections lie."""


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al. 2021), optionally stretched beyond the trained context.

    Attributes:
      theta: the base of the frequencies.
      rope_type: "default", "linear", "dynamic", "llama3" or "yarn".
      factor: the stretched context divided by the trained one.
      original_max_position_embeddings: the trained context in tokens.
      low_freq_factor, high_freq_factor: the ends of the range in which "llama3" blends frequencies,
        in turns within the trained context.
      beta_fast, beta_slow: the ends of the range in which "yarn" blends frequencies, in turns
        within the trained context.
      attention_factor: the factor on cosines and sines of "yarn"; None derives it from ``mscale``
        and ``mscale_all_dim``.
      mscale, mscale_all_dim: the weights in the numerator and the denominator of the derived
        factor.
      truncate: whether "yarn" rounds the ends of its range to whole dimensions.
    """

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer with rotary positions, RMS norms and gated SiLU blocks.

    The configuration is hashable, and static under ``jit``.

    Attributes:
      family: the ``model_type`` under which the configuration is saved.
      vocab_size, hidden_size, intermediate_size, num_layers: V, E, F and L.
      num_heads, num_kv_heads, head_dim: H, K and D; K divides H, D is even.
      kv_copies: the number of equal copies of each key head, included in K; see ``split_over``.
      max_position_embeddings: the context in tokens, before it is stretched.
      norm_eps: the constant under the root of the norms.
      rope: rotary positions.
      windows: for each layer the number of tokens that its attention sees, or None for all tokens;
        empty for a model without windows.
      tie_embeddings: whether the output matrix is the embedding.
      qkv_bias, out_bias, mlp_bias: whether these linear maps have biases.
      qk_norm: whether each head norms its queries and keys.
      bos_token_id, eos_token_ids: the tokens that begin and end a text.
      dtype: the type of the weights.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float = 1e-6
    rope: Rope = Rope()
    windows: tuple[int | None, ...] = ()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    kv_copies: int = 1
    dtype: str = "float32"

    @property
    def context(self) -> int:
        """The longest sequence, prompt and output together, in tokens."""
        trained = {"dynamic": self.max_position_embeddings, "yarn": self.rope.original_max_position_embeddings}
        return max(self.max_position_embeddings, int(trained.get(self.rope.rope_type, 0) * self.rope.factor))

    @property
    def mlp_parts(self) -> int:
        """The number of parts of ``Layer.gate_up``; it divides the MLP's width."""
        return math.gcd(self.intermediate_size, MLP_PARTS)

    @property
    def layer_weights(self) -> int:
        """The number of weights in the matrices of one layer."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * (heads * self.head_dim + 3 * self.intermediate_size)

    @property
    def num_weights(self) -> int:
        """The number of weights in all matrices of the model. A tied embedding counts once."""
        tables = 1 if self.tie_embeddings else 2
        return tables * self.vocab_size * self.hidden_size + self.num_layers * self.layer_weights

    def split_over(self, devices: int) -> "ModelConfig":
        """The configuration of the same model with its heads and MLPs split over ``devices``.

        If there are fewer key heads than devices, each key head has copies, so that every device
        has its own queries' key head.

        Raises RequestError where the devices do not divide the heads or the MLP's width.
        """
        for what, size in (("attention heads", self.num_heads), ("MLP channels", self.intermediate_size)):
            if size % devices:
                fits = [
                    n for n in range(1, self.num_heads + 1) if not (self.num_heads % n or self.intermediate_size % n)
                ]
                raise RequestError(
                    f"a mesh with model={devices} does not divide the model's {size} {what}; "
                    f"use model={', '.join(map(str, fits))}"
                )
        copies = math.lcm(self.num_kv_heads, devices) // self.num_kv_heads
        return self.replace(num_kv_heads=self.num_kv_heads * copies, kv_copies=self.kv_copies * copies)

    def replace(self, **changes) -> "ModelConfig":
        """A copy in which the fields in ``changes`` have new values."""
        return dataclasses.replace(self, **changes)
