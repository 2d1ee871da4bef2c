"""EAGLE, EAGLE-2 and EAGLE-3: a head continues the target's features and grows a tree."""

import dataclasses
from functools import cached_property, partial

import jax
import jax.numpy as jnp

from ..core.selection import argmax
from ..core.tree import Topology, as_topology, chain, from_paths, node_count
from ..errors import RequestError
from ..loop.drafter import Drafter, TrainedHead
from ..loop.wrapper import Wrapper
from .dynamic_tree import DynamicTree
from .mtp import Mtp
from .parts.best_first import best_first, check_best_first
from .parts.draft_sampling import Drawing
from .parts.feature_reader import FeatureReader
from .parts.head_drafter import HeadDrafter
from .parts.readers import Reading
from .tree import DraftTree

PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
"""The paths of the tree mc_sim_7b_63 in the published code; each digit is a rank."""


@dataclasses.dataclass(frozen=True)
class Eagle(HeadDrafter, DraftTree):
    """A tree of fixed shape from an EAGLE-1 head (Li et al. 2024, 2401.15077).

    Attributes:
      tree: the shape, in any form that ``tree.as_topology`` takes; by default the published one of
        25 nodes and depth 5.
      siblings: as in ``DraftTree``.
    """

    tree: Topology = from_paths(tuple(map(int, path)) for path in PUBLISHED.split())
    needs = TrainedHead("eagle")
    with_encoder = False
    reader = FeatureReader()


@dataclasses.dataclass(frozen=True)
class Eagle2(HeadDrafter, DynamicTree):
    """The most probable tree from an EAGLE-1 head (EAGLE-2, Li et al. 2024, 2406.16858).

    Attributes:
      tree_nodes, tree_depth, tree_top_k, tree_temperature: as in ``DynamicTree``. The defaults are
        the paper's, 60 nodes with the root.
    """

    tree_nodes: int = 59
    tree_depth: int = 6
    tree_top_k: int = 10
    needs = TrainedHead("eagle")
    with_encoder = False
    reader = FeatureReader()


@dataclasses.dataclass(frozen=True)
class OnePass(Reading):
    """Proposes the likeliest token of each place, or with ``nodes`` the likeliest sequences.

    The pass reads the first rows of the round, which are pairs of features and tokens, and then a
    mask for each place but the first. A mask sees the pairs and the masks before it.

    Attributes:
      places: the number of tokens that one pass predicts.
      nodes, width: see ``best_first``; 0 nodes make a chain.
      temperature: the temperature of the scores by which nodes are chosen.
    """

    places: int
    nodes: int = 0
    width: int = 1
    temperature: float = 1.0
    reader = FeatureReader()

    @property
    def depth(self) -> int:
        return self.places

    def propose(self, target, draft, state, key):
        first = self.reader.pairs(state)
        (B, R) = first.seen.shape
        M = self.depth - 1
        (token, feature) = draft.mask(target)
        after = lambda known, masks: jnp.concatenate([known, jnp.broadcast_to(masks, (B, M, *known.shape[2:]))], 1)
        mask = jnp.tril(jnp.ones((R + M, R + M), bool)) & after(first.seen, True)[:, None]
        positions = after(first.positions, first.root[:, None] + 1 + jnp.arange(M))
        out = draft(target, after(first.tokens, token), after(first.states, feature), positions, mask, first.cache)
        root = jnp.take_along_axis(out.hidden, first.seen.sum(-1)[:, None, None] - 1, 1)
        scores = draft.logits(target, jnp.concatenate([root, out.hidden[:, R:]], 1))
        return self._tree(state.root, scores), state.drafter.replace(rows=first.rows.replace(layers=out.rows))

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.reader.commit(target, draft, state, verdict.path, scored, verdict)

    def _tree(self, root, scores):
        if self.nodes:
            grow = partial(best_first, nodes=self.nodes, width=self.width)
            return jax.vmap(grow)(root, jax.nn.log_softmax(scores / self.temperature))
        tokens = jnp.concatenate([root[:, None], argmax(scores)], 1)
        return jax.vmap(chain)(tokens)


@dataclasses.dataclass(frozen=True)
class Eagle3(Drawing, HeadDrafter, Wrapper):
    """Drafts from an EAGLE-3 head (Li et al. 2025, 2503.01840) or its version 3.1.

    By default it drafts the most probable tree, as EAGLE-2 does. With ``tree`` it drafts a tree of
    fixed shape, with ``num_speculative_tokens`` a chain. A P-EAGLE head drafts the most probable
    tree or a chain in one pass.

    Attributes:
      tree_nodes, tree_depth, tree_top_k, tree_temperature: as in ``Eagle2``.
      tree, siblings: as in ``DraftTree``.
      num_speculative_tokens: as in ``DraftModel``.
    """

    tree_nodes: int = 59
    tree_depth: int = 6
    tree_top_k: int = 10
    tree_temperature: float = 1.0
    tree: Topology | None = None
    siblings: str = "without_replacement"
    num_speculative_tokens: int | None = None
    needs = TrainedHead("eagle3")

    def __post_init__(self):
        if self.tree is not None:
            object.__setattr__(self, "tree", as_topology(self.tree))
        super().__post_init__()
        _ = self.drafter  # raises RequestError if the options do not fit

    @cached_property
    def drafter(self) -> Drafter:
        """The method that these options stand for. Raises RequestError if they do not fit."""
        if self.head.mask_token is not None:
            return self._one_pass()
        if self.tree is not None:
            return Eagle(self.tree, self.siblings, head=self.head, **self.draft_options)
        if self.num_speculative_tokens is not None:
            return Mtp(self.num_speculative_tokens, head=self.head, **self.draft_options)
        nodes, depth, top_k, temperature = self.tree_nodes, self.tree_depth, self.tree_top_k, self.tree_temperature
        return Eagle2(nodes, depth, top_k, temperature, head=self.head)

    def _one_pass(self) -> OnePass:
        if self.tree is not None:
            raise RequestError(
                "tree gives a shape, and a P-EAGLE head drafts chains and probable trees; leave tree out"
            )
        if self.num_speculative_tokens is not None:
            return OnePass(node_count("num_speculative_tokens", self.num_speculative_tokens))
        for name in ("tree_nodes", "tree_depth", "tree_top_k"):
            node_count(name, getattr(self, name))
        check_best_first(self.tree_nodes, self.tree_top_k, self.tree_depth, self.head.draft_vocab_size)
        return OnePass(self.tree_depth, self.tree_nodes, self.tree_top_k, self.tree_temperature)
