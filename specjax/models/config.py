"""The static configuration of a decoder: what the maths needs, and nothing else."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embedding: base frequency and how it is stretched beyond the trained context.

    Fields other than ``theta`` carry the names of ``rope_parameters`` in transformers and matter to the kinds that read them.
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
    """A decoder-only transformer with rotary positions, RMS norms and gated SiLU blocks. Hashable: static under ``jit``."""

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
    dtype: str = "float32"

    @property
    def context(self) -> int:
        """The longest sequence, prompt and output together, in tokens."""
        trained = {"dynamic": self.max_position_embeddings, "yarn": self.rope.original_max_position_embeddings}
        return max(self.max_position_embeddings, int(trained.get(self.rope.rope_type, 0) * self.rope.factor))

    def replace(self, **changes) -> "ModelConfig":
        return dataclasses.replace(self, **changes)
