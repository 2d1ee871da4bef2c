"""Multi-token prediction: a chain from modules that were trained with the target.

The method is that of DeepSeek-V3 (2412.19437, section 2.2).
"""

import dataclasses

import jax.numpy as jnp

from ..loop.drafter import TrainedHead
from .parts import chains
from .parts.draft_sampling import DrawnChain
from .parts.feature_reader import FeatureReader
from .parts.head_drafter import HeadDrafter
from .parts.readers import Reading


@dataclasses.dataclass(frozen=True)
class Mtp(DrawnChain, HeadDrafter, Reading):
    """Draws one token from each module of the head, and further tokens from the last module.

    The last module then continues its own hidden states.

    Attributes:
      num_speculative_tokens: as in ``DraftModel``.
    """

    num_speculative_tokens: int = 3
    needs = TrainedHead("mtp")
    reader = FeatureReader()

    def propose(self, target, draft, state, key, most=None):
        """See ``Drafter``.

        ``most``: int32, the number of tokens of this round; by default the length.
        """
        state = self.drafting(state)
        reader = self.reader
        modules = reader.modules(draft, self.depth)
        first = reader.begin(target, draft, state, self.depth)
        layers = ()
        chain = chains.begin(state, self.depth, target.config.vocab_size)
        predict = lambda module, first: reader.logits(target, module, first.hidden)
        chain = chains.draw(chain, predict(modules[0], first), 0, state, key)
        for k, module in enumerate(modules[1:], 1):
            layers += first.rows.layers
            first = reader.follow(target, module, first, chain.tokens[:, k])
            chain = chains.draw(chain, predict(module, first), k, state, key)

        (B, R) = first.seen.shape
        D = len(modules)
        module = modules[-1]
        node = jnp.arange(D, self.depth)  # the drafts that the last module reads; the newest is not read
        at = jnp.concatenate([first.positions, first.root[:, None] + node], 1)

        def read(i, token, carry):
            hidden, rows = carry
            earlier = jnp.broadcast_to(node < i, (B, node.size))
            seen = jnp.concatenate([first.seen, earlier, jnp.ones((B, 1), bool)], 1)[:, None]
            position = (first.root + i)[:, None]
            known = dict(rows=rows.layers, row_positions=jnp.concatenate([at, position], 1))
            out = reader.read(target, module, token, hidden, position, seen, first.cache, **known)
            return reader.logits(target, module, out.hidden), (out.hidden, rows.put(out.rows, 1, R + i - D))

        carry = (first.hidden, first.rows.room(node.size))
        chain, (_, rows), _ = chains.grow(chain, D, read, carry, state, key, most=most)
        rows = rows.replace(layers=layers + rows.layers)
        return chain.tree, state.drafter.replace(cache=first.cache, rows=rows)

    def commit(self, target, draft, state, tree, scored, verdict):
        return self.commit_chain(target, draft, state, scored, verdict)
