"""Drafts on devices of their own: the texts of one device, and drafting while the target verifies."""

import dataclasses
import json
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.loops import make_drafters
from support.models import TINY, disturbed, language_model, random_head, random_prompts, tiny_model

from specjax import Generator, RequestError, decode, load, make_mesh, make_requests, prefill, save
from specjax.apart import ApartSession
from specjax.cache import KVCache
from specjax.checkpoints.tensors import load_model, save_model
from specjax.cli.main import main
from specjax.drafter import Nothing, TrainedHead
from specjax.drafters import DraftModel
from specjax.drafters.parts.ahead import draft_ahead
from specjax.heads import KINDS
from specjax.models.base import Scored
from specjax.parallel import make_draft_mesh, place
from specjax.requests.batch import build_batch
from specjax.requests.options import Options
from specjax.session import Session
from specjax.verify import Verdict, resolve

PROMPTS = random_prompts(4, TINY.vocab_size, seed=3)
MIXED = dict(
    temperature=[0.0, 0.0, 1.0, 0.7], seed=[1, 2, 3, 4], max_new_tokens=[20, 13, 20, 7], stop=[None, ["A"], None, None]
)
DRAFTERS = {
    name: drafter
    for name, drafter in make_drafters(TINY.replace(num_layers=1, num_kv_heads=1)).items()
    if not isinstance(drafter.needs, Nothing)
} | {"ahead": DraftModel(3, draft_ahead=3), "ahead by one": DraftModel(1, draft_ahead=61)}
MESHES = {  # of the target, or None, and of the drafts
    "one device each": (None, dict()),
    "model": (None, dict(model=2)),
    "data": (dict(data=2), dict(data=2)),
    "data and model": (dict(data=2, model=2), dict(data=2, model=2)),
}
FIRST_TIER = {("ahead", "one device each"), ("eagle3", "one device each")}
CELLS = [(name, "one device each") for name in DRAFTERS] + [
    (name, mesh) for name in ("ahead", "draft_model", "eagle3") for mesh in MESHES if mesh != "one device each"
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The checkpoint of the target."""
    save_model(tiny_model(0), path := tmp_path_factory.mktemp("target"))
    return path


def parameters_of(drafter):
    """A random head, or drafts that often agree with the target."""
    if isinstance(drafter.needs, TrainedHead):
        return random_head(KINDS[drafter.head.kind].module, drafter.head)
    drafts = tuple(disturbed(tiny_model(0), 0.05 * m) for m in range(1, 1 + drafter.needs.least))
    return drafts[0] if drafter.needs.most == 1 else drafts


def on_mesh(parameters, mesh):
    """Drafts with their weights split over the mesh, heads whole."""
    return place(parameters, mesh, rows=False)


def decode_all(session: Session, target, options=MIXED, rounds=(2,)):
    """The tokens of the prompts' rows, and the batch."""
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    decoding = session.start(PROMPTS, build_batch(Options.of(options), lengths, target))
    for number in rounds:
        session.advance(decoding, number)
    session.advance(decoding)
    ends, tokens = np.asarray(decoding.state.cache.length) + 1, np.asarray(decoding.state.tokens)
    return [row[:end].tolist() for row, end in zip(tokens, ends)], decoding


@pytest.fixture(scope="module")
def together(directory):
    """The texts and target calls with target and draft on one device, by drafter, filled as they are asked for."""
    found = {}

    def find(name: str):
        if name not in found:
            drafter, target = DRAFTERS[name], language_model(load_model(directory), "tiny")
            parameters = drafter.parameters(parameters_of(drafter), TINY.vocab_size)
            session = Session(target, drafter, parameters, resolve("auto", drafter.drawn))
            texts, decoding = decode_all(session, target)
            found[name] = texts, decoding.state.counters.calls.tolist()
        return found[name]

    return find


def make_session(name: str, directory, meshes: tuple) -> ApartSession:
    """A session whose drafts are on devices that the target leaves."""
    drafter, (of_target, of_draft) = DRAFTERS[name], meshes
    mesh = None if of_target is None else make_mesh(**of_target)
    target = language_model(load_model(directory, mesh=mesh), "tiny")
    text = ",".join(f"{axis}={size}" for axis, size in of_draft.items()) or "cpu"
    parameters = on_mesh(parameters_of(drafter), make_draft_mesh(text, mesh))
    parameters = drafter.parameters(parameters, TINY.vocab_size)
    return ApartSession(target, drafter, parameters, resolve("auto", drafter.drawn))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [pytest.param(*cell, marks=() if cell in FIRST_TIER else pytest.mark.slow, id="-".join(cell)) for cell in CELLS],
)
def test_drafts_apart_give_the_tokens_of_one_device(name, mesh, directory, together):
    """Greedy and sampled rows with a stop string, which end at different rounds, in as many target calls."""
    session = make_session(name, directory, MESHES[mesh])
    texts, decoding = decode_all(session, session.target)
    hits, calls = decoding.draft.hits.tolist(), decoding.state.counters.calls.tolist()
    assert (texts, calls) == together(name)
    assert all(hit < call for hit, call in zip(hits, calls)) and (sum(hits) > 4) == name.startswith("ahead")
    if name == "ahead by one":  # all 61 tokens are guessed, so only the first round is drafted afterwards
        assert hits == [call - 1 for call in calls]


