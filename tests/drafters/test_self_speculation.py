"""Drafting with a part of the target against plain Python that reads every text from its beginning, in numpy: no cache, no batch."""

import dataclasses
from functools import cache, partial

import jax
import numpy as np
import pytest
from conftest import language_model, random_prompts, tiny_model
from test_decode import NEW, PLAIN, finish, new_tokens, start
from test_structure import MOVES, Program

from specjax import EarlyExit, Generator, LayerSkip, RequestError, decode
from specjax.models.decoder import Layer, Skip
from specjax.planning import hlo
from specjax.stats import Counters
from specjax.verify import resolve

L, DRAFTS, ROUNDS, CONFIDENCE, FAINT = 3, 3, 6, 0.45, 0.6
TARGET = tiny_model(0, 5.0, num_layers=L)
for _layer in TARGET.layers[1:]:  # so that they say little new
    _layer.out[...] *= FAINT
    _layer.down[...] *= FAINT
TARGET.head[...] *= 5  # and the model is often sure
PROMPTS = [[7], *random_prompts(7, 30, seed=4)]
PARTS = {
    "early_exit": (EarlyExit(2, DRAFTS, CONFIDENCE), {"attention": {2}, "mlp": {2}}),
    "layer_skip": (LayerSkip((2,), (1,), DRAFTS, CONFIDENCE), {"attention": {2}, "mlp": {1}}),
}


