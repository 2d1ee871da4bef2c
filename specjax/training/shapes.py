"""The shapes of drafters that can be trained, and how they begin.

A shape is a frozen dataclass whose fields are the keys of a recipe's [head]; ``make`` returns the untrained module for a target, float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..checkpoints.load import LanguageModel, load
from ..errors import RequestError
from ..heads import (
    BlockConfig,
    BlockHead,
    Eagle3Config,
    Eagle3Head,
    EagleConfig,
    EagleHead,
    HydraConfig,
    HydraHeads,
    MedusaConfig,
    MedusaHeads,
    MtpConfig,
    MtpHead,
)
from ..heads.block import MARKOV
from ..models.config import ModelConfig
from ..models.decoder import Decoder

_MOST_DRAFTED = 32000
"""Tokens that an EAGLE-3 head of the paper knows."""


class Shape:
    """The base class of shapes. Subclasses are frozen dataclasses with a method ``make``.

    Attributes:
      modules: the number of modules that are trained, each for a token further on.
    """

    modules: int = 1

    def reach(self, loss) -> int:
        """How many tokens ahead ``loss`` looks."""
        return 1


@dataclasses.dataclass(frozen=True)
class MedusaShape(Shape):
    """Heads that begin as the target's own output: the block adds nothing, the output matrix is the target's.

    Attributes:
      num_heads, num_layers: see ``MedusaConfig``.
    """

    num_heads: int = 5
    num_layers: int = 1

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> MedusaHeads:
        return start_from_output(MedusaHeads(MedusaConfig(**self.sizes(target)), key), target)

    def reach(self, loss) -> int:
        return self.num_heads

    def sizes(self, target: LanguageModel) -> dict[str, int]:
        """The fields that configurations of Medusa and of Hydra have in common."""
        own = target.config
        sizes = dict(target_size=own.hidden_size, target_layers=own.num_layers, vocab_size=own.vocab_size)
        return sizes | dict(num_heads=self.num_heads, num_layers=self.num_layers)


@dataclasses.dataclass(frozen=True)
class HydraShape(MedusaShape):
    """As ``MedusaShape``; what a head reads beside the hidden state adds nothing at first.

    Attributes:
      prefix: whether there is a prefix layer, like one of the target's (Hydra++).
    """

    prefix: bool = False

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> HydraHeads:
        layers = layers_like(target.config, 1) if self.prefix else None
        config = HydraConfig(**self.sizes(target), head_bias=True, layers=layers)
        heads = start_from_output(HydraHeads(config, key), target)
        for head in heads.heads:  # of all that is joined, the hidden state passes
            head.blocks[0].residual[...] = jnp.eye(*head.blocks[0].residual.shape)
        if self.prefix:  # about what it was before this second norm
            heads.norm[...] = jnp.full_like(heads.norm[...], jnp.sqrt(jnp.mean(jnp.square(target.model.norm[...].astype(jnp.float32)))))
        return heads


@dataclasses.dataclass(frozen=True)
class EagleShape(Shape):
    """EAGLE-1 and 2.

    Attributes:
      num_layers: decoder layers, like the target's.
      bias: see ``EagleConfig``.
      from_target: whether the layers begin as the target's last ones, where shapes allow, rather than at random.
    """

    num_layers: int = 1
    bias: bool = True
    from_target: bool = False

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> EagleHead:
        head = EagleHead(EagleConfig(layers_like(target.config, self.num_layers), target.config.num_layers, self.bias), key)
        return begun(head, target.model) if self.from_target else head


@dataclasses.dataclass(frozen=True)
class Eagle3Shape(Shape):
    """EAGLE-3 and 3.1. The output matrix begins as the target's rows of the drafted tokens, the norm before it as the target's.

    Attributes:
      num_layers, from_target: as in ``EagleShape``.
      draft_vocab_size: how many tokens the head knows, the most frequent of the data; 0 for all, or 32000 of more.
      taps: layers whose inputs it reads; by default those of the paper.
      norm_before_residual, fc_norm, norm_before_fc, norm_output: see ``Eagle3Config``.
      parallel: whether it drafts in one pass (P-EAGLE). Its mask is a token that no text holds, see ``spare_token``.
    """

    num_layers: int = 1
    draft_vocab_size: int = 0
    taps: tuple[int, ...] = ()
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    parallel: bool = False
    from_target: bool = False

    def reach(self, loss) -> int:
        return loss.steps

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Eagle3Head:
        L, V = target.config.num_layers, target.config.vocab_size
        taps = checked_taps(self.taps or tuple(sorted({min(2, L), L // 2, max(L - 3, 0)})), L)
        if not 0 <= self.draft_vocab_size <= V:
            raise RequestError(f"draft_vocab_size {self.draft_vocab_size} does not fit the target, whose vocabulary has {V}")
        config = Eagle3Config(
            layers_like(target.config, self.num_layers), target.config.hidden_size, L, taps, self.draft_vocab_size or min(V, _MOST_DRAFTED),
            norm_before_residual=self.norm_before_residual, fc_norm=self.fc_norm, norm_before_fc=self.norm_before_fc,
            norm_output=self.norm_output, mask_token=spare_token(target) if self.parallel else None,
        )  # fmt: skip
        head = Eagle3Head(config, key)
        known = most_frequent(stream, config.draft_vocab_size, V)
        head.draft_to_target[...] = jnp.asarray(known - np.arange(known.size), jnp.int32)
        head.head[...] = output_of(target.model)[known]
        head.norm[...] = target.model.norm[...].astype(jnp.float32)
        return begun(head, target.model) if self.from_target else head


@dataclasses.dataclass(frozen=True)
class MtpShape(Shape):
    """Modules of multi-token prediction; the norm before the output, which is the target's, begins as the target's.

    Attributes:
      modules: one for each depth; beyond them the last is used again.
      num_layers, from_target: as in ``EagleShape``, of each module.
      normed_features, norm_output, hidden_first: see ``MtpConfig``.
    """

    modules: int = 1
    num_layers: int = 1
    normed_features: bool = True
    norm_output: bool = False
    hidden_first: bool = False
    from_target: bool = False

    def __post_init__(self):
        if self.modules < 1:
            raise RequestError(f"modules {self.modules} is too few; 1 is the least")
        if self.modules > 1 and self.num_layers > 1:
            raise RequestError(
                f"no checkpoint holds {self.modules} modules of {self.num_layers} layers; train one module, or num_layers = 1"
            )

    def reach(self, loss) -> int:
        return loss.steps

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> MtpHead:
        layers = layers_like(target.config, self.num_layers)
        config = MtpConfig(
            layers, target.config.num_layers, self.normed_features, self.norm_output, self.hidden_first, modules=self.modules
        )
        head = MtpHead(config, key)
        for module in head.modules:
            module.norm[...] = target.model.norm[...].astype(jnp.float32)
            if self.from_target:
                begun(module, target.model)
        return head


@dataclasses.dataclass(frozen=True)
class BlockShape(Shape):
    """A block head; the norm before the output, which is the target's, begins as the target's.

    Attributes:
      num_layers, from_target: as in ``EagleShape``.
      taps: layers whose inputs it reads; by default those after ``num_taps`` layers, evenly spread from the second to the last but two.
      mask_token: by default the last of the vocabulary that the tokenizer does not use, or else the token that ends a text.
      block_size, causal, from_root, markov_rank, markov, confidence: see ``BlockConfig``.
    """

    num_layers: int = 5
    num_taps: int = 5
    taps: tuple[int, ...] = ()
    mask_token: int = -1
    block_size: int = 16
    causal: bool = False
    from_root: bool = False
    markov_rank: int = 0
    markov: str = "vanilla"
    confidence: bool = False
    from_target: bool = False

    def __post_init__(self):
        if self.markov not in MARKOV:
            raise RequestError(f"markov {self.markov!r} is unknown; use one of {', '.join(MARKOV)}")
        if self.block_size < 2:
            raise RequestError(f"block_size {self.block_size} is too small; 2 is the least")

    def reach(self, loss) -> int:
        return self.block_size

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> BlockHead:
        L, V = target.config.num_layers, target.config.vocab_size
        spread = np.round(np.linspace(min(1, L - 1), max(L - 3, 0), self.num_taps)).astype(int) + 1
        taps = checked_taps(self.taps or tuple(np.unique(spread).tolist()), L)
        if self.mask_token >= V:
            raise RequestError(f"mask_token {self.mask_token} does not fit the target, whose vocabulary has {V}")
        config = BlockConfig(
            layers_like(target.config, self.num_layers), target.config.hidden_size, L, taps,
            spare_token(target) if self.mask_token < 0 else self.mask_token, self.block_size, self.causal, self.from_root,
            self.markov_rank, self.markov, self.confidence, confidence_markov=self.confidence and self.markov_rank > 0,
        )  # fmt: skip
        head = BlockHead(config, key)
        head.norm[...] = target.model.norm[...].astype(jnp.float32)
        return begun(head, target.model) if self.from_target else head


@dataclasses.dataclass(frozen=True)
class DraftShape(Shape):
    """A smaller language model of the target's family and vocabulary.

    Attributes:
      start: the model to go on from: an embedded name, directory or hub id; by default one of the shape below begins at random.
      num_layers: decoder layers; few and wide are quick.
      hidden_size: by default a third of the target's.
      num_heads: of ``head_dim``, which is the target's; by default as many as fill the width.
    """

    start: str = ""
    num_layers: int = 2
    hidden_size: int = 0
    num_heads: int = 0

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> Decoder:
        if self.start:
            draft = load(self.start, dtype="float32")
            if draft.config.vocab_size != target.config.vocab_size or draft.tokenizer.get_vocab() != target.tokenizer.get_vocab():
                raise RequestError(f"start {self.start!r} has another vocabulary than the target; name a model of the same tokenizer")
            return draft.model
        D = target.config.head_dim
        width = self.hidden_size or -(-target.config.hidden_size // (3 * D)) * D
        heads = self.num_heads or max(width // D, 1)
        config = layers_like(target.config, self.num_layers).replace(
            hidden_size=width, intermediate_size=3 * width, num_heads=heads, num_kv_heads=heads, tie_embeddings=True
        )
        return Decoder(config, key)


def layers_like(config: ModelConfig, num_layers: int) -> ModelConfig:
    """The target's decoder layers, so many of them, in float32 and without attention windows."""
    return config.replace(num_layers=num_layers, windows=(), dtype="float32")