def draft_one_round(drafter: DraftModel, prompts, **options):
    """Target, draft, and the draft's half of a batch after it proposed a tree."""
    target, draft = tiny_model(0), disturbed(tiny_model(0))
    requests = make_requests(prompts, drafter=drafter, **options)
    state = prefill(target, draft, requests, drafter=drafter)
    tree, drafted = drafter.propose(target, draft, state, decode.round_keys(state, 4)[0])
    return target, draft, state.replace(drafter=drafted, cache=KVCache((), state.cache.length)), tree


def test_a_draft_made_ahead_is_the_draft_made_after_the_verdict():
    """For every outcome, the ordinary commit and the ordinary proposal give the same tokens and the same q."""
    drafter, prompts = DraftModel(3, draft_ahead=2), [[5], [7, 8, 9, 10], [3, 4]]
    options = dict(temperature=[0.0, 1.0, 0.6], seed=4, max_new_tokens=40, repetition_penalty=1.3, capacity=64)
    target, draft, state, tree = draft_one_round(drafter, prompts, **options)
    ahead = jax.jit(lambda draft, state: draft_ahead(drafter, target, draft, state, tree))(draft, state)

    @jax.jit
    def draft_after(draft, state, verdict):
        scored = Scored(jnp.zeros(()), (), logits=jnp.zeros(()))
        found = decode.Round(tree, state.drafter, scored, jnp.zeros(()), verdict, state.failed)
        after = decode.commit(target, draft, state, found, drafter=drafter)
        return after, *drafter.propose(target, draft, after, decode.round_keys(after, 4)[0])

    assert ahead.root.shape == (8, 3)
    for outcome, root in enumerate(ahead.root):
        length = jnp.full(3, outcome // 2 + 1)
        path = jnp.minimum(jnp.arange(4), length[:, None] - 1)
        after, wanted, drafted = draft_after(draft, state, Verdict(path, length, root))
        np.testing.assert_array_equal(ahead.length[outcome], after.length)
        np.testing.assert_array_equal(ahead.tree.tokens[outcome], wanted.tokens)
        np.testing.assert_allclose(ahead.tree.q[outcome], wanted.q, atol=1e-5)
        for made, now in zip(jax.tree.leaves(ahead.rows), jax.tree.leaves(drafted.rows)):
            np.testing.assert_allclose(made[outcome], now, atol=1e-4)


def test_the_guesses_are_the_likeliest_tokens_that_were_not_drafted():
    """After all K tokens the guesses are the likeliest of all tokens. The draft's whole forward is the oracle."""
    drafter, prompts = DraftModel(3, draft_ahead=2), [[5], [7, 8, 9, 10]]
    target, draft, state, tree = draft_one_round(drafter, prompts, max_new_tokens=40, capacity=64)
    ahead = draft_ahead(drafter, target, draft, state, tree)
    for b, prompt in enumerate(prompts):
        text = jnp.array([prompt[:-1] + tree.tokens[b].tolist()])
        hidden = draft(text, jnp.arange(text.size)[None], jnp.tril(jnp.ones((text.size,) * 2, bool))).hidden
        scores = np.array(draft.logits(hidden)[0, len(prompt) - 1 :])
        scores[np.arange(3), tree.tokens[b, 1:]] = -np.inf
        np.testing.assert_array_equal(ahead.root[:, b], np.argsort(-scores, 1)[:, :2].ravel())


@dataclasses.dataclass(frozen=True)
class Calling:
    """A model that calls a function of the host whenever it reads four nodes."""

    model: nnx.Module
    function: Callable

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, tokens, *args, **options):
        out = self.model(tokens, *args, **options)
        if tokens.shape[1] != 4:
            return out
        shape = jax.ShapeDtypeStruct((), np.float32)
        zero = jax.pure_callback(self.function, shape, out.hidden.sum(), vmap_method="sequential")
        return out.replace(hidden=out.hidden + zero)


