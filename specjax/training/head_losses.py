"""The losses of trained drafters, one class each: fields are the weights, a call is the loss of ``head`` on a batch of windows.

A window is int32 [B, S + 1]. The target reads it once, without a cache; nothing of what it computes is stored, and no gradient goes into
it. ``key`` is the step's, for what is random. Means are over rows and windows. Row i of anything the target computed is of token i: its
hidden state says token i + 1, and a drafter that continues from it begins with token i + 2.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import optax

from ..heads import BlockHead, Eagle3Head, EagleHead, HeadModule, MedusaHeads
from ..heads.unrolled import read_target, unroll
from ..models.attention import Seen
from ..models.decoder import Decoder, Output
from . import losses
from .losses import in_pieces


@dataclasses.dataclass(frozen=True)
class MedusaLoss:
    """Head k says token i + k + 2, and counts ``decay`` to the power k (Medusa, 2401.10774, section 2.2.1; Hydra, 2402.05109, section 3,
    whose heads read the true tokens between, and in Hydra++ what a prefix layer makes of the hidden states up to i).

    Attributes:
      decay: what each further head counts less.
      teacher: how much of the loss is against the target's distribution, rather than the text (Hydra++, section 4).
    """

    decay: float = 0.8
    teacher: float = 0.0

    def __call__(self, head: MedusaHeads, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        N = window.shape[1] - 1 - head.config.num_heads  # rows after which all heads have a token to say
        out = read_target(target, window[:, :-1], head.config.taps)
        ((_, hidden),) = unroll(head, target, head.fuse(target, out.taps)[:, :N], window[:, 1:], 1)
        total = 0.0
        for k in range(head.config.num_heads):
            read = jnp.stack([window[:, j : j + N] for j in range(1, k + 2)], -1) if head.config.reads_tokens else None
            label, said = window[:, k + 2 :][:, :N], out.hidden[:, k + 1 :][:, :N]
            rows = (hidden, label, said) + ((read,) if head.config.reads_tokens else ())

            def value(hidden, label, said, read=None, k=k):
                return taught(self.teacher, head.logits(target, k, hidden, read), label, target, said)

            total += self.decay**k * in_pieces(value, head.config.vocab_size, *rows).mean()
        return total


@dataclasses.dataclass(frozen=True)
class EagleLoss:
    """The head's hidden state is near the target's next feature, and so is what the target's output says of both (EAGLE, 2401.15077,
    section 3.3).

    Attributes:
      feature: weight of the smooth L1 distance, the mean over the width.
      token: weight of the cross-entropy.
      noise: width of the uniform noise on features in windows of 512 tokens, less in longer ones.
    """

    feature: float = 1.0
    token: float = 0.1
    noise: float = 0.2

    def __call__(self, head: EagleHead, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        features = head.fuse(target, read_target(target, window, head.config.taps).taps)
        S = window.shape[1] - 1
        noise = (jax.random.uniform(key, features[:, :-1].shape) - 0.5) * (self.noise * 512 / S)
        ((_, hidden),) = unroll(head, target, features[:, :-1] + noise, window[:, 1:], 1)
        near = optax.huber_loss(hidden, features[:, 1:]).mean()
        value = lambda hidden, feature: losses.soft_cross_entropy(target.logits(feature), target.logits(hidden))
        return self.feature * near + self.token * in_pieces(value, head.config.vocab_size, hidden, features[:, 1:]).mean()


@dataclasses.dataclass(frozen=True)
class Eagle3Loss:
    """Training-time test (EAGLE-3, 2503.01840, section 3.2): the head continues its own hidden states, as when it drafts, and each step is
    scored against the target's distribution over the draft vocabulary, where the target's likeliest token is in it. A P-EAGLE head reads
    masks instead; of the paper's rows all are kept, rather than a falling share of those of each step.

    Attributes:
      steps: how often it continues.
      decay: what each further step counts less.
    """

    steps: int = 7
    decay: float = 0.8

    def __call__(self, head: Eagle3Head, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        out, config = read_target(target, window, head.config.taps), head.config
        N = window.shape[1] - self.steps
        known = jnp.arange(config.draft_vocab_size) + head.draft_to_target[...]
        drafted = jnp.zeros(config.vocab_size, bool).at[known].set(True)
        wanted = jax.lax.stop_gradient(target.logits(out.hidden[:, 1:]))  # row i says token i + 2
        counted = drafted[wanted.argmax(-1)]
        wanted = wanted[..., known]
        total = 0.0
        features = head.fuse(target, out.taps)[:, :N]
        for s, (_, hidden) in enumerate(unroll(head, target, features, window[:, 1:], self.steps)):
            value = lambda hidden, wanted: losses.soft_cross_entropy(wanted, head.draft_logits(hidden))
            found = in_pieces(value, config.draft_vocab_size, hidden, wanted[:, s : s + N])
            total += self.decay**s * _mean(found, counted[:, s : s + N])
        return total


@dataclasses.dataclass(frozen=True)
class MtpLoss:
    """Multi-token prediction (DeepSeek-V3, 2412.19437, section 2.2): the mean over the modules, one for each step. Further steps use the
    last again, each time on its own hidden state and the true next token, and count in proportion to ``beta`` to the power of how often
    that was done (FastMTP, whose only module is the last).

    Attributes:
      steps: tokens that are predicted, at least as many as there are modules.
      beta: what each further step counts less, once modules are used again; the weights sum to one.
      weight: lambda of the paper, on the whole.
      teacher: how much of the loss is against the target's distribution, rather than the text.
    """

    steps: int = 3
    beta: float = 0.6
    weight: float = 0.3
    teacher: float = 0.0

    def __call__(self, head: HeadModule, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        out = read_target(target, window[:, :-1], head.config.taps)
        N = window.shape[1] - 1 - self.steps
        features = head.fuse(target, out.taps)[:, :N]
        weights = [self.beta ** max(s + 1 - len(head.modules), 0) for s in range(self.steps)]
        total = 0.0
        for s, (module, hidden) in enumerate(unroll(head, target, features, window[:, 1:], self.steps)):
            value = lambda hidden, label, said, module=module: taught(self.teacher, module.logits(target, hidden), label, target, said)
            label, said = window[:, s + 2 :][:, :N], out.hidden[:, s + 1 :][:, :N]
            total += weights[s] * in_pieces(value, head.config.vocab_size, hidden, label, said).mean()
        return self.weight * total / sum(weights)


@dataclasses.dataclass(frozen=True)
class BlockLoss:
    """Blocks that begin at random tokens, the anchors: a place sees the context strictly before its anchor, and its block (DFlash,
    2602.06036, section 3). Place k of the drafted ones counts exp(-(k - 1) / gamma).

    DFlash has ``ce`` alone; its causal variant (JetSpec, 2606.18394) ``forward_kl`` and no falling weights; DSpark (2607.05147) 0.1 ``ce``,
    0.9 ``tv`` and 1.0 ``confidence``.

    Attributes:
      anchors: blocks in a window, fewer where it is short.
      gamma: places after which a weight has fallen to 1 / e; 0 for equal weights.
      ce, forward_kl, tv: weights of cross-entropy with the text, of KL and of total variation from the target's distribution.
      confidence: weight of the cross-entropy of the confidence head with 1 - tv.
    """

    anchors: int = 512
    gamma: float = 7.0
    ce: float = 1.0
    forward_kl: float = 0.0
    tv: float = 0.0
    confidence: float = 0.0

    def __call__(self, head: BlockHead, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        config, drafts, (B, S) = head.config, head.config.drafts, (window.shape[0], window.shape[1] - 1)
        out = read_target(target, window[:, :-1], config.taps)
        anchors = places(key, B, S + 1 - drafts, self.anchors)  # [B, A]
        hidden = blocks_of(head, target, window, out, anchors)[:, :, config.block_size - drafts :]
        before = (anchors[..., None] + jnp.arange(drafts)).reshape(B, -1)  # the place of the token before, whose state says the label
        take = lambda x, at: jnp.take_along_axis(x, at, 1)
        flat = lambda x: x.reshape(B, -1, x.shape[-1])
        rows = (flat(hidden), take(window, before + 1), take(window, before), take(out.hidden, before[..., None]))
        if head.markov is not None:
            rows += (flat(head.markov.codes(hidden, rows[2].reshape(hidden.shape[:-1]))),)
        found = in_pieces(lambda *rows: self.value(head, target, *rows), config.vocab_size, *rows)
        weights = jnp.exp(-jnp.arange(drafts, dtype=jnp.float32) / self.gamma) if self.gamma else jnp.ones(drafts)
        return _mean(found, jnp.broadcast_to(weights, (B, anchors.shape[1], drafts)).reshape(B, -1))

    def value(self, head: BlockHead, target: Decoder, hidden, label, before, said, code=None) -> jax.Array:
        """Float32 [B, N] of N places: their hidden states, the tokens they should say, those before, the target's states there, and the
        codes of a Markov head."""
        q = head.logits(target, hidden, code)
        p = target.logits(said) if self.forward_kl or self.tv or self.confidence else None
        total = jnp.zeros(label.shape)
        if self.ce:
            total += self.ce * optax.softmax_cross_entropy_with_integer_labels(q, label)
        if self.forward_kl:
            total += self.forward_kl * losses.forward_kl(p, q)
        if self.tv:
            total += self.tv * losses.total_variation(p, q)
        if self.confidence:
            right = jax.lax.stop_gradient(1 - losses.total_variation(p, q))
            sure = jnp.clip(head.sure(hidden, before), 1e-6, 1 - 1e-6)
            total -= self.confidence * (right * jnp.log(sure) + (1 - right) * jnp.log(1 - sure))
        return total


@dataclasses.dataclass(frozen=True)
class DraftLoss:
    """A smaller language model that drafts: a sum of what it is compared with the target by (DistillSpec, 2310.08461, section 3; LK losses,
    2602.23881).

    Attributes:
      ce: weight of cross-entropy with the text.
      forward_kl, reverse_kl, tv, lk_alpha, lk_lambda: weights of the losses of these names.
      lk_scale, lk_fall: of ``losses.lk_lambda``.
    """

    ce: float = 0.0
    forward_kl: float = 1.0
    reverse_kl: float = 0.0
    tv: float = 0.0
    lk_alpha: float = 0.0
    lk_lambda: float = 0.0
    lk_scale: float = 1.0
    lk_fall: float = 3.0

    def __call__(self, draft: Decoder, window: jax.Array, key: jax.Array, target: Decoder) -> jax.Array:
        adaptive = partial(losses.lk_lambda, scale=self.lk_scale, fall=self.lk_fall)
        terms = [
            (self.forward_kl, losses.forward_kl), (self.reverse_kl, losses.reverse_kl), (self.tv, losses.total_variation),
            (self.lk_alpha, losses.lk_alpha), (self.lk_lambda, adaptive),
        ]  # fmt: skip
        terms = [(weight, loss) for weight, loss in terms if weight]
        rows = (losses.forward(draft, window[:, :-1]).hidden, window[:, 1:])
        rows += (read_target(target, window[:, :-1]).hidden,) if terms else ()

        def value(hidden, label, said=None):
            q = draft.logits(hidden)
            p = target.logits(said) if terms else None
            total = jnp.zeros(label.shape)
            if self.ce:
                total += self.ce * optax.softmax_cross_entropy_with_integer_labels(q, label)
            for weight, loss in terms:
                total += weight * loss(p, q)
            return total

        return in_pieces(value, draft.config.vocab_size, *rows).mean()


def places(key: jax.Array, batch: int, choices: int, count: int) -> jax.Array:
    """Int32 [batch, min(count, choices)]: different numbers below ``choices`` for each row, in order."""
    order = jnp.argsort(jax.random.uniform(key, (batch, choices)), -1)
    return jnp.sort(order[:, :count], -1)


def blocks_of(head: BlockHead, target: Decoder, window: jax.Array, out: Output, anchors: jax.Array) -> jax.Array:
    """The hidden states float32 [B, A, block size, E] of blocks at ``anchors`` int32 [B, A], each its anchor's token and masks."""
    config, (B, A) = head.config, anchors.shape
    S, size = out.hidden.shape[1], config.block_size
    positions = (anchors[..., None] + jnp.arange(size)).reshape(B, -1)
    roots = jnp.take_along_axis(window, anchors, 1)[..., None]
    tokens = jnp.where(jnp.arange(size) == 0, roots, config.mask_token).reshape(B, -1)
    context = head.context(out.taps, jnp.broadcast_to(jnp.arange(S), (B, S)), head.fc[...].dtype)
    inner = jnp.tril(jnp.ones((size, size), bool)) if config.causal else jnp.ones((size, size), bool)
    seen = Seen(jnp.repeat(anchors, size, 1), inner=inner)
    return head(target, tokens, positions, None, seen, context).hidden.reshape(B, A, size, -1)


def taught(teacher: float, q: jax.Array, label: jax.Array, target: Decoder, said: jax.Array) -> jax.Array:
    """Cross-entropy [B, N] of logits q [B, N, V] with the text's ``label``, or in part with what the target's state ``said`` says."""
    hard = optax.softmax_cross_entropy_with_integer_labels(q, label) if teacher < 1 else 0.0
    soft = losses.soft_cross_entropy(target.logits(said), q) if teacher > 0 else 0.0
    return (1 - teacher) * hard + teacher * soft


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    weights = weights.astype(jnp.float32)
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1e-9)
