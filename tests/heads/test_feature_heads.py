"""Heads that read features against numpy in float64, written from the papers and the published names."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import TINY, random_head, tiny_model
from support.numpy_layer import attention, linear, mlp, numbers, ordinary, rms

from specjax.heads import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, MtpConfig, MtpHead
from specjax.models.decoder import Output
from specjax.models.draft_vocabulary import LACKING

LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=40, norm_eps=1e-3)
TARGET = tiny_model(0, 8.0, num_layers=4)
TAPS = (1, 2, 4)
KNOWN = np.sort(np.random.default_rng(1).choice(TINY.vocab_size, 40, replace=False))
N = 9
TOKENS = np.random.default_rng(0).integers(
    0, TINY.vocab_size, N + 2
)  # N features, the token after each, one that is drafted

EAGLE = EagleConfig(LAYERS, target_layers=4)
EAGLE3 = Eagle3Config(LAYERS, target_size=32, target_layers=4, taps=TAPS, draft_vocab_size=KNOWN.size)
MTP = MtpConfig(LAYERS, target_layers=4)
EVERYTHING = ("own_embedding", "norm_before_residual", "fc_norm", "norm_before_fc", "norm_output")
CASES = {
    "eagle": EAGLE,
    "eagle, no bias": dataclasses.replace(EAGLE, bias=False, own_embedding=True),
    "eagle, first norm": dataclasses.replace(EAGLE, first_norm=True, layers=LAYERS.replace(num_layers=2)),
    "eagle3": EAGLE3,
    **{f"eagle3, {flag}": dataclasses.replace(EAGLE3, **{flag: True}) for flag in EVERYTHING},
    "eagle3, two layers": dataclasses.replace(
        EAGLE3, layers=LAYERS.replace(num_layers=2), **dict.fromkeys(EVERYTHING, True)
    ),
    "mtp": MTP,
    **{
        f"mtp, {flag}": dataclasses.replace(MTP, **{flag: True})
        for flag in ("norm_output", "hidden_first", "own_embedding", "own_head")
    },
    "mtp, raw features": dataclasses.replace(MTP, normed_features=False),
}
HEADS = {EagleConfig: EagleHead, Eagle3Config: Eagle3Head, MtpConfig: MtpHead}


def head_of(config):
    head = random_head(HEADS[type(config)], config)
    if isinstance(config, Eagle3Config):
        head.draft_to_target[...] = jnp.asarray(KNOWN - np.arange(KNOWN.size), jnp.int32)
    return head


def streams(tokens) -> list[np.ndarray]:
    """The residual stream of the target: the input of each layer, and the output of the last."""
    found = [numbers(TARGET.embed)[tokens]]
    for layer in TARGET.layers:
        found.append(ordinary(layer, TARGET.config, found[-1]))
    return found


def embedded(head, tokens) -> np.ndarray:
    return numbers(TARGET.embed if head.embed is None else head.embed)[tokens]


def final(x) -> np.ndarray:
    return rms(x, TARGET.norm, TARGET.config.norm_eps)


class Eagle:
    """EAGLE, section 3: a layer whose input is not normed, and no norm at the end."""

    def fused(self, head, streams):
        return final(streams[4])

    def hidden(self, head, features, tokens):
        config = head.config.layers
        x = linear(np.concatenate([embedded(head, tokens), features], -1), head.fc, head.fc_bias)
        if head.config.first_norm:
            first = ordinary(head.layers[0], config, x)
        else:
            first = mlp(head.layers[0], config, x + attention(head.layers[0], config, x))
        return first if config.num_layers == 1 else ordinary(head.layers[1], config, first)

    def logits(self, head, hidden):
        return linear(hidden, TARGET.head)


class Eagle3:
    """EAGLE-3, section 3.1, with the variants of its published formats."""

    def fused(self, head, streams):
        config, taps = head.config, [streams[i] for i in TAPS]
        if config.fc_norm:
            taps = [rms(tap, norm, config.layers.norm_eps) for tap, norm in zip(taps, head.fc_norms)]
        joined = np.concatenate(taps, -1)
        return linear(
            rms(joined, head.input_norm, config.layers.norm_eps) if config.norm_before_fc else joined, head.fc
        )

    def hidden(self, head, features, tokens):
        config, first, eps = head.config.layers, head.layers[0], head.config.layers.norm_eps
        normed = rms(features, first.hidden_norm, eps)
        read = np.concatenate([rms(embedded(head, tokens), first.mixer_norm, eps), normed], -1)
        x = mlp(
            first, config, (normed if head.config.norm_before_residual else features) + attention(first, config, read)
        )
        if config.num_layers == 2:
            x = ordinary(head.layers[1], config, x)
        return rms(x, head.norm, eps) if head.config.norm_output else x

    def logits(self, head, hidden):
        scores = linear(
            hidden if head.config.norm_output else rms(hidden, head.norm, head.config.layers.norm_eps), head.head
        )
        known = [i + offset for i, offset in enumerate(np.asarray(head.draft_to_target[...]))]
        found = np.full((len(hidden), TINY.vocab_size), np.float32(LACKING), np.float64)
        for place, row in enumerate(scores):
            for token, score in zip(known, row):
                found[place, token] = score
        return found


class Mtp:
    """DeepSeek-V3, section 2.2, with the order of its checkpoint."""

    def fused(self, head, streams):
        return final(streams[4]) if head.config.normed_features else streams[4]

    def hidden(self, head, features, tokens):
        eps = head.config.layers.norm_eps
        parts = [rms(embedded(head, tokens), head.embedding_norm, eps), rms(features, head.hidden_norm, eps)]
        x = linear(np.concatenate(parts[::-1] if head.config.hidden_first else parts, -1), head.join)
        x = ordinary(head.layers[0], head.config.layers, x)
        return rms(x, head.norm, eps) if head.config.norm_output else x

    def logits(self, head, hidden):
        normed = hidden if head.config.norm_output else rms(hidden, head.norm, head.config.layers.norm_eps)
        return linear(normed, TARGET.head if head.head is None else head.head)


PLAIN = {EagleConfig: Eagle, Eagle3Config: Eagle3, MtpConfig: Mtp}


def run_plain(head, plain):
    """The features, hidden states and logits of a head of one module, fed one of its own states."""
    (head,) = head.modules
    features = plain.fused(head, streams(TOKENS[:N]))
    fed_back = plain.hidden(head, features, TOKENS[1 : N + 1])[-1:]
    hidden = plain.hidden(head, np.concatenate([features, fed_back]), TOKENS[1:])
    return features, hidden, plain.logits(head, hidden)


@cache
def taps() -> tuple:
    """``taps_of`` the first N tokens."""
    return taps_of(TOKENS[:N])


def taps_of(tokens) -> tuple:
    """The inputs of the target's layers 0 to 3 and the output of the last, [1, N, E] each."""
    return _taps(TARGET, jnp.asarray(tokens[None], jnp.int32))


