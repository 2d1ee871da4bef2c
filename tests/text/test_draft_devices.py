"""Drafts on devices of their own: the texts of one device, and drafting while the target verifies."""

import dataclasses
import json
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_sharded
import test_tpu_compiler
from flax import nnx
from support.loops import SHARES, STRUCTURES, make_drafters
from support.models import TINY, disturbed, language_model, random_head, random_prompts, tiny_model
from support.one_layer import draft, target
from support.program import make_blank_requests
from test_gpu_compiler import gpu  # the fixture of a device that exists only for its compiler
from test_tpu_compiler import WIDE

from specjax import Generator, RequestError, load, make_mesh, make_requests, save
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import abstract_decoder, load_model, save_model
from specjax.cli.main import main
from specjax.core.cache import KVCache
from specjax.core.verdict import Verdict
from specjax.drafters import DraftModel
from specjax.drafters.parts.draft_ahead import draft_ahead
from specjax.heads import KINDS
from specjax.loop import decode
from specjax.loop.drafter import Nothing, TrainedHead
from specjax.loop.prefill import prefill
from specjax.models.base import Scored
from specjax.parallel import make_draft_mesh, place
from specjax.requests.batch import build_batch
from specjax.requests.options import Options
from specjax.rules.acceptance import resolve
from specjax.text.draft_devices import ApartSession, DraftHalf, OuterLayers, Received, begin, follow, look_ahead, verify
from specjax.text.session import Session
from specjax.tools.plan import hlo
from specjax.tools.plan.devices import compile_only, parse_device

PROMPTS = random_prompts(4, TINY.vocab_size, seed=3)
MIXED = dict(
    temperature=[0.0, 0.0, 1.0, 0.7], seed=[1, 2, 3, 4], max_new_tokens=[20, 13, 20, 7], stop=[None, ["A"], None, None]
)
FAMILIES = make_drafters(TINY.replace(num_layers=1, num_kv_heads=1))
DRAFTERS = {
    name: FAMILIES[name]
    for name in (*STRUCTURES, *SHARES["apart"])
    if not isinstance(FAMILIES[name].needs, Nothing)
    and not FAMILIES[name].reads_target
    and name not in ("draft_model", "dynamic_tree")  # like "ahead" and "tree"
} | {"ahead": DraftModel(3, draft_ahead=3), "ahead by one": DraftModel(1, draft_ahead=61)}
MESHES = {  # of the target, or None, and of the drafts
    "one device each": (None, dict()),
    "data and model": (dict(data=2, model=2), dict(data=2, model=2)),
}
ON_MESH = ("ahead", "eagle3")
CELLS = [(name, "one device each") for name in DRAFTERS if name != "eagle3"] + [
    (name, "data and model") for name in ON_MESH
]
"""Each drafter of ``DRAFTERS``, and the mesh with both axes with a model that drafts ahead and with a head."""


def test_every_drafter_is_compiled_for_several_devices():
    """Here, on a mesh, or by the compiler of TPUs; those of each structure in all three where they can be."""
    cells = [{name for name, _ in module.CELLS} for module in (test_sharded, test_tpu_compiler)]
    assert {name for name, _ in CELLS}.union(*cells) >= set(FAMILIES)
    assert all(names >= set(STRUCTURES) for names in cells)


@pytest.fixture(scope="module")
def tpu() -> jax.sharding.Sharding:
    """One chip of a TPU v5e that exists only for its compiler."""
    pytest.importorskip("libtpu", reason="needs libtpu, the TPU compiler; scripts/test.sh --all installs it")
    return jax.sharding.SingleDeviceSharding(compile_only(*parse_device("v5e:1"))[0])


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
    return drafts[0] if drafter.needs.is_one else drafts


def on_mesh(parameters, mesh):
    """Drafts with their weights split over the mesh, heads whole."""
    return place(parameters, mesh, rows=False)


def decode_all(session: Session, target, options=MIXED, rounds=(2,)):
    """The tokens of the prompts' rows, and the batch."""
    decoding = session.start(build_batch(Options.of(options), PROMPTS, target))
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
    target = language_model(load_model(directory, Placement(mesh=mesh)), "tiny")
    text = ",".join(f"{axis}={size}" for axis, size in of_draft.items()) or "cpu"
    parameters = on_mesh(parameters_of(drafter), make_draft_mesh(text, mesh))
    parameters = drafter.parameters(parameters, TINY.vocab_size)
    return ApartSession(target, drafter, parameters, resolve("auto", drafter.drawn))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mesh"), [pytest.param(*cell, id="-".join(cell)) for cell in CELLS])
