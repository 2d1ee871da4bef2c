"""Assistants that read the target's cache, against float64 numpy and against transformers."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.decoding import rounds, texts
from support.golden import golden_model, read_file
from support.models import TINY, language_model, random_head
from support.numpy_layer import gate_and_up
from support.reference import array, assert_greedy, log_softmax, normed, read_target

from specjax import Decoder, Generator, load_drafter
from specjax.checkpoints.config import from_hf
from specjax.checkpoints.tensors import load_model
from specjax.drafters import AssistantDrafter
from specjax.errors import ConfigError, RequestError
from specjax.heads import Assistant, AssistantConfig, Head
from specjax.models.draft_vocabulary import LACKING

TARGET = golden_model("gemma4")  # layers 0 and 2 have windows of 6 tokens; layers 2 and 3 read the keys of 0 and 1
RAW = read_file("gemma4")[1]
V, E, L = TARGET.config.vocab_size, TARGET.config.hidden_size, TARGET.config.num_layers
PLAIN = {"rope_theta": 100.0, "rope_type": "default"}
TEXT = RAW | dict(
    hidden_size=12,
    num_hidden_layers=3,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    per_layer_config={"2": {"head_dim": 16}},
    num_kv_shared_layers=0,
    hidden_size_per_layer_input=0,
    use_double_wide_mlp=False,
    final_logit_softcapping=None,
    rope_parameters={"sliding_attention": PLAIN, "full_attention": PLAIN | {"rope_theta": 1000.0}},
)
PROMPTS = [[3], [5, 9], np.random.default_rng(1).integers(1, V, 11).tolist()]
DEPTH = 3


def config(clusters: int = 0) -> AssistantConfig:
    layers = from_hf(TEXT)
    mixers = tuple(dataclasses.replace(layer.mixer, reads=0) for layer in layers.layers)
    return AssistantConfig(layers.replace(mixers=mixers, tie_embeddings=False), E, L, clusters, 3)


def head_of(clusters: int = 0) -> Assistant:
    head = random_head(Assistant, config(clusters), seed=2, scale=0.4)
    if clusters:
        head.order[...] = jnp.asarray(np.random.default_rng(4).permutation(V), jnp.int32)
    return head


def rotate(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """x [H, D] with the rotary position."""
    D = x.shape[1]
    angle = position / theta ** (np.arange(0, D, 2) / D)
    a, b = x[:, : D // 2], x[:, D // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1)


def numpy_step(head: Assistant, token: int, feature: np.ndarray, cached: list, n: int) -> tuple:
    """The logits [V] after a token and the next feature [E]; ``cached``: keys and values [K, n, D] by layer."""
    eps, H = head.config.layers.norm_eps, head.config.layers.num_heads
    x = array(head.enter) @ np.concatenate([array(TARGET.embed)[token] * np.sqrt(E), feature])
    for i, layer in enumerate(head.layers):
        keys, values = cached[0] if i < 2 else cached[1]  # the last layers with keys, with and without a window
        read, theta, first = normed(x, layer.mixer_norm, eps), 100.0 if i < 2 else 1000.0, n - 5 if i < 2 else 0
        queries = normed((array(layer.mixer.qkv) @ read).reshape(H, -1), layer.mixer.q_norm, eps)
        mixed = []
        for query in rotate(queries, n, theta):
            seen = slice(max(first, 0), n)
            weights = np.exp(keys[0, seen] @ query)
            mixed.append(weights @ values[0, seen] / weights.sum() if n else 0 * query)
        x = x + normed(array(layer.mixer.out) @ np.concatenate(mixed), layer.mixer_out_norm, eps)
        gate, up = gate_and_up(array(layer.mlp.gate_up) @ normed(x, layer.mlp_norm, eps))
        gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        x = x + normed(array(layer.mlp.down) @ (gelu * up), layer.mlp_out_norm, eps)
        x = x * array(layer.scalar)
    x = normed(x, head.norm, eps)
    logits = array(head.head) @ x
    if head.config.clusters:
        best = np.argsort(-(array(head.centroids) @ x))[: head.config.read_clusters]
        listed = np.asarray(head.order[...]).reshape(head.config.clusters, -1)[best].ravel()
        logits = np.where(np.isin(np.arange(V), listed), logits, np.float32(LACKING))
    return logits, array(head.leave) @ x


@pytest.mark.parametrize("clusters", [8, pytest.param(0, marks=pytest.mark.slow)])
def test_q_of_drawn_chains_equals_numpy(clusters):
    """Every draft reads the root's position and the keys before the root; its feature is the target's
    normed hidden state of the token before the root, and then the assistant's own.
    """
    head, checked, depth = head_of(clusters), 0, 2
    drafter = AssistantDrafter(depth, head=head.config)
    for state, tree in rounds(TARGET, head, drafter, 5, PROMPTS, temperature=1.0):
        now = texts(state)
        taps = read_target(TARGET, now, (L,))[0]
        for b, text in enumerate(now):
            n = len(text) - 1
            cached = [[np.asarray(leaf, np.float64)[b, :, :n] for leaf in state.cache.layers[i]] for i in (0, 1)]
            feature = normed(taps[b][0, n - 1], TARGET.norm, TARGET.config.norm_eps) if n else None
            if n == 0:
                continue  # a text of one token has no feature
            for d in range(depth):
                logits, feature = numpy_step(head, int(tree.tokens[b, d]), feature, cached, n)
                np.testing.assert_allclose(tree.q[b, d], np.exp(log_softmax(logits)), rtol=2e-3, atol=1e-6)
                checked += 1
    assert checked > 20


@pytest.mark.slow
def test_greedy_texts_are_the_targets_own():
    """A text of one token too, whose first drafts see no keys."""
    head = head_of()
    generator = Generator(
        language_model(TARGET), "assistant", Head(head, head.config, "head"), num_speculative_tokens=2
    )
    results = generator(PROMPTS, max_new_tokens=12, ignore_eos=True)
    rows = [prompt + result.token_ids for prompt, result in zip(PROMPTS, results)]
    assert_greedy(PROMPTS, rows, read_target(TARGET, rows, (L,))[1])
    assert sum(result.stats.drafted for result in results) > 0


def test_an_assistant_for_another_target_is_refused():
    head = head_of()
    of = lambda target: Generator(language_model(target), "assistant", Head(head, head.config, "head"))
    shaped = lambda **changes: nnx.eval_shape(lambda: Decoder(TINY.replace(**changes), jax.random.key(0)))
    with pytest.raises(RequestError, match="layer 0 of the assistant has an attention window, and no layer"):
        of(shaped())
    with pytest.raises(RequestError, match="reads 1 key heads of size 8, and layer 1 of the target has 2 of size 8"):
        of(shaped(windows=(None, 6)))
    with pytest.raises(ConfigError, match="5 clusters do not divide 32 tokens"):
        dataclasses.replace(head.config, clusters=5)
    with pytest.raises(ConfigError, match="has keys of its own"):
        AssistantConfig(from_hf(TEXT), E, L)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [0, 8])
@pytest.mark.parametrize("keys_as_values", [False, True])
def test_an_assistant_of_transformers(tmp_path, monkeypatch, clusters, keys_as_values):
    """The published files are read, and three drafts have the logits of transformers."""
    torch = pytest.importorskip("torch", reason="the assistant of transformers needs torch")
    from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

    # transformers 5.23.0 refuses a model in which every layer reads shared keys, as all layers here do.
    modes = Gemma4TextConfig.kv_sharing_modes.fget
    alone = lambda self: self.num_kv_shared_layers == self.num_hidden_layers
    every = lambda self: ["reuse"] * self.num_hidden_layers if alone(self) else modes(self)
    monkeypatch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(every))
    torch.manual_seed(0)
    shape = dict(
        vocab_size=V, num_attention_heads=4, num_key_value_heads=2, head_dim=8, global_head_dim=16,
        num_global_key_value_heads=2, attention_k_eq_v=keys_as_values, intermediate_size=24, sliding_window=64,
        max_position_embeddings=256, hidden_size_per_layer_input=0, pad_token_id=0,
        rope_parameters={
            "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
            "full_attention": {"rope_theta": 1000.0, "rope_type": "proportional", "partial_rotary_factor": 0.5},
        },
    )  # fmt: skip
    kinds = ["sliding_attention", "full_attention"]
    outer = Gemma4TextConfig(
        **shape, hidden_size=16, num_hidden_layers=4, layer_types=kinds * 2, num_kv_shared_layers=2
    )
    inner = Gemma4TextConfig(
        **shape,
        hidden_size=12,
        num_hidden_layers=2,
        layer_types=kinds,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=0,
    )
    target = Gemma4ForCausalLM(outer).eval()
    assistant = Gemma4AssistantForCausalLM(
        Gemma4AssistantConfig(
            text_config=inner, backbone_hidden_size=16, use_ordered_embeddings=clusters > 0,
            num_centroids=max(clusters, 1), centroid_intermediate_top_k=3 if clusters else 1,
        )
    ).eval()  # fmt: skip
    for model in (target, assistant):
        for name, parameter in model.named_parameters():
            parameter.data = torch.randn(parameter.shape) * 0.3 + ("norm" in name)
    if clusters:
        assistant.masked_embedding.token_ordering.copy_(torch.randperm(V))
    target.save_pretrained(tmp_path / "target")
    assistant.save_pretrained(tmp_path / "assistant")

    ours = language_model(load_model(tmp_path / "target"), "target")
    head = load_drafter(tmp_path / "assistant", ours)
    assert (head.config.kind, head.layout, head.config.clusters) == ("assistant", "gemma4-assistant", clusters)
    text = np.random.default_rng(0).integers(1, V, 12)
    with torch.no_grad():
        read = target(
            torch.tensor(text[None, :-1]), output_hidden_states=True, return_shared_kv_states=True, use_cache=True
        )
        feature, token = read.hidden_states[-1][:, -1:], torch.tensor(text[None, -1:])
        wanted = []
        for _ in range(DEPTH):
            joined = torch.cat([target.get_input_embeddings()(token), feature], -1)
            out = assistant(
                inputs_embeds=joined,
                position_ids=torch.tensor([[len(text) - 1]]),
                shared_kv_states=read.shared_kv_states,
            )
            wanted.append(out.logits[0, 0].numpy())
            token, feature = out.logits.argmax(-1), out.last_hidden_state
    drafter = AssistantDrafter(DEPTH, head=head.config)
    ((_, tree),) = rounds(ours.model, head.module, drafter, 1, [text.tolist()])
    assert tree.tokens[0, 1:].tolist() == [int(logits.argmax()) for logits in wanted]
    found = drafted_logits(ours.model, head.module, text)
    for d in range(DEPTH):
        known = found[d] > np.float32(LACKING) / 2
        assert known.sum() == (V * 3 // clusters if clusters else V)
        np.testing.assert_allclose(found[d][known], wanted[d][known], rtol=2e-4, atol=2e-4)
    assert json.loads((tmp_path / "assistant/config.json").read_text())["model_type"] == "gemma4_assistant"


def drafted_logits(target, head: Assistant, text: np.ndarray) -> list[np.ndarray]:
    """The logits [V] of the drafts of a greedy chain after a text."""
    drafter, found = AssistantDrafter(DEPTH, head=head.config), []
    ((state, tree),) = rounds(target, head, drafter, 1, [text.tolist()])
    feature = state.drafter
    for d in range(DEPTH):
        hidden = jax.jit(lambda head, token, feature: head(target, token, feature, state.cache))(
            head, jnp.asarray(tree.tokens[:, d : d + 1]), feature
        )
        found.append(np.asarray(head.logits(target, hidden))[0, 0])
        feature = head.next_features(hidden)
    return found
