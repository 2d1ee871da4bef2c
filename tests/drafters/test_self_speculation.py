"""Early exits and skipped layers against numpy that reads every text from its beginning."""

import dataclasses

import jax
import numpy as np
import pytest
from support.decoding import NEW, finish, new_tokens, play_round, start
from support.golden import golden_model
from support.models import language_model, random_prompts
from support.partial_target import TARGET, logits_without
from support.program import MOVES, Program
from support.reference import softmax

from specjax import Generator, RequestError
from specjax.core.stats import Counters
from specjax.drafters import EarlyExit, LayerSkip, Plain
from specjax.loop import decode
from specjax.models.decoder import Layer, Skip
from specjax.rules.acceptance import Drawn, resolve
from specjax.tools.plan import hlo

DRAFTS, ROUNDS, CONFIDENCE = 3, 6, 0.45
L = TARGET.config.num_layers
PROMPTS = [[7], *random_prompts(7, 30, seed=4)]
PARTS = {
    "early_exit": (EarlyExit(2, DRAFTS, CONFIDENCE), {"attention": {2}, "mlp": {2}}),
    "layer_skip": (LayerSkip((2,), (1,), DRAFTS, CONFIDENCE), {"attention": {2}, "mlp": {1}}),
}
RULE = resolve("auto", Drawn.CHAIN)


@dataclasses.dataclass
class Row:
    """One text, and the threshold and matching rate of Draft & Verify. Greedy."""

    text: list[int]
    lacks: dict[str, set[int]]
    threshold: float
    matched: float = 0.0

    def after(self, drafted: list[int]) -> np.ndarray:
        """Logits of the part.

        The newest token of the text is the first token that the part reads itself.
        """
        return logits_without(self.text + drafted, self.lacks, len(self.text) - 1)

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
            wanted = int(logits_without(self.text, {}, 0).argmax())
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


def start_part(drafter, **options) -> decode.DecodeState:
    """The state after the prompts. All tests share the prefill of plain decoding."""
    state = start(TARGET, None, Plain(), PROMPTS, **options)
    kept = drafter.init(TARGET, None, state.tokens, state.prompt_length, (), chunk=None, dtype="float32")
    return state.replace(drafter=kept, counters=Counters.zeros(len(PROMPTS), drafter.depth))


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "layer_skip" else pytest.mark.slow) for name in PARTS]
)
def test_rounds_equal_draft_and_verify_in_numpy(method):
    """Drafts, their lengths, accepted tokens and thresholds, over several rounds of a ragged batch."""
    drafter, lacks = PARTS[method]
    state = start_part(drafter)
    rows = [Row(list(prompt), lacks, drafter.draft_confidence) for prompt in PROMPTS]
    lengths, kept = set(), set()
    for _ in range(ROUNDS):
        tree, state = play_round(TARGET, None, state, drafter, RULE)
        tree = jax.device_get(tree)
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
def test_q_equals_the_parts_distribution_after_each_node(method):
    drafter, lacks = PARTS[method]
    after = start_part(drafter, temperature=1.3)
    for _ in range(2):
        before, (tree, after) = after, play_round(TARGET, None, after, drafter, RULE)
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
    """Layers below the first skipped one read each node once, while drafting.

    From there on the verify pass reads all nodes at once.
    """
    drafter, lacks = PARTS[method]
    seen, state, call = set(), start_part(drafter), Layer.__call__

    def note(self, x, *args, mixer: bool, mlp: bool):
        if mixer or mlp:
            seen.add((numbers[id(self)], x.shape[1], mixer, mlp))
        return call(self, x, *args, mixer=mixer, mlp=mlp)

    def step(target, state):
        numbers.update({id(layer): i for i, layer in enumerate(target.layers)})
        return decode.step(target, None, state, drafter=drafter, rule=RULE)

    numbers = {}
    monkeypatch.setattr(Layer, "__call__", note)
    jax.eval_shape(step, TARGET, state)
    first = min(lacks["attention"] | lacks["mlp"])
    part = {(i, 1, i not in lacks["attention"], i not in lacks["mlp"]) for i in range(L)} - {(2, 1, False, False)}
    assert seen == part | {(i, DRAFTS + 1, True, True) for i in range(first, L)}


@pytest.mark.slow
def test_the_loop_copies_neither_cache_nor_weights():
    program = Program(EarlyExit(1, DRAFTS, CONFIDENCE), 4, options={"xla_backend_optimization_level": 0})
    assert hlo.moved(program.text, program.caches | program.weights, MOVES) == [] and hlo.host_calls(program.text) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafter", [LayerSkip(num_speculative_tokens=DRAFTS), EarlyExit(2, DRAFTS)], ids=["layer_skip", "early_exit"]
)
def test_the_text_of_one_row_is_greedy(drafter):
    alone = lambda leaf: leaf[1:2] if leaf.ndim else leaf
    state = finish(TARGET, None, drafter, jax.tree.map(alone, start_part(drafter)))
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
def test_impossible_parts_are_refused_in_one_line(method, options, named):
    with pytest.raises(RequestError) as error:
        Generator(language_model(TARGET), method, **options)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_a_layer_whose_keys_another_reads_is_not_skipped_alone():
    config = golden_model("gemma4").config  # layers 2 and 3 read the keys of layers 0 and 1
    with pytest.raises(RequestError, match="layer 2 of the target reads the keys and values of layer 0"):
        LayerSkip(skip_attention=(0,)).check(config)
    LayerSkip(skip_attention=(0, 2)).check(config)
    EarlyExit().check(config)


def test_the_default_part_is_half_the_layers_or_every_other():
    config = TARGET.config.replace(num_layers=8)
    assert EarlyExit().skip(config) == Skip((4, 5, 6, 7), (4, 5, 6, 7))
    assert LayerSkip().skip(config) == Skip((1, 3, 5), (1, 3, 5))
    assert LayerSkip().skip(config.replace(num_layers=2)) == Skip((1,), (1,))
    assert LayerSkip(skip_mlp=(2,)).skip(config) == Skip((), (2,))