@dataclasses.dataclass
class Plainly:
    """The target in numpy: ``logits`` after a text, of which the tokens from place ``since`` on miss some sub-layers."""

    weights: list

    def logits(self, text: list[int], lacks: dict[str, set[int]], since: int) -> np.ndarray:
        c, S = TARGET.config, len(text)
        K, G, D = c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        norm = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps)
        angle = np.arange(S)[:, None] / c.rope.theta ** (np.arange(0, D, 2) / D)
        whole = np.arange(S) < since
        embed, layers, head = self.weights
        x = embed[np.array(text)]
        for i, (qkv, out, gate_up, down) in enumerate(layers):
            heads = (norm(x) @ qkv.T).reshape(S, K, G + 2, D)
            a, b = heads[..., : D // 2], heads[..., D // 2 :]
            cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
            turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
            scores = np.einsum("skgd,tkd->kgst", turned[:, :, :G], turned[:, :, G]) / np.sqrt(D)
            scores = np.exp(np.where(np.tri(S, dtype=bool), scores, -np.inf))
            mixed = np.einsum("kgst,tkd->skgd", scores / scores.sum(-1, keepdims=True), heads[:, :, G + 1])
            does = lambda kind: (whole | (i not in lacks.get(kind, ())))[:, None]
            x = x + does("attention") * (mixed.reshape(S, -1) @ out.T)
            gate, up = np.split(norm(x) @ gate_up.T, 2, -1)
            x = x + does("mlp") * ((gate / (1 + np.exp(-gate)) * up) @ down.T)
        return norm(x[-1]) @ head.T


@cache
def plainly() -> Plainly:
    array = lambda param: np.asarray(param[...], np.float64)
    layers = [tuple(map(array, (layer.qkv, layer.out, layer.gate_up, layer.down))) for layer in TARGET.layers]
    return Plainly([array(TARGET.embed), layers, array(TARGET.head)])


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


@dataclasses.dataclass
class Row:
    """One text and what Draft & Verify keeps for it. ``round`` is the paper's loop, greedy."""

    text: list[int]
    lacks: dict[str, set[int]]
    threshold: float
    matched: float = 0.0

    def after(self, drafted: list[int]) -> np.ndarray:
        """What the part says; the newest token of the text is the first that it reads itself."""
        return plainly().logits(self.text + drafted, self.lacks, len(self.text) - 1)

    def draft(self) -> list[int]:
        drafted = []
        while len(drafted) < DRAFTS:
            logits = self.after(drafted)
            drafted.append(int(logits.argmax()))
            if softmax(logits).max() < self.threshold:
                break
        return drafted

    def verify(self, drafted: list[int]) -> int:
        accepted, before = 0, len(self.text)
        while True:
            wanted = int(plainly().logits(self.text, {}, 0).argmax())
            self.text = [*self.text, wanted]
            if accepted == len(drafted) or drafted[accepted] != wanted:
                break
            accepted += 1
        assert len(self.text) == before + accepted + 1
        self.matched = 0.5 * self.matched + 0.5 * accepted / max(len(drafted), 1)
        new = self.threshold
        if self.matched < 0.9:
            new += 0.01
        elif len(drafted) < DRAFTS:
            new -= 0.01
        if self.threshold:
            self.threshold = 0.9 * self.threshold + 0.1 * new
        return accepted


@cache
def program(method: str):
    """A round of a part: from a state to the tree that it draws and the next state. Compiled once for all tests."""
    drafter, _ = PARTS[method]

    @jax.jit
    def turn(target, state):
        trees = []

        @dataclasses.dataclass(frozen=True)
        class Watched(type(drafter)):
            def draft(self, *args):
                tree, pending = super().draft(*args)
                trees.append(tree)
                return tree, pending

        watched = Watched(**dataclasses.asdict(drafter))
        return decode.step(target, None, state, drafter=watched, rule=resolve("auto", drafter.sampled)), trees[0]

    return partial(turn, TARGET)


def begun(drafter, **options) -> decode.DecodeState:
    """The state after the prompts; the prefill is that of plain decoding, so that all tests share it."""
    state = start(TARGET, None, PLAIN, PROMPTS, **options)
    kept = drafter.init(TARGET, None, state.tokens, state.prompt, (), chunk=None, dtype=None)
    return state.replace(drafter=kept, counters=Counters.zeros(len(PROMPTS), drafter.depth))


@pytest.mark.parametrize("method", PARTS)
def test_rounds_are_those_of_plain_python(method):
    """Drafts, where they stop, what is accepted and the thresholds, over several rounds of a ragged batch."""
    drafter, lacks = PARTS[method]
    state = begun(drafter)
    rows = [Row(list(prompt), lacks, drafter.draft_confidence) for prompt in PROMPTS]
    lengths, kept = set(), set()
    for _ in range(ROUNDS):
        state, tree = program(method)(state)
        drafts = [row.draft() for row in rows]
        for b, drafted in enumerate(drafts):
            assert tree.valid[b].tolist() == [True] * (len(drafted) + 1) + [False] * (DRAFTS - len(drafted))
            assert tree.tokens[b, 1 : len(drafted) + 1].tolist() == drafted
        kept |= {row.verify(drafted) for row, drafted in zip(rows, drafts)}
        lengths |= set(map(len, drafts))
        for b, row in enumerate(rows):
            assert state.tokens[b, : state.cache.length[b] + 1].tolist() == row.text
        np.testing.assert_allclose(state.drafter.confidence.threshold, [row.threshold for row in rows], rtol=1e-5)
        np.testing.assert_allclose(state.drafter.confidence.matched, [row.matched for row in rows], rtol=1e-5)
    assert kept == {0, 1, 2, 3} and lengths == {1, 2, 3}


@pytest.mark.parametrize("method", PARTS)
def test_q_is_what_the_part_says_after_each_node(method):
    drafter, lacks = PARTS[method]
    after = begun(drafter, temperature=1.3)
    for _ in range(2):
        before, (after, tree) = after, program(method)(after)
        for b in range(len(PROMPTS)):
            text = before.tokens[b, : before.cache.length[b] + 1].tolist()
            row = Row(text, lacks, float(before.drafter.confidence.threshold[b]))
            drafted = tree.tokens[b, 1:][tree.valid[b, 1:]].tolist()
            logits = [row.after(drafted[:i]) for i in range(len(drafted))]
            wanted = [softmax(x / 1.3) for x in logits] + [np.zeros_like(logits[0])] * (DRAFTS + 1 - len(drafted))
            np.testing.assert_allclose(tree.q[b], wanted, rtol=1e-3, atol=1e-6)
            sure = [softmax(x).max() >= row.threshold for x in logits]
            assert all(sure[:-1]) and (len(drafted) == DRAFTS or not sure[-1])


@pytest.mark.parametrize("method", PARTS)
def test_the_verify_pass_runs_no_layer_again(method, monkeypatch):
    """Below the first that misses something, layers read one node at a time, the last drafted one too; from there on all at once."""
    drafter, lacks = PARTS[method]
    seen, state, call = set(), begun(drafter), Layer.__call__

    def noted(self, x, *args):
        attention, mlp = args[-2:]
        if attention or mlp:
            seen.add((numbers[id(self)], x.shape[1], attention, mlp))
        return call(self, x, *args)

    def step(target, state):
        numbers.update({id(layer): i for i, layer in enumerate(target.layers)})
        return decode.step(target, None, state, drafter=drafter, rule=resolve("auto", drafter.sampled))

    numbers = {}
    monkeypatch.setattr(Layer, "__call__", noted)
    jax.eval_shape(step, TARGET, state)
    first = min(lacks["attention"] | lacks["mlp"])
    part = {(i, 1, i not in lacks["attention"], i not in lacks["mlp"]) for i in range(L)} - {(2, 1, False, False)}
    assert seen == part | {(i, DRAFTS + 1, True, True) for i in range(first, L)}


def test_the_loop_copies_neither_cache_nor_weights():
    program = Program(EarlyExit(1, DRAFTS, CONFIDENCE), 4, options={"xla_backend_optimization_level": 0})
    assert hlo.moved(program.text, program.caches | program.weights, MOVES) == [] and hlo.host_calls(program.text) == []


@pytest.mark.parametrize("drafter", [EarlyExit(2, DRAFTS), LayerSkip(num_speculative_tokens=DRAFTS)], ids=["early_exit", "layer_skip"])
def test_greedy_text_of_one_row_is_that_of_plain_python(drafter):
    alone = lambda leaf: leaf[1:2] if leaf.ndim else leaf
    state = finish(TARGET, None, drafter, jax.tree.map(alone, begun(drafter)))
    row = Row(PROMPTS[1], {}, 0.0)
    while len(row.text) < len(PROMPTS[1]) + NEW:
        row.verify([])
    assert new_tokens(state, PROMPTS[1:2]) == [row.text[len(PROMPTS[1]) :]]
    assert state.counters.accepted_at.sum() > 2 and state.counters.calls[0] < NEW


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("early_exit", dict(exit_layer=0), "exit_layer"),
        ("early_exit", dict(exit_layer=L), f"exit_layer must be 1 to {L - 1}"),
        ("early_exit", dict(draft_confidence=1.5), "draft_confidence"),
        ("early_exit", dict(num_speculative_tokens=0), "num_speculative_tokens"),
        ("layer_skip", dict(skip_attention=(L,)), f"skip_attention names layer {L}"),
        ("layer_skip", dict(skip_mlp=(-1,)), "skip_mlp"),
        ("layer_skip", dict(skip_mlp=()), "nothing out"),
        ("layer_skip", dict(skip_attention=(0, 1, 2), skip_mlp=(2, 1, 0)), "every sub-layer"),
    ],
)
def test_parts_that_are_none_are_refused_in_one_line(method, options, named):
    with pytest.raises(RequestError) as error:
        Generator(language_model(TARGET), method, **options)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_what_drafts_where_nothing_is_said():
    config = TARGET.config.replace(num_layers=8)
    assert EarlyExit().skip(config) == Skip((4, 5, 6, 7), (4, 5, 6, 7))
    assert LayerSkip().skip(config) == Skip((1, 3, 5), (1, 3, 5))
    assert LayerSkip().skip(config.replace(num_layers=2)) == Skip((1,), (1,))
    assert LayerSkip(skip_mlp=(2,)).skip(config) == Skip((), (2,))
