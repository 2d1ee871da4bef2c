"""The proposal of method auto where a model may draft: its tokens, or looked-up ones."""

import jax
import jax.numpy as jnp

from ...core.cache import Rows
from ...core.conditional import run_if
from ...core.state import DecodeState
from ...core.tree import Tree, chain
from ...core.verdict import q_of
from ...loop.decode import round_keys
from ...models.base import Model
from .resting import RestingModel
from .state import AutoState, Draft, Parameters, Prepared


def draft_keys(state: DecodeState, length: int) -> jax.Array:
    """Keys [B, L] of the model's draws. A row with a seed has those of the target's samples."""
    propose, accept = round_keys(state, length)
    own = jax.vmap(lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(length)))(propose)
    return own if state.request.seeded is None else jnp.where(state.request.seeded[:, None], accept, own)


def run_draft(model: RestingModel, target: Model, draft: Parameters, state: DecodeState, *, is_tree: bool) -> AutoState:
    """The method's state with the model's tokens, if the arm wants them."""
    own = state.drafter
    most = {} if is_tree else {"most": own.prepared.count}  # no draw chooses a tree's tokens
    keys = state.request.keys if is_tree else draft_keys(state, model.grower.depth)

    def propose(carry):
        before = state.replace(drafter=carry[0])
        tree, drafted = model.propose(target, draft.models[0], before, keys, **most)
        return drafted.replace(rows=Rows(()), row_of=None), Draft(tree, drafted.rows, drafted.row_of)

    shape = jax.eval_shape(propose, (own.models[0], None))[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    after, drafted = run_if(own.prepared.ran, propose, (own.models[0], nothing))
    return own.replace(models=(after,), prepared=own.prepared.replace(draft=drafted))


def select(prepared: Prepared, tokens: jax.Array, valid: jax.Array, vocab_size: int, *, is_tree: bool) -> Tree:
    """The model's chain or tree for the rows that take it, and looked-up tokens for the others.

    ``tokens`` and ``valid``, [B, D + 1], are the chains of looked-up tokens with the roots.
    """
    assert prepared.draft is not None  # the model may draft in this round
    drafted = prepared.draft.tree
    rows = lambda leaf: prepared.from_model.reshape(-1, *(1,) * (leaf.ndim - 1))
    pick = lambda a, b: jnp.where(rows(a), a[:, : b.shape[1]], b)
    if is_tree:
        looked_up = jax.vmap(chain)(tokens, None, valid)
        room = (0, 0), (0, drafted.tokens.shape[1] - tokens.shape[1])
        return jax.tree.map(pick, drafted, jax.tree.map(lambda leaf: jnp.pad(leaf, room), looked_up))
    # A token that was looked up counts as drawn from a one-hot q, see ``Switch``.
    one_hot = jax.nn.one_hot(jnp.pad(tokens[:, 1:], ((0, 0), (0, 1))), vocab_size)
    q = pick(q_of(drafted), one_hot.at[:, -1].set(0))
    return jax.vmap(chain)(pick(drafted.tokens, tokens), q, pick(drafted.valid, valid))
