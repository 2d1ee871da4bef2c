"""Learns which parts of a model to keep (Sheared LLaMA, Xia et al., 2310.06694, section 2.1).

Each part has a hard-concrete mask (Louizos et al., 1712.01312). Adam lowers the divergence of the
masked model from the model, while the multipliers of a Lagrangian raise the price of sizes that
differ from the goal. The model's weights stay as they are; healing trains them afterwards. The
paper trains both at once, with the loss of a language model.
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

_BETA = 2 / 3
"""The temperature of the hard-concrete distribution."""

_LEFT, _RIGHT = -0.1, 1.1
"""The interval to which the distribution is stretched."""

_START = 3.0
"""The log alpha with which training begins: 0.99 of the masks are above zero."""

_RATE = 0.05
"""Adam's learning rate of masks and multipliers."""

_WINDOWS = 8
"""The number of windows in a step, each with masks of its own."""


class _Prices(NamedTuple):
    """The multipliers of the Lagrangian, for each kind of part.

    The price of a kind is ``first`` (s - t) + ``second`` (s - t)^2. s and t are the expected and
    the wanted share of parts.
    """

    first: Masks
    second: Masks


def learn_masks(
    model: Decoder, measured: Importance, windows: np.ndarray, goal: ModelConfig, *, steps: int = 400, seed: int = 0
) -> Importance:
    """The importance of parts by learned masks: the logarithm of alpha.

    It is high for parts that stay. Kinds of parts of which ``goal`` keeps all have no masks, and
    stay as ``measured``.

    Args:
      measured: the importance by activations.
      windows: the texts, int32 [N, S].
      goal: the sizes to learn masks for.
      steps: the number of steps. The goal is reached gradually over the first half.
      seed: of the masks and of the windows in a step.
    """
    shares = Masks(*(new / old for new, old in zip(sizes_of(goal), sizes_of(model.config))))
    log_alpha = jax.jit(partial(_learn, shares=shares, steps=steps))(model, jnp.asarray(windows), jax.random.key(seed))
    alphas = {name: np.asarray(value) for name, value in log_alpha._asdict().items() if getattr(shares, name) < 1}
    return dataclasses.replace(measured, **alphas)


def draw(log_alpha: jax.Array, key: jax.Array) -> jax.Array:
    """Masks from the hard-concrete distribution, in [0, 1] and often exactly 0 or 1."""
    u = jax.random.uniform(key, log_alpha.shape, minval=1e-6, maxval=1 - 1e-6)
    s = jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + log_alpha) / _BETA)
    return jnp.clip(s * (_RIGHT - _LEFT) + _LEFT, 0, 1)


def chance_above_zero(log_alpha: jax.Array) -> jax.Array:
    """The probability that ``draw`` returns a mask above 0."""
    return jax.nn.sigmoid(log_alpha - _BETA * math.log(-_LEFT / _RIGHT))


def _learn(model: Decoder, windows: jax.Array, seed: jax.Array, *, shares: Masks, steps: int) -> Masks:
    """The log alpha of all masks after training. Kinds whose share is 1 are not masked."""
    # 1. The variables: log alpha and the multipliers.
    keep_all = whole(model.config)
    log_alpha = jax.tree.map(lambda ones: _START * ones, keep_all)

    # Heads and units have a share in each layer, as in the paper.
    def share(log_alpha: Masks) -> Masks:
        return jax.tree.map(lambda x: chance_above_zero(x).mean(-1), log_alpha)

    zeros = jax.tree.map(jnp.zeros_like, share(log_alpha))
    adam = optax.adam(_RATE)
    variables = (log_alpha, _Prices(zeros, zeros))

    # 2. The Lagrangian.

    def masked(log_alpha, tokens, key):
        """The divergence on one window, with masks of its own."""
        drawn = zip(keep_all, shares, log_alpha, jax.random.split(key, len(shares)))
        masks = [ones if goal == 1 else draw(logs, key) for ones, goal, logs, key in drawn]
        return _divergence(model, tokens[None], Masks(*masks))

    def lagrangian(variables, tokens, keys, progress):
        log_alpha, prices = variables
        price = 0.0
        for share_now, goal, first, second in zip(share(log_alpha), shares, *prices):
            if goal < 1:
                excess = share_now - (1 + progress * (goal - 1))
                price += (first * excess + second * excess**2).sum()
        return jax.vmap(masked, (None, 0, 0))(log_alpha, tokens, keys).mean() + price

    # 3. The steps. Masks minimise the Lagrangian, multipliers maximise it.
    def step(carry, i):
        variables, state = carry
        text_key, mask_key = jax.random.split(jax.random.fold_in(seed, i))
        tokens = windows[jax.random.randint(text_key, (_WINDOWS,), 0, len(windows))]
        keys = jax.random.split(mask_key, _WINDOWS)
        slope = jax.grad(lagrangian)(variables, tokens, keys, jnp.minimum(2 * i / steps, 1.0))
        descent = (slope[0], jax.tree.map(jnp.negative, slope[1]))
        updates, state = adam.update(descent, state)
        further: Any = optax.apply_updates(variables, updates)
        return (further, state), None

    (variables, _), _ = lax.scan(step, (variables, adam.init(variables)), jnp.arange(steps))
    return variables[0]


def _divergence(model: Decoder, tokens: jax.Array, masks: Masks) -> jax.Array:
    """The mean forward KL from the model's distribution to that of the masked model."""

    def hidden(masks: Masks) -> jax.Array:
        return model.last_norm(passages(model, tokens, masks)[-1].after)

    def kl(p: jax.Array, q: jax.Array) -> jax.Array:
        return forward_kl(model.logits(p), model.logits(q))

    full = lax.stop_gradient(hidden(whole(model.config)))
    return map_pieces(kl, model.config.vocab_size, full, hidden(masks)).mean()
