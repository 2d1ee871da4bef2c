"""Finds the best tree of a trained head on a text.

The head reads the text and ranks the text's own next tokens. The value of a path of ranks is its
frequency over the places of the text. Every beginning of a path is at least as frequent as the
path, so the most frequent paths form a tree. Medusa (Cai et al. 2024, section 2.3.3) multiplies the
accuracies of single heads instead.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.tree import Topology, expansion, from_paths
from ...heads import Head
from ...heads.training_forward import read_target, unroll
from ...models.decoder import Decoder
from ...text.result import Result
from .acceptance import RANKS, Acceptance
from .cost import Cost
from .tree_search import Choice

_PLACES = 64
"""Texts are padded to a multiple of this length, so that few programs are compiled."""


def ranks_of(
    target: LanguageModel, head: Head, texts: Sequence[Result], *, depth: int, ranks: int = RANKS
) -> np.ndarray:
    """The ranks of the texts' own tokens among the head's predictions: int [places, depth].

    Each place of the target's texts serves as the root of a round. Entry d is the rank of the token
    d + 1 places after the root, given the true tokens between. It is ``ranks`` where the token is
    not among the ``ranks`` likeliest. The head reads a text once, because its predictions depend on
    the text alone.
    """
    longest = max(len(text.prompt_token_ids) + len(text.token_ids) for text in texts)
    size = -(-longest // _PLACES) * _PLACES + depth
    parts = []
    for text in texts:
        ids = [*text.prompt_token_ids, *text.token_ids]
        tokens = jnp.asarray(np.pad(ids, (0, size - len(ids))), jnp.int32)[None]
        rows = np.asarray(_ranks(target.model, head.module, tokens, depth=depth))
        # The root of row i is token i + 1. The first root is the last token of the prompt.
        parts.append(rows[max(len(text.prompt_token_ids) - 2, 0) : max(len(ids) - 1 - depth, 0)])
    return np.minimum(np.concatenate(parts), ranks)


def count_acceptance(ranks: np.ndarray, most: int = RANKS) -> Acceptance:
    """The ``Acceptance`` of children by rank, from ``ranks_of``.

    A place counts at depth d if the d tokens before it were all among the ``most`` likeliest.
    """
    reached = np.cumprod(np.pad(ranks < most, ((0, 0), (1, 0)), constant_values=True), 1)[:, :-1, None].astype(bool)
    rank = np.arange(most)
    tried = (reached & (ranks[..., None] >= rank)).sum(0).astype(np.float64)
    accepted = (reached & (ranks[..., None] == rank)).sum(0).astype(np.float64)
    return Acceptance(tried[0], accepted[0], tried, accepted)


def search(ranks: np.ndarray, cost: Cost, max_nodes: int, most: int = RANKS) -> tuple[list[Choice], list[Choice]]:
    """The fastest tree of each number of nodes from 2 on, and the chain of each length.

    Args:
      ranks: int [places, D], see ``ranks_of``.
      max_nodes: the number of nodes of the largest tree, the root included.
      most: the number of ranks that count.
    """
    counts = Counter(
        tuple(place[:d]) for place in ranks.tolist() for d in range(1, ranks.shape[1] + 1) if place[d - 1] < most
    )
    counts = Counter({path: n for path, n in counts.items() if max(path) < most})
    order = sorted(counts, key=lambda path: (-counts[path], len(path), path))  # A path follows its own beginnings.

    def choice(tree: Topology) -> Choice:
        tokens = 1 + sum(counts[path] for path in tree.paths[1:]) / len(ranks)
        seconds = cost.of_round(tree)
        return Choice(tree, tokens, seconds, tokens / seconds * cost.verify(1))

    by_depth = [[path for path in order if len(path) <= depth] for depth in range(1, ranks.shape[1] + 1)]
    trees = [
        [from_paths(paths[: nodes - 1]) for paths in by_depth if len(paths) >= nodes - 1]
        for nodes in range(2, max_nodes + 1)
    ]
    fastest = [max(map(choice, candidates), key=lambda c: c.speedup) for candidates in trees if candidates]
    return fastest, [choice(expansion((1,) * depth)) for depth in range(1, min(ranks.shape[1], max_nodes - 1) + 1)]


@partial(jax.jit, static_argnames="depth")
def _ranks(target: Decoder, head, tokens: jax.Array, *, depth: int) -> jax.Array:
    """The ranks int32 [N, depth] of a text's own tokens, with N = S - depth - 1.

    The root of row i is token i + 1 of ``tokens`` int32 [1, S].
    """
    N = tokens.shape[1] - depth - 1
    features = head.fuse(target, read_target(target, tokens[:, :-1], head.config.taps).taps)[:, :N]
    if head.config.num_heads:
        ((_, hidden),) = unroll(head, target, features, tokens[:, 1:], 1)

        def tokens_between(d: int) -> jax.Array | None:
            """The tokens [1, N, d + 1] that head ``d`` reads from the root on, or None."""
            if not head.config.reads_tokens:
                return None
            return jnp.stack([tokens[:, j : j + N] for j in range(1, d + 2)], -1)

        predicted = [head.logits(target, d, hidden, tokens_between(d)) for d in range(depth)]
    else:
        steps = unroll(head, target, features, tokens[:, 1:], depth)
        predicted = [module.logits(target, hidden) for module, hidden in steps]
    return jnp.stack([_rank(scores[0], tokens[0, d + 2 :][:N]) for d, scores in enumerate(predicted)], 1)


def _rank(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    """Int32 [N]: the rank of ``tokens`` [N] by ``scores`` [N, V].

    Of equal scores the lower token comes first.
    """
    own = jnp.take_along_axis(scores, tokens[:, None], 1)
    before = (scores > own) | ((scores == own) & (jnp.arange(scores.shape[1]) < tokens[:, None]))
    return before.sum(1)
