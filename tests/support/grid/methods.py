"""The drafting methods of the grid, in settings that reach every branch within two drafted tokens, and their models."""

import dataclasses
from functools import cache

import jax.numpy as jnp

from specjax import Decoder, ModelConfig
from specjax.core.tree import expansion, from_paths
from specjax.drafters import (
    Adaptive,
    AssistantDrafter,
    Auto,
    BlockDrafter,
    Cascade,
    DraftModel,
    DraftTree,
    DynamicTree,
    Eagle,
    Eagle2,
    Eagle3,
    EarlyExit,
    Hydra,
    LayerSkip,
    Lookahead,
    Medusa,
    Merged,
    Mtp,
    Ngram,
    PartialCache,
    PartialCascade,
    Plain,
    QuantizedSelf,
    Suffix,
    Switch,
    TokenRecycling,
)
from specjax.drafters.auto.arms import Arm
from specjax.drafters.parts.draft_sampling import Drawing
from specjax.heads import (
    KINDS,
    AssistantConfig,
    BlockConfig,
    Eagle3Config,
    EagleConfig,
    HydraConfig,
    MedusaConfig,
    MtpConfig,
)
from specjax.loop.drafter import Drafter, Models, TrainedHead
from specjax.models.feed_forwards import ExpertsConfig, NoMlpConfig
from specjax.models.mixers import DeltaRuleConfig, LatentAttentionConfig, Mamba2Config, NoMixerConfig, ShortConvConfig

from ..models import TINY, random_head, tiny_model
from .cases import CAPACITY, DRAFTS, V

