"""Heads that draft from features against plain numpy in float64, written from the papers and the
names of published tensors."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import TINY, random_head, tiny_model

from specjax.heads import Eagle3Config, Eagle3Head, EagleConfig, EagleHead, MtpConfig, MtpHead
from specjax.models.decoder import Output
from specjax.models.translated import LACKING

LAYERS = TINY.replace(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, intermediate_size=40, norm_eps=1e-3)
TARGET = tiny_model(0, 8.0, num_layers=4)
TAPS = (1, 2, 4)
KNOWN = np.sort(np.random.default_rng(1).choice(TINY.vocab_size, 40, replace=False))
N = 9
TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, N + 2)  # N features, the token after each, one that is drafted

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
    "eagle3, two layers": dataclasses.replace(EAGLE3, layers=LAYERS.replace(num_layers=2), **dict.fromkeys(EVERYTHING, True)),
    "mtp": MTP,
    **{f"mtp, {flag}": dataclasses.replace(MTP, **{flag: True}) for flag in ("norm_output", "hidden_first", "own_embedding", "own_head")},
    "mtp, raw features": dataclasses.replace(MTP, normed_features=False),
}
HEADS = {EagleConfig: EagleHead, Eagle3Config: Eagle3Head, MtpConfig: MtpHead}


def head_of(config):
    head = random_head(HEADS[type(config)], config)
    if isinstance(config, Eagle3Config):
        head.draft_to_target[...] = jnp.asarray(KNOWN - np.arange(KNOWN.size), jnp.int32)
    return head


def numbers(param) -> np.ndarray:
    return np.asarray(param[...], np.float64)


def linear(x, weight, bias=None) -> np.ndarray:
    return x @ numbers(weight).T + (0 if bias is None else numbers(bias))


def rms(x, weight, eps) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * numbers(weight)


def turned(x, position: int, theta: float = 10000.0) -> np.ndarray:
    """Rotary positions of one vector: number i and number i + D / 2 are a plane."""
    half = x.size // 2
    angle = position / theta ** (np.arange(half) / half)
    a, b = x[:half], x[half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])


def attention(layer, config, read) -> np.ndarray:
    """What causal attention adds, place by place and head by head."""
    K, G, D = config.num_kv_heads, config.num_heads // config.num_kv_heads, config.head_dim
    qkv = linear(read, layer.qkv).reshape(len(read), K, G + 2, D)
    out = np.zeros((len(read), K, G, D))
    for i in range(len(read)):
        for k in range(K):
            keys = np.array([turned(qkv[j, k, G], j) for j in range(i + 1)])
            for g in range(G):
                scores = keys @ turned(qkv[i, k, g], i) / np.sqrt(D)
                weights = np.exp(scores - scores.max())
                out[i, k, g] = weights / weights.sum() @ qkv[: i + 1, k, G + 1]
    return linear(out.reshape(len(read), -1), layer.out)


def mlp(layer, config, x) -> np.ndarray:
    gate, up = np.split(linear(rms(x, layer.mlp_norm, config.norm_eps), layer.gate_up), 2, -1)
    return x + linear(gate / (1 + np.exp(-gate)) * up, layer.down)


def ordinary(layer, config, x) -> np.ndarray:
    """A decoder layer of Llama."""
    return mlp(layer, config, x + attention(layer, config, rms(x, layer.attention_norm, config.norm_eps)))


def streams(tokens) -> list[np.ndarray]:
    """The residual stream of the target: what enters each layer, and what leaves the last."""
    found = [numbers(TARGET.embed)[tokens]]
    for layer in TARGET.layers:
        found.append(ordinary(layer, TARGET.config, found[-1]))
    return found


def embedded(head, tokens) -> np.ndarray:
    return numbers(TARGET.embed if head.embed is None else head.embed)[tokens]


def final(x) -> np.ndarray:
    return rms(x, TARGET.norm, TARGET.config.norm_eps)


class Eagle:
    """EAGLE, section 3: embedding and feature side by side through ``fc``, a layer whose input is
    not normed; no norm at the end."""

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
    """EAGLE-3, section 3.1, with the variants of the formats that it is published in."""

    def fused(self, head, streams):
        config, taps = head.config, [streams[i] for i in TAPS]
        if config.fc_norm:
            taps = [rms(tap, norm, config.layers.norm_eps) for tap, norm in zip(taps, head.fc_norms)]
        joined = np.concatenate(taps, -1)
        return linear(rms(joined, head.input_norm, config.layers.norm_eps) if config.norm_before_fc else joined, head.fc)

    def hidden(self, head, features, tokens):
        config, first, eps = head.config.layers, head.layers[0], head.config.layers.norm_eps
        normed = rms(features, first.hidden_norm, eps)
        read = np.concatenate([rms(embedded(head, tokens), first.attention_norm, eps), normed], -1)
        x = mlp(first, config, (normed if head.config.norm_before_residual else features) + attention(first, config, read))
        if config.num_layers == 2:
            x = ordinary(head.layers[1], config, x)
        return rms(x, head.norm, eps) if head.config.norm_output else x

    def logits(self, head, hidden):
        scores = linear(hidden if head.config.norm_output else rms(hidden, head.norm, head.config.layers.norm_eps), head.head)
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


def plainly(head, plain):
    """Features, hidden states and logits of a head of one module:

    N real features, and one hidden state in the place of the next.
    """
    (head,) = head.modules
    features = plain.fused(head, streams(TOKENS[:N]))
    fed_back = plain.hidden(head, features, TOKENS[1 : N + 1])[-1:]
    hidden = plain.hidden(head, np.concatenate([features, fed_back]), TOKENS[1:])
    return features, hidden, plain.logits(head, hidden)


@cache
def taps() -> tuple:
    """Of the first N tokens, see ``taps_of``."""
    return taps_of(TOKENS[:N])


def taps_of(tokens) -> tuple:
    """What enters the target's layers 0 to 3 and leaves the last, [1, N, E] each."""
    return _taps(TARGET, jnp.asarray(tokens[None], jnp.int32))