def output_of(model: Decoder) -> jax.Array:
    """The matrix float32 [V, E] from hidden states to logits."""
    return (model.embed if model.head is None else model.head)[...].astype(jnp.float32)


def start_from_output(heads, target: LanguageModel):
    """Medusa or Hydra heads with the target's output matrix in each head."""
    for head in heads.heads:
        head.head[...] = output_of(target.model)
    return heads


def begun(head, target: Decoder):
    """The head with what its layers have in common with the target's last ones copied from there."""
    for mine, theirs in zip(head.layers, list(target.layers)[-len(head.layers) :]):
        for name, param in vars(theirs).items():
            own = getattr(mine, name, None)
            if isinstance(param, nnx.Param) and isinstance(own, nnx.Param) and own.shape == param.shape:
                own[...] = param[...].astype(own.dtype)
    return head


def most_frequent(stream: np.ndarray, count: int, vocab_size: int) -> np.ndarray:
    """The ``count`` most frequent tokens of a stream in ascending order; of equally frequent ones the lower."""
    counts = np.bincount(stream, minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def spare_token(target: LanguageModel) -> int:
    """A token that no text holds, or else the one that ends texts."""
    unused = set(range(target.config.vocab_size)) - set(target.tokenizer.get_vocab().values())
    ends = target.config.eos_token_ids or (0,)
    return max(unused, default=ends[0])


def checked_taps(taps: tuple[int, ...], layers: int) -> tuple[int, ...]:
    if min(taps) < 0 or max(taps) > layers:
        raise RequestError(
            f"taps {', '.join(map(str, taps))} do not fit the target, which has {layers} layers; name some from 0 to {layers}"
        )
    return taps