def test_drafts_apart_give_the_tokens_of_one_device(name, mesh, directory, together):
    """Greedy and sampled rows with a stop string, which end at different rounds, in as many target calls."""
    session = make_session(name, directory, MESHES[mesh])
    texts, decoding = decode_all(session, session.target)
    hits, calls = decoding.draft.hits.tolist(), decoding.state.counters.calls.tolist()
    assert (texts, calls) == together(name)
    assert all(hit < call for hit, call in zip(hits, calls)) and (sum(hits) > 4) == name.startswith("ahead")
    if name == "ahead":
        check_programs(session)
    if name == "ahead by one":  # all 61 tokens are guessed, so only the first round is drafted afterwards
        assert hits == [call - 1 for call in calls]


@pytest.fixture(scope="module")
def round_ahead():
    """A draft's half after it proposed a tree, for rows with and without options, and its drafts of the next round."""
    drafter, prompts = DraftModel(3, draft_ahead=2), [[5], [7, 8, 9, 10], [3], [11, 12]]
    options = dict(temperature=[0.0, 0.0, 1.0, 0.6], repetition_penalty=[1.0, 1.0, 1.3, 1.0], seed=4)
    requests = make_requests(prompts, drafter=drafter, max_new_tokens=40, capacity=64, **options)
    target, draft = tiny_model(0), disturbed(tiny_model(0))

    @jax.jit
    def begin(target, draft, requests):
        state = prefill(target, draft, requests, drafter=drafter)
        tree, drafted = drafter.propose(target, draft, state, decode.round_keys(state, 4)[0])
        state = state.replace(drafter=drafted, cache=KVCache((), state.cache.length))
        return state, tree, draft_ahead(drafter, target, draft, state, tree)

    return prompts, drafter, draft, *begin(target, draft, requests)


@pytest.mark.slow
def test_a_draft_made_ahead_is_the_draft_made_after_the_verdict(round_ahead):
    """For every outcome, the ordinary commit and the ordinary proposal give the same tokens and the same q."""
    prompts, drafter, draft, state, tree, ahead = round_ahead
    B = len(prompts)

    @jax.jit
    def draft_after(draft, state, verdict):
        scored = Scored(jnp.zeros(()), (), logits=jnp.zeros(()))
        found = decode.Round(tree, state.drafter, scored, jnp.zeros(()), verdict, state.failed)
        after = decode.commit(draft, draft, state, found, drafter=drafter)
        return after, *drafter.propose(draft, draft, after, decode.round_keys(after, 4)[0])

    assert ahead.root.shape == (8, B)
    for outcome, root in enumerate(ahead.root):
        length = jnp.full(B, outcome // 2 + 1)
        path = jnp.minimum(jnp.arange(4), length[:, None] - 1)
        after, wanted, drafted = draft_after(draft, state, Verdict(path, length, root))
        np.testing.assert_array_equal(ahead.length[outcome], after.length)
        np.testing.assert_array_equal(ahead.tree.tokens[outcome], wanted.tokens)
        np.testing.assert_allclose(ahead.tree.q[outcome], wanted.q, atol=1e-5)
        for made, now in zip(jax.tree.leaves(ahead.rows), jax.tree.leaves(drafted.rows)):
            np.testing.assert_allclose(made[outcome], now, atol=1e-4)


@pytest.mark.slow
def test_the_guesses_are_the_likeliest_tokens_that_were_not_drafted(round_ahead):
    """After all K tokens the guesses are the likeliest of all tokens. The draft's whole forward is the oracle."""
    prompts, _, draft, _, tree, ahead = round_ahead
    for b in (0, 1, 3):  # the rows without a penalty
        text = jnp.array([prompts[b][:-1] + tree.tokens[b].tolist()])
        causal = jnp.tril(jnp.ones((text.size,) * 2, bool))
        hidden = jax.jit(draft.__call__)(text, jnp.arange(text.size)[None], causal).hidden
        scores = np.array(draft.logits(hidden)[0, len(prompts[b]) - 1 :])
        scores[np.arange(3), tree.tokens[b, 1:]] = -np.inf
        np.testing.assert_array_equal(ahead.root[:, b], np.argsort(-scores, 1)[:, :2].ravel())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slow:
    """A model that multiplies zeros ``steps`` times whenever it reads four nodes, and adds the result."""

    model: nnx.Module
    steps: jax.Array

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, tokens, *args, **options):
        out = self.model(tokens, *args, **options)
        if tokens.shape[1] != 4:
            return out
        product = lambda _, x: jnp.tanh(x @ x)
        return out.replace(hidden=out.hidden + jax.lax.fori_loop(0, self.steps, product, jnp.zeros((256, 256)))[0, 0])