@jax.jit
def _taps(target, tokens):
    return target(tokens, jnp.arange(N)[None], jnp.tril(jnp.ones((N, N), bool)), taps=tuple(range(5))).taps


@jax.jit
def two_steps(head, target, taps, tokens):
    """``plainly`` from the head itself, the second step on the rows of the first."""
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
    """Where a token is lacking both must say so."""
    lacking = theirs == np.float32(LACKING)
    return np.array_equal(ours == np.float32(LACKING), lacking) and close(np.where(lacking, 0, ours), np.where(lacking, 0, theirs))


@pytest.mark.parametrize("name", CASES)
def test_heads_are_those_of_numpy(name):
    head = head_of(CASES[name])
    features, hidden, logits = found(CASES[name])
    wanted = plainly(head, PLAIN[type(head.config)]())
    assert close(features, wanted[0]) and close(hidden, wanted[1]) and logits_close(logits, wanted[2])
    probabilities = np.exp(wanted[2] - wanted[2].max(-1, keepdims=True))
    assert (probabilities.max(-1) / probabilities.sum(-1)).mean() > 2 / TINY.vocab_size  # far from uniform


def test_modules_follow_one_another():
    """Module k reads, beside the state that module k - 1 made of a token, the token k further on;
    the last goes on with its own states."""
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
    assert np.array_equal(logits[:, KNOWN], scores) and not np.array_equal(logits[:, KNOWN - np.arange(KNOWN.size)], scores)
    assert np.all(np.delete(logits, KNOWN, 1) == np.float32(LACKING))


def test_the_embedding_comes_first():
    class Swapped(Eagle):
        def hidden(self, head, features, tokens):
            swapped = np.roll(numbers(head.fc), 32, 1)  # as if the feature came first
            x = np.concatenate([embedded(head, tokens), features], -1) @ swapped.T + numbers(head.fc_bias)
            return mlp(head.layers[0], LAYERS, x + attention(head.layers[0], LAYERS, x))

    head = head_of(EAGLE)
    _, hidden, _ = found(EAGLE)
    assert close(hidden, plainly(head, Eagle())[1]) and not close(hidden, plainly(head, Swapped())[1])


@pytest.mark.parametrize("config", [EAGLE3, MTP], ids=["eagle3", "mtp"])
def test_what_is_fed_back_is_normed_only_where_the_head_says_so(config):
    """The wrong choice shows from the second drafted token on, and nowhere before."""
    raw, normed = found(config)[2], found(dataclasses.replace(config, norm_output=True))[2]
    assert logits_close(raw[:-1], normed[:-1]) and not logits_close(raw[-1:], normed[-1:])


