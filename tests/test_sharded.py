"""Meshes of eight simulated devices: drafters give the tokens of one device.

The parameters and caches that a mesh splits lie in parts on its devices.
"""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from support.loops import SHARES, STRUCTURES, make_drafters
from support.models import TINY, language_model, random_head, random_prompts, tiny_model

from specjax import Generator, RequestError, make_mesh, save
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.cli.main import main
from specjax.heads import KINDS
from specjax.loop.drafter import Models, TrainedHead
from specjax.parallel import WHOLE, parse_mesh, place
from specjax.requests.batch import build_batch
from specjax.requests.options import Options
from specjax.rules.acceptance import resolve
from specjax.text.session import Session

DRAFTERS = make_drafters(TINY.replace(num_layers=1, num_kv_heads=1))
PROMPTS = random_prompts(4, TINY.vocab_size, seed=3)
MIXED = dict(
    temperature=[0.0, 0.0, 1.0, 0.7], seed=[1, 2, 3, 4], max_new_tokens=[20, 13, 20, 7], stop=[None, ["A"], None, None]
)
MESHES = {
    "data": dict(data=4),
    "model": dict(model=2),
    "copied key heads": dict(model=4),
    "data and model": dict(data=2, model=4),
    "all axes": dict(data=2, model=2, nodes=2),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The checkpoint of the target."""
    save_model(tiny_model(0), path := tmp_path_factory.mktemp("target"))
    return path


@pytest.fixture(scope="module")
def unsharded():
    """The texts of one device by drafter, filled as they are asked for."""
    return {}


def texts(drafter, directory, mesh) -> list[list[int]]:
    """The tokens of the prompts' rows, with the weights of target and drafts on the mesh."""
    target = language_model(load_model(directory, Placement(mesh=mesh)), "tiny")
    given = place(parameters_of(drafter), mesh, rows=False)
    session = Session(target, drafter, drafter.parameters(given, TINY.vocab_size), resolve("auto", drafter.drawn))
    decoding = session.start(build_batch(Options.of(MIXED), PROMPTS, target))
    session.advance(decoding, 2)
    session.advance(decoding)
    ends, tokens = np.asarray(decoding.state.cache.length) + 1, np.asarray(decoding.state.tokens)
    if mesh is not None:
        check_parts(decoding.state, mesh)
    return [row[:end].tolist() for row, end in zip(tokens, ends)]


def parameters_of(drafter):
    """Random drafts or a random head for a drafter."""
    if isinstance(drafter.needs, TrainedHead):
        return random_head(KINDS[drafter.head.kind].module, drafter.head)
    if isinstance(drafter.needs, Models):
        drafts = tuple(tiny_model(seed, num_layers=1) for seed in range(1, 1 + drafter.needs.least))
        return drafts[0] if drafter.needs.is_one else drafts
    return None


def check_parts(state, mesh) -> None:
    """Each device holds its rows and its key heads of the cache."""
    keys = state.cache.layers[0][0]
    data, model = mesh.shape["data"], mesh.shape["model"]
    heads = max(TINY.num_kv_heads, model)
    assert keys.shape[:2] == (len(PROMPTS), heads)
    assert keys.sharding.shard_shape(keys.shape)[:2] == (len(PROMPTS) // data, heads // model)
    assert state.tokens.sharding.shard_shape(state.tokens.shape)[0] == len(PROMPTS) // data


TURNS = [*MESHES, "data and model"]
CELLS = [(name, TURNS[i % len(TURNS)]) for i, name in enumerate((*STRUCTURES, *SHARES["sharded"]))]
"""Drafters of each structure, and every mesh with several drafters, most on the one with all difficulties but nodes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [pytest.param(*cell, id="-".join(cell)) for cell in sorted({*CELLS, ("eagle3", "data and model")})],
)
def test_drafters_give_the_tokens_of_one_device(name, mesh, directory, unsharded):
    if name not in unsharded:
        unsharded[name] = texts(DRAFTERS[name], directory, None)
    assert texts(DRAFTERS[name], directory, make_mesh(**MESHES[mesh])) == unsharded[name]


def test_key_heads_have_copies_where_devices_are_more(directory, tmp_path):
    """Each of four devices holds one of the four key heads that stand for two; saving writes two."""
    model = load_model(directory, Placement(mesh=make_mesh(model=4)))
    assert (model.config.num_kv_heads, model.config.kv_copies) == (4, 2)
    D, whole = TINY.head_dim, np.asarray(load_model(directory).layers[0].mixer.qkv[...])
    first, second = whole[: 4 * D], whole[4 * D :]  # of each key head two queries, the key, the value
    of = lambda group, query: np.concatenate([group[query * D : (query + 1) * D], group[2 * D :]])
    wanted = np.concatenate([of(first, 0), of(first, 1), of(second, 0), of(second, 1)])
    np.testing.assert_array_equal(model.layers[0].mixer.qkv[...], wanted)
    save_model(model, tmp_path / "copy")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "copy" / file).read_bytes() == (directory / file).read_bytes()


@pytest.mark.slow
def test_a_given_draft_goes_to_the_targets_devices(directory):
    target = language_model(load_model(directory, Placement(mesh=make_mesh(data=2, model=2))), "tiny")
    draft = language_model(tiny_model(1, num_layers=1), "draft")
    generator = Generator(target, draft=draft)
    assert generator.method == "auto"
    (given,) = generator.session.parameters.models
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(nnx.state(given))} == {PartitionSpec()}
    alone = Generator(language_model(load_model(directory), "tiny"), "none")  # a seeded text is that of plain decoding
    options = dict(max_new_tokens=8, n=2, temperature=1.0, seed=5)
    together, apart = (g(PROMPTS[:2], **options) for g in (generator, alone))
    assert [result.token_ids for result in together] == [result.token_ids for result in apart]


@pytest.mark.slow
def test_rows_that_the_axis_does_not_divide_are_whole(directory):
    mesh = make_mesh(data=2, model=2)
    target = language_model(load_model(directory, Placement(mesh=mesh)), "tiny")
    alone = language_model(load_model(directory), "tiny")
    together, apart = (Generator(model, "ngram")(PROMPTS[:3], max_new_tokens=6) for model in (target, alone))
    assert [result.token_ids for result in together] == [result.token_ids for result in apart]
    assert place(np.zeros((3, 2)), mesh, rows=True).sharding.spec == PartitionSpec()


def test_a_model_that_is_held_whole_has_no_copies(directory):
    model = load_model(directory, Placement(mesh=make_mesh(model=8), rules=WHOLE))
    assert model.config == load_model(directory).config
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(nnx.state(model)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no list of axes such as data=2,model=4"),
        ("model", "no list of axes"),
        ("model=2,model=2", "no list of axes"),
        ("depth=2", "axes are data, model, nodes"),
        ("model=0", "mesh axis model must be a whole number from 1"),
        ("data=3,model=3", "the mesh needs 9 devices and the number at hand is 8"),
    ],
)
def test_bad_meshes_are_named(text, named):
    with pytest.raises(RequestError, match=named):
        make_mesh(**parse_mesh(text))


def test_a_mesh_that_does_not_divide_the_heads_is_refused(directory):
    with pytest.raises(RequestError, match="model=8 does not divide the model's 4 attention heads; use model=1, 2, 4"):
        load_model(directory, Placement(mesh=make_mesh(model=8)))


@pytest.mark.slow
def test_the_command_line_on_a_mesh(tmp_path, capsys):
    """``generate``, ``compare`` and ``verify`` load into a mesh, and print the same as without a mesh."""
    save(language_model(tiny_model(0), "tiny"), tmp_path / "target")
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("abab", "cdc")))

    prompts = "--prompts", tmp_path / "prompts.jsonl"
    acceptance = lambda printed: [row["mean_acceptance_length"] for row in printed["methods"]]
    for command, figures in [
        (("generate", "--method", "ngram", "--prompt", "ab"), lambda printed: printed["token_ids"]),
        (("compare", "--methods", "ngram", *prompts), acceptance),
        (("verify", "--method", "ngram", "--samples", "64", *prompts), lambda printed: printed),
    ]:
        command = [*map(str, command), "--model", str(tmp_path / "target"), "--json", "--max-new-tokens", "8"]
        found = []
        for mesh in [], ["--mesh", "data=2,model=4"]:
            assert main([*command, *mesh]) == 0
            found.append(figures(json.loads(capsys.readouterr().out)))
        assert found[0] == found[1]
        assert main([*command, "--mesh", "model=8"]) == 2
        assert "does not divide the model's 4 attention heads" in capsys.readouterr().err


def test_a_mesh_asks_the_host_as_one_device_does(directory):
    """And drafts as one device does."""
    drafter = DRAFTERS["draft_model"]
    options = dict(grammar=['start: /[A-Z]{3,9}/ "0"', None] * 2, temperature=[0.0, 0.0, 1.0, 0.7], seed=[1, 2, 3, 4])
    found = []
    for mesh in (None, make_mesh(data=2, model=2)):
        target = language_model(load_model(directory, Placement(mesh=mesh)), "tiny")
        given = drafter.parameters(place(parameters_of(drafter), mesh, rows=False), TINY.vocab_size)
        session = Session(target, drafter, given, resolve("auto", drafter.drawn))
        decoding = session.start(build_batch(Options.of(options | dict(max_new_tokens=14)), PROMPTS, target))
        session.advance(decoding)
        found.append(np.asarray(decoding.state.tokens).tolist())
    assert found[0] == found[1]
