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
        for has_part, outputs in ((attention, (layer.mixer.out, layer.mixer.out_bias)), (mlp, _outputs(layer.mlp))):
            for param in outputs:
                if param is not None:
                    param[...] = jnp.where(has_part, param[...], 0)
    return model


def _outputs(mlp) -> tuple:
    """The parameters of a feed-forward that scale its output."""
    if not isinstance(mlp, Experts):
        return mlp.down, mlp.down_bias
    return mlp.downs, mlp.downs_bias, *(() if mlp.shared is None else (mlp.shared.down,))