def test_taps_are_inputs_of_layers_by_number():
    """``taps`` 2 is what enters the third layer; one layer off is something else."""
    for i, tap in enumerate(taps()):
        assert [close(tap[0], stream) for stream in streams(TOKENS[:N])] == [i == j for j in range(5)]


class TestTransformers:
    """The same layers made of the modules that transformers has."""

    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch", reason="layers of transformers need torch")

    def test_eagle(self):
        head = head_of(EAGLE)
        layer = self.layer(head.layers[0])
        layer.input_layernorm = self.torch.nn.Identity()
        features, hidden, _ = found(head.config)
        inputs = np.concatenate([embedded(head, TOKENS[1 : N + 1]), np.asarray(features)], -1)
        self.check(hidden, self.run(layer, linear(inputs, head.fc, head.fc_bias)))

    def test_eagle3(self):
        head, eps = head_of(EAGLE3), LAYERS.norm_eps
        first = head.layers[0]
        layer = self.layer(first)
        features, hidden, _ = found(head.config)
        features = np.asarray(features, np.float64)
        read = np.concatenate(
            [rms(embedded(head, TOKENS[1 : N + 1]), first.attention_norm, eps), rms(features, first.hidden_norm, eps)], -1
        )
        x = features + self.run(layer.self_attn, read)
        with self.torch.no_grad():
            x = x + layer.mlp(layer.post_attention_layernorm(self.torch.tensor(x, dtype=self.torch.float32))).numpy()
        self.check(hidden, x)

    def test_mtp(self):
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

        (head,) = head_of(MTP).modules
        features, hidden, _ = found(MTP)
        parts = []
        for weight, x in ((head.embedding_norm, embedded(head, TOKENS[1 : N + 1])), (head.hidden_norm, np.asarray(features))):
            norm = DeepseekV3RMSNorm(32, LAYERS.norm_eps)
            norm.weight.data = self.tensor(weight)
            parts.append(norm(self.torch.tensor(x, dtype=self.torch.float32)).detach().numpy())
        self.check(hidden, self.run(self.layer(head.layers[0]), linear(np.concatenate(parts, -1), head.join)))

    def layer(self, ours):
        """A decoder layer of Llama with our weights, whose attention reads as much as ours does."""
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        c, nn = LAYERS, self.torch.nn
        config = LlamaConfig(
            hidden_size=32, intermediate_size=c.intermediate_size, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
            head_dim=c.head_dim, rms_norm_eps=c.norm_eps, attn_implementation="eager",
        )  # fmt: skip
        layer, self.rotary = LlamaDecoderLayer(config, 0).eval(), LlamaRotaryEmbedding(config)
        K, G, D = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        qkv = self.tensor(ours.qkv).reshape(K, G + 2, D, -1)
        gate, up = self.tensor(ours.gate_up).chunk(2)
        parts = {"q_proj": qkv[:, :G], "k_proj": qkv[:, G], "v_proj": qkv[:, G + 1], "o_proj": self.tensor(ours.out)}
        for owner, weights in (
            (layer.self_attn, parts),
            (layer.mlp, {"gate_proj": gate, "up_proj": up, "down_proj": self.tensor(ours.down)}),
        ):
            for name, weight in weights.items():
                weight = weight.reshape(-1, weight.shape[-1])
                linear = nn.Linear(*reversed(weight.shape), bias=False)
                linear.weight.data = weight
                setattr(owner, name, linear)
        if ours.attention_norm is not None:
            layer.input_layernorm.weight.data = self.tensor(ours.attention_norm)
        layer.post_attention_layernorm.weight.data = self.tensor(ours.mlp_norm)
        return layer

    def run(self, module, x) -> np.ndarray:
        """What a module says of N places [N, ...], causally."""
        torch = self.torch
        x = torch.tensor(x, dtype=torch.float32)[None]
        mask = torch.full((N, N), float("-inf")).triu(1)[None, None]
        with torch.no_grad():
            out = module(hidden_states=x, position_embeddings=self.rotary(x, torch.arange(N)[None]), attention_mask=mask)
        return (out[0] if isinstance(out, tuple) else out).reshape(N, -1).numpy()

    def tensor(self, param):
        return self.torch.tensor(np.array(param[...]))

    def check(self, hidden, theirs):
        assert close(hidden[:N], np.float64(theirs))