jax.tree_util.register_dataclass(Calling, ["model"], ["function"])


def test_the_draft_drafts_ahead_while_the_target_verifies(directory, together):
    """The target verifies four nodes until the draft has read four: it does so only when it drafts ahead.

    Each verification would wait in vain if it had to end before the draft's program starts.
    """
    begun, in_time = threading.Semaphore(0), []

    def wait(_):
        in_time.append(begun.acquire(timeout=60))
        return np.float32(0)

    def tell(_):
        begun.release()
        return np.float32(0)

    drafter, model = DRAFTERS["ahead"], load_model(directory)
    target = dataclasses.replace(language_model(model, "tiny"), model=Calling(model, wait))
    draft = Calling(on_mesh(parameters_of(drafter), make_draft_mesh("cpu", None)), tell)
    texts, _ = decode_all(ApartSession(target, drafter, draft, resolve("auto", drafter.drawn)), target)
    assert len(in_time) > 4 and all(in_time) and texts == together("ahead")[0]


def test_programs_share_no_devices_and_the_host_waits_once_a_round(directory, monkeypatch):
    """Neither half has the other's weights; the draft that is made ahead takes no output of the verification."""
    session = make_session("ahead", directory, (dict(model=2), dict(model=2)))
    events, enqueue, get = [], session._enqueue, jax.device_get

    def record(mesh, function, modules, args, *options):
        out = enqueue(mesh, function, modules, args, *options)
        events.append((function.func.__name__, {id(x) for x in jax.tree.leaves(args)}, out))
        return out

    def read(x):
        events.append(("read", set(), x))
        return get(x)

    monkeypatch.setattr(session, "_enqueue", record)
    monkeypatch.setattr(jax, "device_get", read)
    decode_all(session, session.target, rounds=())
    names = [name for name, _, _ in events]
    first = names.index("verify")
    assert names[first : first + 8] == ["verify", "look_ahead", "follow", "read"] * 2
    verified = [{id(x) for x in jax.tree.leaves(out)} for name, _, out in events if name == "verify"]
    assert not any(given & out for name, given, _ in events if name == "look_ahead" for out in verified)

    devices = lambda mesh: {*mesh.devices.flat}
    assert devices(session.mesh).isdisjoint(devices(session.draft_mesh))
    arrays = lambda tree: len(jax.tree.leaves(tree))
    assert arrays(session.outer) == 0
    for (name, *_), compiled in session._compiled.items():
        used = {device for x in jax.tree.leaves(compiled.input_shardings) for device in x.device_set}
        of_target = name in ("prefill", "verify")
        assert used == devices(session.mesh if of_target else session.draft_mesh), name
        assert compiled.as_text().count("num_partitions=2") == 1
    (look,) = (args for name, args, _ in events[: first + 2] if name == "look_ahead")
    (program,) = (compiled for key, compiled in session._compiled.items() if key[0] == "look_ahead")
    assert len(jax.tree.leaves(program.in_avals)) == arrays(session.parameters) + len(look)


