"""Block heads draft a block of tokens in one pass.

The kinds are DFlash (2602.06036), DFlash 2, JetSpec (2606.18394), DSpark (2607.05147) and XPress.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...checkpoints.load import LanguageModel
from ...core.checks import check_known
from ...errors import RequestError
from ...heads import BlockConfig, BlockHead
from ...heads.block_config import BlockForm
from ...heads.corrections import MARKOV
from ...heads.training_forward import read_target
from ...models.attention import Seen
from ...models.decoder import Decoder, Output
from ..losses import forward_kl, map_pieces, total_variation, weighted_mean
from ..numbers import number
from .shared import Kind, Shape, check_taps, copy_layers, norm_weight, spare_token, with_layers


@dataclasses.dataclass(frozen=True)
class BlockShape(BlockForm, Shape):
    """A random block head.

    It uses the target's output matrix. Its final norm starts as a copy of the target's.

    Attributes:
      num_layers, from_target: as in ``EagleShape``.
      num_taps: the number of taps where ``taps`` is empty. These are outputs of layers, evenly
        spread from the second layer to the third from the end.
      taps: the layers whose inputs the head reads.
      mask_token: the mask; -1 stands for the ``spare_token``.

    The other attributes are as in ``BlockForm``.
    """

    num_layers: int = number(5, 1, 256)
    num_taps: int = number(5, 1, 256)
    taps: tuple[int, ...] = ()
    mask_token: int = number(-1, -1)
    from_target: bool = False

    def __post_init__(self):
        check_known("markov", self.markov, MARKOV)

    def reach(self, loss) -> int:
        return self.block_size

    def make(self, target: LanguageModel, stream: np.ndarray, key: jax.Array) -> BlockHead:
        L = target.config.num_layers
        V = target.config.vocab_size
        spread = np.round(np.linspace(min(1, L - 1), max(L - 3, 0), self.num_taps)).astype(int) + 1
        taps = self.taps or tuple(np.unique(spread).tolist())
        check_taps(taps, L)
        if self.mask_token >= V:
            raise RequestError(
                f"mask_token {self.mask_token} does not fit the target, whose vocabulary has {V} tokens; "
                f"{V - 1} is the most"
            )
        layers = with_layers(target.config, self.num_layers)
        mask_token = spare_token(target) if self.mask_token < 0 else self.mask_token
        config = BlockConfig(
            layers, target.config.hidden_size, L, taps, mask_token,
            confidence_markov=self.confidence and self.markov_rank > 0,
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(BlockForm)},
        )  # fmt: skip
        head = BlockHead(config, key)
        head.norm[...] = norm_weight(target.model)
        if self.from_target:
            copy_layers(head, target.model)
        return head


@dataclasses.dataclass(frozen=True)
class BlockLoss:
    """The loss of blocks that start at random tokens, the anchors (DFlash, 2602.06036, section 3).

    A place of a block sees the text strictly before its anchor, and its own block. Drafted token k,
    counted from 1, has the weight exp(-(k - 1) / gamma). DFlash uses ``ce`` alone. JetSpec
    (2606.18394) uses ``forward_kl`` with equal weights. DSpark (2607.05147) uses 0.1 ``ce``,
    0.9 ``tv`` and 1.0 ``confidence``. DFlash 2 uses 1.0 ``uncorrected``, XPress 0.6.

    Attributes:
      anchors: the number of blocks in a window; a short window has fewer.
      gamma: the number of tokens after which the weight has fallen to 1 / e; 0 means equal weights.
      ce: the weight of the cross-entropy with the text.
      forward_kl, tv: the weights of the KL divergence and of the total variation from the target's
        distribution.
      confidence: the weight of the confidence head's cross-entropy with the acceptance, 1 - tv.
      uncorrected: the weight of the same loss of the logits before a correction. The candidates of
        a path selector and the first guess of a refiner come from these logits.
    """

    anchors: int = number(512, 1, 10**6)
    gamma: float = 7.0
    ce: float = 1.0
    forward_kl: float = 0.0
    tv: float = 0.0
    confidence: float = 0.0
    uncorrected: float = 0.0

    def __call__(
        self, head: BlockHead, window: jax.Array, weight: jax.Array, key: jax.Array, target: Decoder
    ) -> jax.Array:
        # 1. The hidden states of blocks at random anchors.
        config = head.config
        drafts = config.drafts
        B = window.shape[0]
        S = window.shape[1] - 1
        out = read_target(target, window[:, :-1], config.taps)
        anchors = choose_anchors(key, B, S + 1 - drafts, self.anchors)  # [B, A]
        places = run_blocks(head, target, window, out, anchors)
        first = config.block_size - drafts
        # 2. The places before the drafted tokens. The target's hidden states at these places
        # predict the drafted tokens.
        before = (anchors[..., None] + jnp.arange(drafts)).reshape(B, -1)
        take = partial(jnp.take_along_axis, axis=1)
        flat = lambda x: x.reshape(B, -1, x.shape[-1])
        hidden = flat(places[:, :, first:])
        rows = (hidden, take(window, before + 1), take(window, before), take(out.hidden, before[..., None]))
        # The token before the first token is that token itself.
        earlier = jnp.maximum(anchors[..., None] + jnp.arange(config.block_size) - first, 0)
        code = head.codes(places, take(window, earlier.reshape(B, -1)).reshape(earlier.shape))
        rows += () if code is None else (flat(code),)
        values = map_pieces(lambda *rows: self.value(head, target, *rows), config.vocab_size, *rows)
        # 3. The weighted mean of the losses of drafted tokens.
        falling = jnp.exp(-jnp.arange(drafts, dtype=jnp.float32) / self.gamma) if self.gamma else jnp.ones(drafts)
        return weighted_mean(values, jnp.tile(falling, anchors.shape[1]) * take(weight, before + 1))

    def value(self, head: BlockHead, target: Decoder, hidden, label, before, target_hidden, code=None) -> jax.Array:
        """The loss float32 [B, N] at N places of blocks.

        Args:
          hidden: the head's hidden states, float32 [B, N, E].
          label, before: the tokens to predict and the tokens before them, int32 [B, N].
          target_hidden: the target's hidden states of the tokens before.
          code: the codes of the head's correction.
        """
        q = head.logits(target, hidden, code)
        p = target.logits(target_hidden) if self.forward_kl or self.tv or self.confidence else q  # q: not read
        total = self.distance(p, q, label)
        if self.uncorrected and code is not None:
            total += self.uncorrected * self.distance(p, head.logits(target, hidden), label)
        if self.confidence:
            right = jax.lax.stop_gradient(1 - total_variation(p, q))
            sure = jnp.clip(head.sure(hidden, before), 1e-6, 1 - 1e-6)
            total -= self.confidence * (right * jnp.log(sure) + (1 - right) * jnp.log(1 - sure))
        return total

    def distance(self, p: jax.Array, q: jax.Array, label: jax.Array) -> jax.Array:
        """The loss float32 [B, N] of the head's logits q [B, N, V], with the target's logits p."""
        total = jnp.zeros(label.shape)
        if self.ce:
            total += self.ce * optax.softmax_cross_entropy_with_integer_labels(q, label)
        if self.forward_kl:
            total += self.forward_kl * forward_kl(p, q)
        if self.tv:
            total += self.tv * total_variation(p, q)
        return total


def choose_anchors(key: jax.Array, batch: int, choices: int, count: int) -> jax.Array:
    """Draws int32 [batch, min(count, choices)]: distinct places below ``choices``, ascending."""
    order = jnp.argsort(jax.random.uniform(key, (batch, choices)), -1)
    return jnp.sort(order[:, :count], -1)


def run_blocks(head: BlockHead, target: Decoder, window: jax.Array, out: Output, anchors: jax.Array) -> jax.Array:
    """The hidden states float32 [B, A, block size, E] of blocks at ``anchors`` int32 [B, A].

    A block consists of the token at its anchor, followed by masks.
    """
    config = head.config
    B, A = anchors.shape
    S = out.hidden.shape[1]
    size = config.block_size
    positions = (anchors[..., None] + jnp.arange(size)).reshape(B, -1)
    roots = jnp.take_along_axis(window, anchors, 1)[..., None]
    tokens = jnp.where(jnp.arange(size) == 0, roots, config.mask_token).reshape(B, -1)
    context = head.context(out.taps, jnp.broadcast_to(jnp.arange(S), (B, S)), head.fc[...].dtype)
    inner = jnp.tril(jnp.ones((size, size), bool)) if config.causal else jnp.ones((size, size), bool)
    seen = Seen(jnp.repeat(anchors, size, 1), inner=inner)
    return head(target, tokens, positions, None, seen, context).hidden.reshape(B, A, size, -1)


KIND = Kind("block", BlockShape, BlockLoss)