@pytest.fixture(scope="module")
def apart(target, draft):
    """A generator whose draft is on a mesh of another device. Its target can be made slow."""
    model = on_mesh(draft.model, make_draft_mesh("cpu", None))
    slow = dataclasses.replace(target, model=Slow(target.model, jnp.int32(0)), generators={})
    beside = dataclasses.replace(draft, model=model)
    return Generator(slow, draft=beside, num_speculative_tokens=3, draft_ahead=3)


@pytest.fixture(scope="module")
def alone(target, draft):
    """The results on one device."""
    return Generator(target, draft=draft, num_speculative_tokens=3)(PROMPTS, **MIXED)


@pytest.mark.slow
def test_a_draft_that_is_loaded_elsewhere_stays_there(apart, alone):
    """``Generator`` needs no switch. Greedy and sampled rows with a stop string have the texts of one device."""
    assert isinstance(apart.session, ApartSession)
    results = apart(PROMPTS, **MIXED)
    key = lambda result: (result.text, result.token_ids, result.from_draft, result.finish_reason)
    assert [key(result) for result in results] == [key(result) for result in alone]
    for one, other in zip(results, alone):
        names = ("target_calls", "drafted", "accepted_at")
        assert all(getattr(one.stats, name) == getattr(other.stats, name) for name in names)
        assert other.stats.drafted_ahead == 0 <= one.stats.drafted_ahead < one.stats.target_calls
    assert sum(result.stats.drafted_ahead for result in results) > 4
    assert results[0].stats.as_dict()["drafted_ahead"] == results[0].stats.drafted_ahead


def wait_until(condition, seconds: float = 0.3) -> None:
    """Returns when the condition holds, or after a time that is short beside the target's."""
    finish = time.monotonic() + seconds
    while not condition() and time.monotonic() < finish:
        time.sleep(0.01)


@pytest.mark.slow
def test_the_drafts_of_the_next_round_are_ready_before_the_verdict(apart, monkeypatch):
    """The target verifies for seconds. The draft ends its drafts ahead at once, and its other work after that."""
    session, enqueue, ready = apart.session, apart.session._enqueue, {}
    decoding = apart.start(PROMPTS, **MIXED)
    session.advance(decoding, 1)  # compiles

    def watch(mesh, function, modules, args, *options):
        out = enqueue(mesh, function, modules, args, *options)
        if function.func.__name__ == "verify":
            ready["verdict"] = out[2]
        if function.func.__name__ == "look_ahead":
            jax.block_until_ready(out)
            ready["before"] = ready["verdict"].is_ready()
        if function.func.__name__ == "follow":
            jax.block_until_ready(out)
            wait_until(ready["verdict"].is_ready)  # outputs of one program may be marked one after the other
            ready["after"] = ready["verdict"].is_ready()
        return out

    monkeypatch.setattr(session, "_enqueue", watch)
    given = apart.target
    apart.update(dataclasses.replace(given.model, steps=jnp.int32(6000)))
    session.advance(decoding, 1)
    apart.update(given.model)
    assert (ready["before"], ready["after"]) == (False, True)


def test_halves_share_nothing_and_the_host_waits_once_a_round(apart, monkeypatch):
    """Neither half has the other's devices and weights. The draft made ahead takes no output of the verification."""
    session = apart.session
    events, enqueue, get = [], session._enqueue, jax.device_get

    def record(mesh, function, modules, args, *options):
        given, out = jax.tree.leaves(args), enqueue(mesh, function, modules, args, *options)
        events.append((function.func.__name__, given, jax.tree.leaves(out)))
        return out

    def read(x):
        events.append(("read", [], [x]))
        return get(x)

    decoding = apart.start(PROMPTS, **MIXED)
    monkeypatch.setattr(session, "_enqueue", record)
    monkeypatch.setattr(jax, "device_get", read)
    session.advance(decoding)
    names = [name for name, _, _ in events]
    first = names.index("verify")
    assert names[first : first + 8] == ["verify", "look_ahead", "follow", "read"] * 2
    verified = {id(x) for name, _, out in events if name == "verify" for x in out}
    ahead = [given for name, given, _ in events if name == "look_ahead"]
    assert not any(id(x) in verified for given in ahead for x in given)
    check_programs(session)
    (program,) = (compiled for key, compiled in session._compiled.items() if key[0] == "look_ahead")
    assert len(jax.tree.leaves(program.in_avals)) == len(jax.tree.leaves(session.parameters)) + len(ahead[0])