@jax.jit
def _taps(target, tokens):
    return target(tokens, jnp.arange(N)[None], jnp.tril(jnp.ones((N, N), bool)), taps=tuple(range(5))).taps


@jax.jit
def two_steps(head, target, taps, tokens):
    """The same as ``run_plain`` from the head itself; the second step reads the rows of the first."""
    positions, mask = jnp.arange(N)[None], jnp.tril(jnp.ones((N, N), bool))
    features, last = head.fuse(target, taps), head.modules[-1]
    first, D = Output(features, ()), len(head.modules)
    for k, module in enumerate(head.modules):
        first = module(target, tokens[:, 1 + k :][:, :N], first.hidden, positions, mask)
    seen = jnp.ones((1, 1, N + 1), bool)
    more = last(target, tokens[:, N + D :][:, :1], first.hidden[:, -1:], positions[:, -1:] + 1, seen, rows=first.rows)
    hidden = jnp.concatenate([first.hidden, more.hidden], 1)
    return jax.tree.map(lambda x: x[0], (features, hidden, last.logits(target, hidden)))


@cache
def found(config) -> tuple[np.ndarray, ...]:
    """Features, hidden states and logits of the head of a configuration."""
    wanted = tuple(taps()[i] for i in config.taps)
    return jax.tree.map(np.asarray, two_steps(head_of(config), TARGET, wanted, jnp.asarray(TOKENS[None], jnp.int32)))


