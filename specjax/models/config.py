"""The static configuration of a decoder: the values that its computation depends on."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ..errors import RequestError
from ..kernels.gpu.attention import Scores
from .cross_attention import CrossConfig
from .feed_forwards import GatedMlpConfig, PlainMlpConfig
from .kinds import FeedForwardConfig, LayerConfig, MixerConfig
from .layers import Norm
from .mixers import AttentionConfig
from .relative_positions import Alibi, Relative
from .rope import Rope


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A transformer: a decoder, or with ``encoder`` an encoder-decoder.

    Hashable, static under ``jit``.

    The fields describe the model's usual layer; without changes it is the layer of Llama: rotary
    positions, RMS norms before the sub-layers, and gated SiLU blocks. Layers that differ stand in
    ``windows``, ``mixers`` and ``mlps``. ``layer`` gives the configuration of each layer.

    Attributes:
      family: the ``model_type`` under which the configuration is saved.
      vocab_size, hidden_size, intermediate_size, num_layers: V, E, F and L.
      num_heads, num_kv_heads, head_dim: H, K and D; K divides H, D is even.
      kv_copies: the number of equal copies of each key head, included in K; see ``split_over``.
      max_position_embeddings: the context in tokens, before it is stretched.
      norm_eps: the constant under the root of the norms.
      rope: rotary positions.
      windows: for each layer the largest number of tokens that its attention sees, or None for all
        tokens; empty for a model without windows.
      tie_embeddings: whether the output matrix is the embedding.
      qkv_bias, out_bias, mlp_bias: whether these linear maps have biases.
      qk_norm: whether each head norms its queries and keys.
      bos_token_id, eos_token_ids: the tokens that begin and end a text.
      dtype: the type of the weights.

      whole_qk_norm: whether ``qk_norm`` norms all heads together.
      local_rope: rotary positions of layers with a window; None for ``rope``.
      sinks: whether attention has sinks, see ``attention.attend``.
      attention_scale, attention_softcap: see ``kernels.gpu.attention.Scores``.
      gated, activation: whether the MLP is gated, and one of ``layers.ACTIVATIONS``.
      norm, norm_offset: the kind of norm and the offset of its weights, see ``layers.Norm``.
      normed, parallel: the form of a layer, see ``kinds.LayerConfig``.
      final_norm: whether a norm precedes the output matrix.
      embedding_scale: the factor on the embeddings.
      embed_size: the width of the embedding; 0 for E. Another width is projected from and to E.
      position_offset: the row of the first position in a learned table; None for a model without a
        table of positions.
      logit_softcap: the bound c of logits x, which become c * tanh(x / c); None for no bound.
      residual_scale: the factor on the output of each sub-layer.
      layer_scalar: whether a factor of its own multiplies the output of each layer.
      per_layer_size, per_layer_vocab: the width of the layers' own inputs, see ``per_layer``, and
        the size of their vocabulary; 0 for none.
      embed_norm: whether a norm follows the embeddings.
      relative: the bias of scores by distance; None for none.
      logit_scale: the factor on the hidden states before the output matrix.
      logit_bias: whether a bias is added to the logits.
      encoder: the configuration of the encoder, of which each layer has another sub-layer; None for
        a model without.
      decoder_prompt: the tokens with which the text of an encoder-decoder's decoder begins. They
        follow the source in a prompt.
      mixers, mlps: for each layer the configuration of a mixer or a feed-forward that is not the
        usual one, or None; empty for a model in which all are usual.
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
    # Departures from Llama's layer and from its embedding.
    whole_qk_norm: bool = False
    local_rope: Rope | None = None
    sinks: bool = False
    attention_scale: float | None = None
    attention_softcap: float | None = None
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    norm_offset: float = 0.0
    normed: str = "before"
    parallel: bool = False
    final_norm: bool = True
    embedding_scale: float = 1.0
    embed_size: int = 0
    position_offset: int | None = None
    logit_softcap: float | None = None
    residual_scale: float = 1.0
    layer_scalar: bool = False
    per_layer_size: int = 0
    per_layer_vocab: int = 0
    embed_norm: bool = False
    relative: Relative | Alibi | None = None
    logit_scale: float = 1.0
    logit_bias: bool = False
    encoder: "ModelConfig | None" = None
    decoder_prompt: tuple[int, ...] = ()
    # Layers that are not the usual one.
    mixers: tuple[MixerConfig | None, ...] = ()
    mlps: tuple[FeedForwardConfig | None, ...] = ()

    @property
    def context(self) -> int:
        """The longest sequence, prompt and output, in tokens, an encoder's source included."""
        if self.encoder is not None:
            return self.encoder.context + self.max_position_embeddings
        trained = {"dynamic": self.max_position_embeddings, "yarn": self.rope.original_max_position_embeddings}
        return max(self.max_position_embeddings, int(trained.get(self.rope.rope_type, 0) * self.rope.factor))

    def most_tokens(self, prompts: np.ndarray) -> np.ndarray:
        """The longest text, prompt and output together, for prompts int32 [B] of these lengths."""
        if self.encoder is None:
            return np.full_like(prompts, self.context)
        return prompts - len(self.decoder_prompt) + self.max_position_embeddings

    def refuse_encoder(self, what: str) -> None:
        """Raises RequestError if the model has an encoder: only decoders support ``what``."""
        if self.encoder is not None:
            raise RequestError(
                f"{what} is for models without an encoder, and {self.family} has one; leave it out, or use another "
                "model"
            )

    @property
    def layers(self) -> tuple[LayerConfig, ...]:
        """The configuration of each layer."""
        return tuple(map(self.layer, range(self.num_layers)))

    def layer(self, number: int) -> LayerConfig:
        """The configuration of layer ``number``."""
        mixer = self.mixers[number] if self.mixers else None
        mlp = self.mlps[number] if self.mlps else None
        return LayerConfig(
            self.hidden_size, self.num_layers, mixer or self._attention(number), mlp or self._mlp(), self.norms,
            self.normed, self.parallel, self.per_layer_size, self.layer_scalar, self.residual_scale,
            self._cross(),
        )  # fmt: skip

    @property
    def norms(self) -> Norm:
        """The kind of the norms."""
        return Norm(self.norm, self.norm_eps, self.norm_offset)

    @property
    def layer_weights(self) -> int:
        """The number of weights in the matrices of one usual layer."""
        return self._attention(0).count_weights(self.hidden_size) + self._mlp().count_weights(self.hidden_size)

    @property
    def num_weights(self) -> int:
        """The number of weights in all matrices of the model. A tied embedding counts once."""
        tables = 1 if self.tie_embeddings else 2
        parts = [*self.layers, *(self.encoder.layers if self.encoder else ())]
        kinds = [(layer, kind) for layer in parts for kind in (layer.mixer, layer.cross, layer.mlp) if kind is not None]
        layers = sum(kind.count_weights(layer.width) for layer, kind in kinds)
        return tables * self.vocab_size * (self.embed_size or self.hidden_size) + layers

    def empty_layers(self, batch: int, capacity: int, dtype) -> tuple:
        """For each layer its part of a cache without tokens, see ``MixerConfig.empty``."""
        return tuple(layer.mixer.empty(batch, capacity, dtype) for layer in self.layers)

    @property
    def token_rows(self) -> int:
        """The number of values that the cache holds for a token, in all layers."""
        return sum(K * D for layer in self.layers for K, D in layer.mixer.row_shapes)

    @property
    def is_llama_like(self) -> bool:
        """Whether all layers are Llama's.

        Layers may have biases, windows and norms of queries and keys.
        """
        return self == self.like_llama()

    def like_llama(self) -> "ModelConfig":
        """The configuration with Llama's layers of the same sizes; itself if it has such layers."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)[_LLAMA_FIELDS:]}
        if self.rope.rotated == 1 and all(getattr(self, name) == value for name, value in defaults.items()):
            return self
        biases = dict(qkv_bias=False, out_bias=False, mlp_bias=False, qk_norm=False)
        return self.replace(family="llama", rope=Rope(self.rope.theta), windows=(), **biases, **defaults)

    def split_over(self, devices: int) -> "ModelConfig":
        """The configuration of the same model with its heads and MLPs split over ``devices``.

        If there are fewer key heads than devices, each key head has copies, so that every device
        has its own queries' key head.

        Raises RequestError where the devices do not divide the heads or the MLP's width, and for an
        encoder-decoder.
        """
        self.refuse_encoder("a mesh")
        sizes = {"attention heads": self.num_heads}
        if not self.mlps or None in self.mlps:
            sizes["MLP channels"] = self.intermediate_size
        for what, size in sizes.items():
            if size % devices:
                fits = [n for n in range(1, self.num_heads + 1) if not any(size % n for size in sizes.values())]
                raise RequestError(
                    f"a mesh with model={devices} does not divide the model's {size} {what}; "
                    f"use model={', '.join(map(str, fits))}"
                )
        copies = math.lcm(self.num_kv_heads, devices) // self.num_kv_heads
        return self.replace(
            num_kv_heads=self.num_kv_heads * copies,
            kv_copies=self.kv_copies * copies,
            mixers=tuple(mixer and mixer.split_over(devices) for mixer in self.mixers),
            mlps=tuple(mlp and mlp.split_over(devices) for mlp in self.mlps),
        )

    def with_layers(self, numbers: Sequence[int]) -> "ModelConfig":
        """The configuration of a decoder of these layers."""
        chosen = lambda each: tuple(each[i] for i in numbers) if each else ()
        each = {name: chosen(getattr(self, name)) for name in ("windows", "mixers", "mlps")}
        return self.replace(num_layers=len(numbers), **each)

    def replace(self, **changes) -> "ModelConfig":
        """A copy in which the fields in ``changes`` have new values."""
        return dataclasses.replace(self, **changes)

    def _attention(self, number: int) -> AttentionConfig:
        """The usual attention, with the window of layer ``number``."""
        window = self.windows[number] if self.windows else None
        rope = self.rope if window is None or self.local_rope is None else self.local_rope
        if rope.rope_type == "dynamic":
            rope = dataclasses.replace(rope, original_max_position_embeddings=self.max_position_embeddings)
        return AttentionConfig(
            self.num_heads, self.num_kv_heads, self.head_dim, rope,
            Scores(window, self.attention_scale, self.attention_softcap), self.qkv_bias, self.out_bias,
            self.qk_norm, self.whole_qk_norm, sinks=self.sinks, kv_copies=self.kv_copies,
        )  # fmt: skip

    def _cross(self) -> CrossConfig | None:
        if self.encoder is None:
            return None
        return CrossConfig(self.num_heads, self.head_dim, self.attention_scale, self.qkv_bias)

    def _mlp(self) -> FeedForwardConfig:
        kind = GatedMlpConfig if self.gated else PlainMlpConfig
        return kind(self.intermediate_size, self.activation, self.mlp_bias)


_LLAMA_FIELDS = [field.name for field in dataclasses.fields(ModelConfig)].index("whole_qk_norm")
"""The number of fields of a configuration whose layers are Llama's."""
