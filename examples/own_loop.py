"""The loop in your own JAX project: ``prefill`` and ``step`` under your own ``jit``.

Run it with ``python examples/own_loop.py``.
"""

from functools import partial

import jax
import jax.numpy as jnp

import specjax
from specjax.core.tree import Tree
from specjax.core.verdict import Verdict
from specjax.drafters import DraftModel


def first_two(p: jax.Array, tree: Tree, key: jax.Array) -> Verdict:
    """Your own acceptance rule for one row: greedy, and at most two drafts of a chain.

    ``p``: float32 [N, V], the target's distribution after each node. ``key``: typed keys [P], which
    a greedy rule does not use.
    """
    wanted = jnp.argmax(p, -1)
    matches = jnp.cumprod(tree.tokens[1:] == wanted[:-1])[:2].sum()
    path = jnp.minimum(jnp.arange(tree.max_depth + 1), matches)
    return Verdict(path=path, length=matches + 1, bonus=wanted[matches])


def main() -> list[list[int]]:
    target, draft = specjax.load("tiny-python").model, specjax.load("tiny-python-draft").model
    drafter, prompts = DraftModel(num_speculative_tokens=4), [[284, 511, 7], [262, 1031]]
    # Sampling at top_k=1 is greedy too, but lets the rule run: a batch in which all rows have
    # temperature 0 takes the greedy walk instead of the rule.
    requests = specjax.make_requests(prompts, drafter=drafter, max_new_tokens=24, temperature=1.0, top_k=1, seed=[1, 2])
    state = jax.jit(partial(specjax.prefill, drafter=drafter))(target, draft, requests)
    step = jax.jit(partial(specjax.step, drafter=drafter, rule=first_two), donate_argnums=2)
    while not bool(state.done.all()):
        state = step(target, draft, state)
    rows = zip(state.tokens.tolist(), state.prompt_length.tolist(), state.length.tolist())
    return [tokens[prompt:length] for tokens, prompt, length in rows]


if __name__ == "__main__":
    print(*main(), sep="\n")