def close(ours, theirs) -> bool:
    return bool(np.abs(np.asarray(ours) - theirs).max() < 2e-5 * np.abs(theirs).max())


def logits_close(ours, theirs) -> bool:
    """Both mark the same tokens as lacking, and the other logits are close."""
    lacking = theirs == np.float32(LACKING)
    return np.array_equal(ours == np.float32(LACKING), lacking) and close(
        np.where(lacking, 0, ours), np.where(lacking, 0, theirs)
    )


@pytest.mark.parametrize("name", CASES)
def test_heads_compute_the_same_as_numpy(name):
    head = head_of(CASES[name])
    features, hidden, logits = found(CASES[name])
    wanted = run_plain(head, PLAIN[type(head.config)]())
    assert close(features, wanted[0]) and close(hidden, wanted[1]) and logits_close(logits, wanted[2])
    probabilities = np.exp(wanted[2] - wanted[2].max(-1, keepdims=True))
    assert (probabilities.max(-1) / probabilities.sum(-1)).mean() > 2 / TINY.vocab_size  # far from uniform


def test_modules_follow_one_another():
    """Module k reads the state of module k - 1 and the token k further on."""
    head, plain = head_of(dataclasses.replace(MTP, modules=3)), Mtp()
    tokens = np.random.default_rng(2).integers(0, TINY.vocab_size, N + 4)
    first, second, third = head.modules
    wanted = plain.hidden(first, plain.fused(first, streams(tokens[:N])), tokens[1 : N + 1])
    wanted = plain.hidden(second, wanted, tokens[2 : N + 2])
    own = plain.hidden(third, wanted, tokens[3 : N + 3])
    wanted = plain.hidden(third, np.concatenate([wanted, own[-1:]]), tokens[3:])
    _, hidden, logits = two_steps(head, TARGET, taps_of(tokens[:N])[4:], jnp.asarray(tokens[None], jnp.int32))
    assert close(hidden, wanted) and close(logits, plain.logits(third, wanted))


def test_offsets_to_the_targets_vocabulary_are_not_tokens():
    """Draft token i is the target's i + d2t[i], not d2t[i]."""
    head, hidden = head_of(EAGLE3), jax.random.normal(jax.random.key(0), (3, 32))
    scores, logits = head.draft_logits(hidden), np.asarray(head.logits(TARGET, hidden))
    assert np.array_equal(logits[:, KNOWN], scores) and not np.array_equal(
        logits[:, KNOWN - np.arange(KNOWN.size)], scores
    )
    assert np.all(np.delete(logits, KNOWN, 1) == np.float32(LACKING))


def test_the_embedding_comes_first():
    class Swapped(Eagle):
        def hidden(self, head, features, tokens):
            swapped = np.roll(numbers(head.fc), 32, 1)  # as if the feature came first
            x = np.concatenate([embedded(head, tokens), features], -1) @ swapped.T + numbers(head.fc_bias)
            return mlp(head.layers[0], LAYERS, x + attention(head.layers[0], LAYERS, x))

    head = head_of(EAGLE)
    _, hidden, _ = found(EAGLE)
    assert close(hidden, run_plain(head, Eagle())[1]) and not close(hidden, run_plain(head, Swapped())[1])


@pytest.mark.parametrize("config", [EAGLE3, MTP], ids=["eagle3", "mtp"])
def test_the_state_that_is_fed_back_is_normed_only_where_the_head_says_so(config):
    """The wrong choice changes the second drafted token, and nothing before."""
    raw, normed = found(config)[2], found(dataclasses.replace(config, norm_output=True))[2]
    assert logits_close(raw[:-1], normed[:-1]) and not logits_close(raw[-1:], normed[-1:])


def test_taps_are_inputs_of_layers_by_number():
    """Tap 2 is the input of the third layer, and of no other."""
    for i, tap in enumerate(taps()):
        assert [close(tap[0], stream) for stream in streams(TOKENS[:N])] == [i == j for j in range(5)]
