"""Learns which parts of a model to keep (Sheared LLaMA, Xia et al., 2310.06694, section 2.1).

Each part has a hard-concrete mask (Louizos et al., 1712.01312). Adam lowers the divergence of the
masked model from the model, while the multipliers of a Lagrangian raise the price of sizes that
differ from the goal. The model's weights stay as they are; healing trains them afterwards. The paper
trains both at once, with the loss of a language model.
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...training.losses import forward_kl, map_pieces
from .importance import Importance, Masks, passages, sizes_of, whole

_BETA, _LEFT, _RIGHT = 2 / 3, -0.1, 1.1
"""The temperature of the hard-concrete distribution, and the interval that it is stretched to."""

_START = 3.0
"""The log alpha with which training begins: 0.99 of the masks are above zero."""

_RATE = 0.05
"""Adam's learning rate of masks and multipliers."""

_WINDOWS = 8
"""The number of windows in a step, each with masks of its own."""


class _Prices(NamedTuple):
    """The multipliers of the Lagrangian, for each kind of part: ``first`` (s - t) + ``second`` (s - t)^2.

    s and t are the expected and the wanted share of parts.
    """

    first: Masks
    second: Masks


def learn_masks(
    model: Decoder, measured: Importance, windows: np.ndarray, goal: ModelConfig, *, steps: int = 400, seed: int = 0
) -> Importance:
    """The importance of parts by learned masks: the logarithm of alpha, which is high for parts that stay.

    Kinds of parts of which ``goal`` keeps all have no masks, and stay as ``measured``.

    Args:
      measured: the importance by activations.
      windows: the texts, int32 [N, S].
      goal: the sizes to learn masks for.
      steps: the number of steps. The goal is reached gradually over the first half.
      seed: of the masks and of the windows in a step.
    """
    shares = Masks(*(kept / of for kept, of in zip(sizes_of(goal), sizes_of(model.config))))
    log_alpha = jax.jit(partial(_learn, shares=shares, steps=steps))(model, jnp.asarray(windows), jax.random.key(seed))
    learned = {name: np.asarray(value) for name, value in log_alpha._asdict().items() if getattr(shares, name) < 1}
    return dataclasses.replace(measured, **learned)


def draw(log_alpha: jax.Array, key: jax.Array) -> jax.Array:
    """Masks from the hard-concrete distribution, in [0, 1] and often exactly 0 or 1."""
    u = jax.random.uniform(key, log_alpha.shape, minval=1e-6, maxval=1 - 1e-6)
    s = jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + log_alpha) / _BETA)
    return jnp.clip(s * (_RIGHT - _LEFT) + _LEFT, 0, 1)


def chance_above_zero(log_alpha: jax.Array) -> jax.Array:
    """The probability that ``draw`` gives a mask above 0."""
    return jax.nn.sigmoid(log_alpha - _BETA * math.log(-_LEFT / _RIGHT))


def _learn(model: Decoder, windows: jax.Array, seed: jax.Array, *, shares: Masks, steps: int) -> Masks:
    """The log alpha of all masks after training. Kinds whose share is 1 are not masked."""
    keep_all = whole(model.config)
    log_alpha = jax.tree.map(lambda ones: _START * ones, keep_all)
    # Heads and units have a share in each layer, as in the paper.
    share = lambda log_alpha: jax.tree.map(lambda x: chance_above_zero(x).mean(-1), log_alpha)
    zeros = jax.tree.map(jnp.zeros_like, share(log_alpha))
    adam = optax.adam(_RATE)
    trained = log_alpha, _Prices(zeros, zeros)

    def masked(log_alpha, tokens, key):
        """The divergence on one window, with masks of its own."""
        drawn = zip(keep_all, shares, log_alpha, jax.random.split(key, len(shares)))
        masks = [ones if wanted == 1 else draw(logs, key) for ones, wanted, logs, key in drawn]
        return _divergence(model, tokens[None], Masks(*masks))

    def lagrangian(trained, tokens, keys, progress):
        (log_alpha, prices), price = trained, 0.0
        for got, wanted, first, second in zip(share(log_alpha), shares, *prices):
            if wanted < 1:
                missed = got - (1 + progress * (wanted - 1))
                price += (first * missed + second * missed**2).sum()
        return jax.vmap(masked, (None, 0, 0))(log_alpha, tokens, keys).mean() + price

    def step(carry, i):
        trained, state = carry
        text_key, mask_key = jax.random.split(jax.random.fold_in(seed, i))
        tokens = windows[jax.random.randint(text_key, (_WINDOWS,), 0, len(windows))]
        keys = jax.random.split(mask_key, _WINDOWS)
        slope = jax.grad(lagrangian)(trained, tokens, keys, jnp.minimum(2 * i / steps, 1.0))
        ascent = slope[0], jax.tree.map(jnp.negative, slope[1])  # the multipliers maximise
        updates, state = adam.update(ascent, state)
        further: Any = optax.apply_updates(trained, updates)
        return (further, state), None

    (trained, _), _ = lax.scan(step, (trained, adam.init(trained)), jnp.arange(steps))
    return trained[0]


def _divergence(model: Decoder, tokens: jax.Array, masks: Masks) -> jax.Array:
    """The mean forward KL from the model's distribution to that of the masked model."""
    hidden = lambda masks: model.last_norm(passages(model, tokens, masks)[-1].after)
    kl = lambda p, q: forward_kl(model.logits(p), model.logits(q))
    full = lax.stop_gradient(hidden(whole(model.config)))
    return map_pieces(kl, model.config.vocab_size, full, hidden(masks)).mean()