def check_programs(session: ApartSession) -> None:
    """Each program runs on the devices of its half alone; the draft's half has no weights of the target."""
    devices = lambda mesh: {jax.devices()[0]} if mesh is None else {*mesh.devices.flat}
    target, draft = devices(session.mesh), devices(session.draft_mesh)
    assert target.isdisjoint(draft) and not jax.tree.leaves(session.outer)
    assert {key[0] for key in session._compiled} >= {"prefill", "begin", "propose", "verify", "look_ahead", "follow"}
    for (name, *_), compiled in session._compiled.items():
        used = {device for sharding in jax.tree.leaves(compiled.input_shardings) for device in sharding.device_set}
        assert used == (target if name in ("prefill", "verify") else draft), name


def compile_halves(device: jax.sharding.Sharding, drafter: DraftModel) -> dict[str, str]:
    """The texts of a round's compiled programs, for abstract models of realistic widths."""
    rule, shape = resolve("auto", drafter.drawn), jax.eval_shape
    placed = lambda tree: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)
    target, draft = (placed(abstract_decoder(config, jnp.bfloat16)) for config in (WIDE, WIDE.replace(num_layers=1)))
    outer = OuterLayers(target, drafter.needs)
    static, requests = dict(chunk=16, dtype=jnp.bfloat16), shape(lambda: make_blank_requests(2, 1280))
    received = partial(verify, drafter=Received(drafter), rule=rule)
    state = shape(partial(prefill, drafter=Received(drafter), **static), target, None, requests).replace(drafter=())
    view = state.replace(cache=KVCache((), state.cache.length))
    view = shape(partial(begin, drafter=drafter, **static), outer, draft, view, ())
    tree, drafted = shape(partial(drafter.propose, key=state.request.keys), outer, draft, view)
    half = DraftHalf(view.replace(drafter=drafted), tree, view.prompt_length)
    sent = shape(received, target, state, tree)[1]
    ahead = shape(partial(look_ahead, drafter=drafter), outer, draft, half)
    programs = {
        "verify": (received, 1, (target, state, tree)),
        "look_ahead": (partial(look_ahead, drafter=drafter), None, (outer, draft, half)),
        "follow": (partial(follow, drafter=drafter), 2, (outer, draft, half, sent, ahead)),
    }
    return {
        name: jax.jit(function, donate_argnums=donated).lower(*placed(args)).compile().as_text()
        for name, (function, donated, args) in programs.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_no_program_of_a_round_copies_a_cache(platform, request):
    """Neither the commit on the draft's devices nor the drafts of 9 outcomes, which share the draft's cache."""
    device = (
        jax.sharding.SingleDeviceSharding(jax.devices()[0]) if platform == "cpu" else request.getfixturevalue(platform)
    )
    texts = compile_halves(device, DraftModel(2, draft_ahead=3))
    cache = 2 * WIDE.num_kv_heads * 1280 * WIDE.head_dim  # no weight has as many elements
    for name, text in texts.items():
        assert hlo.moved(text, {cache}, ("copy", "transpose"), everywhere=True) == [], name
        everything = sum(hlo.computations(text).values(), [])
        assert [each.text for each in everything if each.size == 9 * cache] == [], name
        assert hlo.host_calls(text) == []


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
    with pytest.raises(RequestError, match="'partial_cascade' drafts with the target's cache; load the draft on"):
        Generator(target, "partial_cascade", elsewhere(1))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--draft-mesh", "cpu"], "--draft-mesh places a draft and none is given; name one with --draft"),
        (["--draft-mesh", "model=2", "--method", "ngram"], "--draft-mesh places a draft and none is given"),
        (["--draft-mesh", "model=2", "--method", "ngram", "--draft", "D"], "method 'ngram' takes no draft"),
        (["--draft-mesh", "depth=2", "--draft", "D"], "axes are data, model, nodes"),
        (["--draft-mesh", "model=0", "--draft", "D"], "mesh axis model must be a whole number from 1"),
        (["--draft-mesh", "model=8", "--draft", "D"], "needs 8 devices and the target leaves 7 of 8"),
        (["--draft-mesh", "cpu", "--mesh", "data=8", "--draft", "D"], "needs 1 devices and the target leaves 0"),
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
    command += ["--method", "draft_model"]
    printed = []
    for flags in ([], ["--mesh", "data=2,model=2", "--draft-mesh", "model=2", "--draft-ahead", "2"]):
        assert main([*command, "--json", "--max-new-tokens", "12", *flags]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0]["token_ids"] == printed[1]["token_ids"]
    assert printed[0]["stats"]["drafted_ahead"] == 0 < printed[1]["stats"]["drafted_ahead"]
    assert load(tmp_path / "draft", mesh=make_draft_mesh("model=2", make_mesh(data=2))).config.kv_copies == 1
