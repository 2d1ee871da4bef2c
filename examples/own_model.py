"""Your own model: a transformer in plain JAX, decoded with n-grams and with a draft.

It follows the protocol ``specjax.Model``: a pytree with ``config``, a call that scores nodes after
the cached tokens, and ``logits``.

    python examples/own_model.py
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import specjax
from specjax.drafters import DraftModel, Ngram, Plain
from specjax.models.base import Output
from specjax.rules.acceptance import resolve


@dataclass(frozen=True)
class Config:
    """The fields that specjax reads: vocabulary, width, shape of the cache, longest context."""

    vocab_size: int = 97
    hidden_size: int = 32
    num_layers: int = 2
    num_kv_heads: int = 4
    head_dim: int = 8
    context: int = 512


@partial(jax.tree_util.register_dataclass, data_fields=["params"], meta_fields=["config"])
@dataclass(frozen=True)
class Gpt:
    """A GPT with learned positions. ``params`` is a dict of arrays.

    Shapes: B rows, N nodes, T cached tokens, M uncommitted rows.
    """

    params: dict[str, Any]
    config: Config = Config()

    @staticmethod
    def random(key: jax.Array, config: Config = Config()) -> "Gpt":
        E, V, T = config.hidden_size, config.vocab_size, config.context
        shapes = {"embed": (V, E), "place": (T, E)}
        for i in range(config.num_layers):
            shapes |= {f"qkv{i}": (E, 3 * E), f"out{i}": (E, E), f"up{i}": (E, 4 * E), f"down{i}": (4 * E, E)}
        keys = jax.random.split(key, len(shapes))
        params = {name: 0.25 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items())}
        return Gpt(params, config)

    def __call__(self, tokens, positions, mask, cache, *, rows=None, taps=(), **ignored) -> Output:
        w, (B, N) = self.params, tokens.shape
        x, new_rows, tapped = w["embed"][tokens] + w["place"][positions], [], {}
        for i in range(self.config.num_layers):
            tapped[i] = x
            heads = (_norm(x) @ w[f"qkv{i}"]).reshape(B, N, 3, self.config.num_kv_heads, self.config.head_dim)
            q, k, v = heads.transpose(2, 0, 3, 1, 4)  # each [B, K, N, D]
            if rows is not None:  # uncommitted rows of earlier calls come before the nodes' own
                k, v = (jnp.concatenate([old, new], 2) for old, new in zip(rows[i], (k, v)))
            x = x + self._attend(q, cache.layers[i], cache.length, k, v, mask) @ w[f"out{i}"]
            x = x + jax.nn.gelu(_norm(x) @ w[f"up{i}"]) @ w[f"down{i}"]
            new_rows.append((k, v))
        return Output(_norm(x), tuple(new_rows), tuple(tapped.get(i, x) for i in taps))

    def _attend(self, q, past, length, k, v, mask):
        """Each node sees all committed tokens, and the uncommitted rows that the mask allows."""
        (past_k, past_v), (B, K, N, D) = past, q.shape
        committed = jnp.arange(past_k.shape[2]) < length[:, None]
        seen = [
            jnp.broadcast_to(committed[:, None], (B, N, past_k.shape[2])),
            jnp.broadcast_to(mask, (B, N, k.shape[2])),
        ]
        keys, values = jnp.concatenate([past_k, k], 2), jnp.concatenate([past_v, v], 2)
        scores = jnp.einsum("bknd,bktd->bknt", q, keys) * D**-0.5
        scores = jnp.where(jnp.concatenate(seen, 2)[:, None], scores, -1e30)
        out = jnp.einsum("bknt,bktd->bknd", jax.nn.softmax(scores), values)
        return out.transpose(0, 2, 1, 3).reshape(B, N, K * D)

    def logits(self, hidden):
        return (hidden @ self.params["embed"].T).astype(jnp.float32)


def _norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def decode(target: Gpt, draft, drafter, prompts: list[list[int]], **options) -> list[list[int]]:
    """The new tokens of each prompt."""
    requests = specjax.make_requests(prompts, drafter=drafter, **options)
    state = jax.jit(partial(specjax.prefill, drafter=drafter))(target, draft, requests)
    run = jax.jit(partial(specjax.run, drafter=drafter, rule=resolve("auto", drafter.drawn)), donate_argnums=2)
    state = run(target, draft, state, jnp.int32(10_000))
    rows = zip(state.tokens.tolist(), state.prompt_length.tolist(), state.length.tolist())
    return [tokens[prompt:length] for tokens, prompt, length in rows]


def main() -> dict[str, list[list[int]]]:
    target = Gpt.random(jax.random.key(0))
    disturbed = {name: x + 0.02 * jax.random.normal(jax.random.key(1), x.shape) for name, x in target.params.items()}
    draft = dataclasses.replace(target, params=disturbed)
    prompts = [[5, 17, 5, 17, 5], [42]]
    drafters = {"plain": (Plain(), None), "ngram": (Ngram(), None), "draft": (DraftModel(4), draft)}
    return {
        name: decode(target, model, drafter, prompts, max_new_tokens=32) for name, (drafter, model) in drafters.items()
    }


if __name__ == "__main__":
    for name, tokens in main().items():
        print(name, *tokens, sep="\n  ")