SIZES = dict(hidden_size=16, intermediate_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
CONFIG = TINY.replace(vocab_size=V, max_position_embeddings=CAPACITY, **SIZES)

TARGETS: dict[str, ModelConfig] = {
    "dense": CONFIG,
    "experts": CONFIG.replace(mlps=(ExpertsConfig(4, 2, 8),)),
    "latent": CONFIG.replace(mixers=(LatentAttentionConfig(2, 8, None, 4, 4, 8),)),
    "hybrid": CONFIG.replace(num_layers=2, mixers=(DeltaRuleConfig(1, 2, 8, 8, 3), None)),
    "convolution": CONFIG.replace(num_layers=2, mixers=(ShortConvConfig(16, 3), None)),
    "mamba": CONFIG.replace(num_layers=2, mixers=(Mamba2Config(2, 8, 1, 8, 3), None)),
    "states": CONFIG.replace(
        num_layers=2, mixers=(Mamba2Config(2, 8, 1, 8, 3), NoMixerConfig()), mlps=(NoMlpConfig(), None)
    ),
}
"""A target of each class. Drafts are dense."""

OTHER_CLASSES = {
    "experts": ("token_recycling", "tree"),
    "latent": ("ngram", "mtp"),
    "hybrid": ("draft_model", "tree"),
    "convolution": ("ngram", "tree"),
    "mamba": ("draft_model", "tree"),
    "states": ("draft_model", "tree"),
}
"""The methods with a target of each class, trees and chains."""


@dataclasses.dataclass(frozen=True)
class Rotating(Auto):
    """Method auto with another arm in each round, so that every arm follows every other."""

    def _choose_arm(self, state, outlook):
        return (state.round + state.round // len(self.arms)) % len(self.arms), jnp.bool(True)


BUSHY = expansion((2, 1))  # two tokens after the root, one after each of them
BRANCHED = from_paths([(0,), (1,), (0, 0), (1, 1)])
PART = dict(attention_sinks=0, draft_window=1, chunk_size=1, num_speculative_tokens=DRAFTS, draft_temperature=2.0)
"""A part of one or two tokens. The model depends little on its past, so a temperature lowers the acceptance."""
ARMS = Arm(0), Arm(1), Arm(DRAFTS, True), Arm(1, True), Arm(2, True, 4, 2)
BEST_FIRST = dict(tree_nodes=4, tree_depth=2, tree_top_k=2)

MEDUSA = MedusaConfig(16, 1, V, num_heads=DRAFTS)
HYDRA = HydraConfig(16, 1, V, num_heads=DRAFTS)
DFLASH = BlockConfig(CONFIG, 16, 1, (0, 1), mask_token=V - 1, block_size=DRAFTS + 1)
DSPARK = dataclasses.replace(
    DFLASH, block_size=DRAFTS, from_root=True, markov_rank=3, markov="rnn", confidence=True, confidence_markov=True
)
DFLASH2 = dataclasses.replace(DFLASH, markov_rank=3, markov="selector", candidates=2, conv_taps=2, conv_group=4)
XPRESS = dataclasses.replace(DFLASH, refiner_rank=3, refiner_size=4, refiner_passes=1)
ASSISTANT = AssistantConfig(
    CONFIG.replace(mixers=(dataclasses.replace(CONFIG.layer(0).mixer, reads=0),)), 16, 1, clusters=5, read_clusters=3
)
EAGLE = EagleConfig(CONFIG, target_layers=1)
EAGLE3 = Eagle3Config(CONFIG, 16, 1, taps=(0, 1), draft_vocab_size=V - 1)
MTP = MtpConfig(CONFIG, target_layers=1)

SEEDS = {"hydra": 3, "block": 3, "eagle": 3, "eagle3": 3}
"""A number to add to the seed of heads of a kind. With it the target accepts at least one draft in ten."""

ALL_CHAIN_RULES = (
    "block",
    "rejection",
    "recursive_rejection",
    "multi_step",
    "k_seq",
    "traversal",
    "greedy_block",
    "sample_and_walk",
)

METHODS: dict[str, tuple[Drafter, tuple[str, ...]]] = {
    "none": (Plain(), ("sample_and_walk",)),
    "ngram": (Ngram(DRAFTS), ("sample_and_walk",)),
    "suffix": (Suffix(DRAFTS, max_match=2), ("sample_and_walk",)),
    "token_recycling": (TokenRecycling(BUSHY, 2), ("sample_and_walk",)),
    "lookahead": (Lookahead(window=3, ngram_size=3, guesses=3, pool_from_prompt=True), ("sample_and_walk",)),
    "draft_model": (DraftModel(DRAFTS), ALL_CHAIN_RULES),
    "tree": (DraftTree(BUSHY), ("recursive_rejection", "traversal")),
    "tree, independent siblings": (DraftTree(BUSHY, "independent"), ("multi_step", "k_seq", "greedy_block")),
    "tree, likeliest siblings": (DraftTree(BUSHY, "top_k"), ("sample_and_walk",)),
    "dynamic_tree": (DynamicTree(**BEST_FIRST), ("sample_and_walk",)),
    "early_exit": (EarlyExit(1, DRAFTS, draft_confidence=0.6), ("block",)),
    "layer_skip": (LayerSkip((), (0,), DRAFTS, draft_confidence=0.6), ("block",)),
    "quantized_self": (QuantizedSelf("int8", DRAFTS), ("block",)),
    "partial_cache": (PartialCache(**PART), ("block",)),
    "partial_cascade": (PartialCascade(**PART, cache_chunks=1, inner_speculative_tokens=2), ("block",)),
    "merged": (Merged(DRAFTS), ("multi_step",)),
    "cascade": (Cascade(DRAFTS, inner_speculative_tokens=2), ("block",)),
    "medusa": (Medusa(BRANCHED, head=MEDUSA), ("sample_and_walk",)),
    "hydra": (Hydra(BRANCHED, head=HYDRA), ("sample_and_walk",)),
    "hydra, prefix layer": (Hydra(BRANCHED, head=dataclasses.replace(HYDRA, layers=CONFIG)), ("sample_and_walk",)),
    "block": (BlockDrafter(head=DFLASH), ("sample_and_walk",)),
    "block, tree": (BlockDrafter(tree_nodes=4, tree_top_k=2, head=DFLASH), ("sample_and_walk",)),
    "block, drawn": (BlockDrafter(draft_confidence=0.4, head=DSPARK), ("block", "rejection")),
    "block, path selector": (BlockDrafter(head=DFLASH2), ("block",)),
    "block, refined": (BlockDrafter(head=XPRESS), ("sample_and_walk",)),
    "assistant": (AssistantDrafter(DRAFTS, head=ASSISTANT), ("block",)),
    "switch": (Switch((Ngram(1), DraftModel(DRAFTS), DraftModel(DRAFTS)), draft_cost=0.2), ("block",)),
    "auto": (Rotating(arms=ARMS), ("walk_if_seeded",)),
    "auto, head": (Rotating(arms=ARMS, head=EAGLE3), ("walk_if_seeded",)),
    "draft_model, confidence": (
        Adaptive(DraftModel(DRAFTS), "confidence", draft_confidence=0.7),
        ("block",),
    ),
    "draft_model, ema": (Adaptive(DraftModel(DRAFTS), "ema", draft_cost=0.33), ("block",)),
    "eagle": (Eagle(BUSHY, head=EAGLE), ("recursive_rejection",)),
    "eagle2": (Eagle2(**BEST_FIRST, head=EAGLE), ("sample_and_walk",)),
    "eagle3": (Eagle3(**BEST_FIRST, head=EAGLE3), ("sample_and_walk",)),
    "eagle3, one pass": (Eagle3(**BEST_FIRST, head=dataclasses.replace(EAGLE3, mask_token=0)), ("sample_and_walk",)),
    "mtp": (Mtp(DRAFTS, head=MTP), ("block",)),
    "mtp, two modules": (Mtp(DRAFTS, head=dataclasses.replace(MTP, modules=2)), ("block",)),
}
"""For each setting its drafter and the rules to test it with, the default rule first."""

PAIRS = [(method, rule) for method, (_, rules) in METHODS.items() for rule in rules]
"""Every setting with each of its rules."""


def with_own(drafter: Drafter, **options) -> Drafter:
    """The drafter with options of the draft: in the drafter that draws, also within another drafter."""
    if isinstance(drafter, Adaptive):
        return dataclasses.replace(drafter, drafter=with_own(drafter.drafter, **options))
    if isinstance(drafter, Switch):
        return dataclasses.replace(drafter, drafters=tuple(with_own(member, **options) for member in drafter.drafters))
    own = {f"draft_{name}": value for name, value in options.items()}
    return dataclasses.replace(drafter, **own) if isinstance(drafter, Drawing) else drafter


@cache
def random_model(seed: int, kind: str = "dense") -> Decoder:
    """A model of a class of ``TARGETS``. Number 0 is the target; the others are drafts."""
    return tiny_model(seed, sharpness=15, config=TARGETS[kind])


@cache
def target_of(drafter: Drafter, kind: str = "dense") -> Decoder:
    """``random_model(0, kind)``. For an early exit, the same layer above a layer that changes nothing: the law is the same."""
    below = random_model(0, kind)
    if not isinstance(drafter, EarlyExit):
        return below
    deeper = tiny_model(1, config=CONFIG, num_layers=2)
    deeper.embed, deeper.layers[1], deeper.norm, deeper.head = below.embed, below.layers[0], below.norm, below.head
    deeper.layers[0].mixer.out[...] *= 0
    deeper.layers[0].mlp.down[...] *= 0
    return deeper


def draft_of(drafter: Drafter, seed: int):
    """A random draft that suits the drafter: a head, one model or several, or a model that nobody reads."""
    if isinstance(drafter.needs, TrainedHead):
        return _random_head(drafter.head, seed)
    if isinstance(drafter, Auto) and drafter.head is not None:
        return (_random_head(drafter.head, seed),)
    if isinstance(drafter.needs, Models) and not drafter.needs.is_one:
        return tuple(random_model(seed + i) for i in range(max(drafter.needs.least, 1)))
    return random_model(seed)


@cache
def _random_head(config, seed: int):
    """A random head. The draft vocabulary of an EAGLE-3 head lacks token 1, which prompts and constraints are full of."""
    head = random_head(KINDS[config.kind].module, config, seed + SEEDS.get(config.kind, 0), 0.3)
    if config.kind == "eagle3":
        head.draft_to_target[...] = jnp.array([0, 1, 1, 1], jnp.int32)
    return head
