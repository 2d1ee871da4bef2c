"""The acceptance rate of the tokens of a part of the target, measured on texts."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from ...checkpoints.load import LanguageModel
from ...core.sampling import SamplingParams, sampling_params, warp
from ...errors import RequestError
from ...loop.prefill import pad_prompts
from ...models.decoder import Decoder, Skip
from ...models.feed_forwards import Experts
from ...models.mixers import MIXERS
from ...text.generator import Prompt

_LONGEST_TEXT = 512
"""The most tokens of a text that are read."""

Rate = Callable[[Skip], float]
"""Returns the acceptance rate of a part that skips sub-layers."""


def agreement_on(target: LanguageModel, texts: Sequence[Prompt], temperature: float) -> Rate:
    """A function that returns the alpha of a part of the target on ``texts``.

    Alpha is the mean of sum(min(p, q)) over the places of the texts. At temperature 0 it is the
    share of places with the same argmax. Every place counts as the first draft of a round: the
    whole target computed its past.

    Raises RequestError for an empty text, and without texts.
    """
    longest = min(_LONGEST_TEXT, target.config.context)
    encoded = [target.tokenizer.encode(text) if isinstance(text, str) else list(text) for text in texts]
    ids = [text[:longest] for text in encoded]
    if not ids or not all(ids):
        raise RequestError("a text is empty, or there are no texts; give texts of at least one token")
    tokens, lengths = pad_prompts(ids, max(map(len, ids)))
    sampling = sampling_params(1, temperature)
    place = np.arange(target.config.num_layers)

    def rate(skip: Skip) -> float:
        keep = [~np.isin(place, layers) for layers in (skip.attention, skip.mlp)]
        return float(_agreement(target.model, jnp.asarray(tokens), lengths, jnp.asarray(keep), sampling))

    return rate


@jax.jit
def _agreement(model: Decoder, tokens, lengths, keep, sampling: SamplingParams) -> jax.Array:
    """The alpha of a part, see ``agreement_on``.

    ``keep`` bool [2, L] marks the attentions and the MLPs that the part has. It is an array, so one
    program serves all parts.
    """
    S = tokens.shape[1]
    place = jnp.arange(S)
    positions = place[None]
    causal = jnp.tril(jnp.ones((S, S), bool))
    itself = jnp.eye(S, dtype=bool)
    own = jnp.concatenate([causal & ~itself, itself], 1)  # earlier rows of the target, and the part's own row
    part = _without(model, keep)

    def agreed(text):
        tokens, length = text
        out = model(tokens[None], positions, causal)
        drafts = part(tokens[None], positions, own, rows=out.rows, row_positions=jnp.tile(positions, 2))
        p, q = (warp(model.logits(hidden).astype(jnp.float32), sampling) for hidden in (out.hidden, drafts.hidden))
        return jnp.where(place < length, jnp.minimum(p, q).sum(-1)[0], 0).sum()

    return lax.map(agreed, (tokens, lengths)).sum() / lengths.sum().astype(jnp.float32)


def _without(model: Decoder, keep: jax.Array) -> Decoder:
    """A copy of the model that skips sub-layers: those outside ``keep`` add zero to the stream."""
    graph, params = nnx.split(model)
    model = nnx.merge(graph, jax.tree.map(lambda x: x, params))  # with its own variables
    for layer, attention, mlp in zip(model.layers, *keep):
        for has_part, part in ((attention, layer.mixer), (mlp, layer.mlp)):
            for param in _outputs(part):
                param[...] = jnp.where(has_part, param[...], 0)
    return model


_OUTPUTS = ("out", "out_bias", "out_proj", "out_proj_bias")
"""The parameters of mixers that scale the output."""


def _outputs(part) -> list:
    """The parameters of a sub-layer that scale its output."""
    if type(part) in MIXERS.values():
        params = [getattr(part, name, None) for name in _OUTPUTS]
    elif isinstance(part, Experts):
        params = [part.downs, part.downs_bias, part.shared and part.shared.down]
    else:
        params = [getattr(part, name, None) for name in ("down", "down_bias")]
    return [param for param in params if param is not None]