def test_a_draft_that_is_loaded_elsewhere_stays_there(target, draft):
    """``Generator`` needs no switch; samples, streams and statistics are those of one device."""
    beside = dataclasses.replace(draft, model=on_mesh(draft.model, make_draft_mesh("cpu", None)))
    options = dict(max_new_tokens=12, temperature=0.8, seed=5)
    generator = Generator(target, draft=beside, num_speculative_tokens=3, draft_ahead=2)
    alone = Generator(target, draft=draft, num_speculative_tokens=3)
    assert isinstance(generator.session, ApartSession)
    apart, together = (g(PROMPTS[:2], n=2, **options) for g in (generator, alone))
    assert [result.token_ids for result in apart] == [result.token_ids for result in together]
    assert sum(result.stats.drafted_ahead for result in apart) > 0
    assert not any(result.stats.drafted_ahead for result in together)
    assert apart[0].stats.as_dict()["drafted_ahead"] == apart[0].stats.drafted_ahead < apart[0].stats.target_calls
    *_, last = generator.stream_results(PROMPTS[0], rounds=1, **options)
    assert last.token_ids == apart[0].token_ids


def test_bad_places_are_named(target, draft, directory):
    elsewhere = lambda i: dataclasses.replace(draft, model=on_mesh(draft.model, make_mesh(devices=jax.devices()[i:])))
    with pytest.raises(RequestError, match="different devices; load all of them with the same mesh"):
        Generator(target, draft=[elsewhere(1), elsewhere(2)])
    with pytest.raises(RequestError, match="draft_ahead drafts while the target verifies, .*give --draft-mesh"):
        Generator(target, draft=draft, draft_ahead=2)
    with pytest.raises(RequestError, match="draft_ahead must be"):
        Generator(target, draft=elsewhere(1), draft_ahead=-1)
    with pytest.raises(RequestError, match="'draft_ahead' belongs to another method than 'ngram,draft_model'"):
        Generator(target, "ngram,draft_model", elsewhere(1), draft_ahead=1)
    with pytest.raises(RequestError, match="draft_ahead drafts chains of fixed length"):
        Generator(target, draft=elsewhere(1), draft_ahead=1, draft_length="ema")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--draft-mesh", "cpu"], "--draft-mesh places a draft and none is given; name one with --draft"),
        (["--draft-mesh", "model=2", "--method", "ngram"], "--draft-mesh places a draft and none is given"),
        (["--draft-mesh", "model=2", "--method", "ngram", "--draft", "D"], "method 'ngram' takes no draft"),
        (["--draft-mesh", "depth=2", "--draft", "D"], "axes are data, model, nodes"),
        (["--draft-mesh", "model=0", "--draft", "D"], "mesh axis model must be a whole number from 1"),
        (["--draft-mesh", "model=8", "--draft", "D"], "8 devices is wanted and the target leaves 7 of 8"),
        (["--draft-mesh", "cpu", "--mesh", "data=8", "--draft", "D"], "1 devices is wanted and the target leaves 0"),
        (["--draft-ahead", "2", "--method", "tree", "--draft", "D"], "option 'draft_ahead' belongs to another method"),
    ],
)
def test_bad_flags_get_one_line(flags, named, capsys, tmp_path):
    if "ngram" in flags and "D" in flags:
        save(language_model(tiny_model(0), "tiny"), tmp_path / "D")
    flags = [str(tmp_path / "D") if flag == "D" else flag for flag in flags]
    assert main(["generate", "--model", str(tmp_path / "D"), "--prompt", "ab", *flags]) == 2
    printed = capsys.readouterr().err
    assert named in printed and printed.count("\n") == 1


@pytest.mark.slow
def test_the_command_line_with_a_draft_apart(tmp_path, capsys):
    save(language_model(tiny_model(0), "tiny"), tmp_path / "target")
    save(language_model(disturbed(tiny_model(0)), "draft"), tmp_path / "draft")
    command = ["generate", "--model", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--prompt", "ab"]
    printed = []
    for flags in ([], ["--mesh", "data=2,model=2", "--draft-mesh", "model=2", "--draft-ahead", "2"]):
        assert main([*command, "--json", "--max-new-tokens", "12", *flags]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0]["token_ids"] == printed[1]["token_ids"]
    assert printed[0]["stats"]["drafted_ahead"] == 0 < printed[1]["stats"]["drafted_ahead"]
    assert load(tmp_path / "draft", mesh=make_draft_mesh("model=2", make_mesh(data=2))).config.kv_copies == 1
