"""Acceptance by rank against plain Python that counts place by place; costs; the command ``tune --tree``."""

import itertools
import json
import shlex
import tomllib
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import disturbed, language_model, random_head, random_prompts, tiny_model
from support.reference import list_successors

import specjax
from specjax import Generator, make_requests, step
from specjax.cli import tune as tune_command
from specjax.cli.drafting import drafting_options
from specjax.cli.main import main, make_parser
from specjax.core.tree import as_topology, from_paths
from specjax.drafters import DraftModel, TokenRecycling, make_drafter
from specjax.heads import Head, MedusaConfig, MedusaHeads
from specjax.loop.prefill import prefill
from specjax.rules.chains import rejection
from specjax.tools.tune import acceptance, cost
from specjax.tools.tune import report as tune_report
from specjax.tools.tune import tree as tune
from specjax.tools.tune.cost import Cost, Curve
from specjax.tools.tune.tree_search import expected_tokens

K, DEPTH = 4, 3
TARGET = language_model(tiny_model(0, 8.0, num_layers=1), "target")
DRAFT = language_model(disturbed(TARGET.model, 0.1), "draft")
HEAD = Head(
    random_head(MedusaHeads, MedusaConfig(32, 1, 61, num_heads=2)), MedusaConfig(32, 1, 61, num_heads=2), "head"
)


@pytest.fixture(scope="module", autouse=True)
def _unoptimised():
    """XLA's optimiser takes longer than these small programs run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@jax.jit
def logits_of(model, tokens):
    """Logits [S, V] after every token of a text [S], by a forward without a cache."""
    positions, mask = jnp.arange(tokens.size)[None], jnp.tril(jnp.ones((tokens.size,) * 2, bool))
    return model.logits(model(tokens[None], positions, mask).hidden)[0]


def ranked(model, text: list[int]) -> list[int]:
    """All tokens, the likeliest after a text first."""
    padded = jnp.asarray(np.pad(text, (0, 96 - len(text))), jnp.int32)
    return np.argsort(-np.asarray(logits_of(model, padded))[len(text) - 1], kind="stable").tolist()


def from_prompt(text: list[int]) -> dict[int, list[int]]:
    """For each token its last three successors in the text, the most recent first."""
    table = {}
    for token, successor in zip(text, text[1:]):
        table[token] = [successor, *(other for other in table.get(token, []) if other != successor)][:3]
    return table


def test_likeliest_children_are_counted_one_by_one():
    """The texts are random, so that the target's likeliest tokens differ from the text's."""
    texts = [
        SimpleNamespace(prompt_token_ids=ids[:4], token_ids=ids[4:])
        for ids in ([5, 6] * 9, *random_prompts(2, 30, seed=2))
        if len(ids) > 5
    ]
    tried, accepted, tried_at, accepted_at = np.zeros(K), np.zeros(K), np.zeros((DEPTH, K)), np.zeros((DEPTH, K))
    for text in texts:
        ids, first = text.prompt_token_ids + text.token_ids, len(text.prompt_token_ids)
        places = []  # for each place: the rank of the target's likeliest token, and whether the text's token is a child
        for n in range(first, len(ids)):
            children, wanted = ranked(DRAFT.model, ids[:n])[:K], ranked(TARGET.model, ids[:n])[0]
            places.append((children.index(wanted) if wanted in children else K, ids[n] in children))
        for start in range(len(places)):
            for d, (rank, kept) in enumerate(places[start:][:DEPTH]):
                tried_at[d, : rank + 1] += 1
                accepted_at[d, rank : rank + 1] += 1
                if d == 0:
                    tried[: rank + 1] += 1
                    accepted[rank : rank + 1] += 1
                if not kept:
                    break
    found = acceptance.of_draft(TARGET, DRAFT, texts, depth=DEPTH, ranks=K)
    for name, wanted in dict(tried=tried, accepted=accepted, tried_at=tried_at, accepted_at=accepted_at).items():
        np.testing.assert_allclose(getattr(found, name), wanted, err_msg=name)
    assert found.P[0] == accepted[0] / tried[0] and found.chance.sum() == pytest.approx(accepted.sum() / tried[0])


def test_drawn_children_are_accepted_as_recursive_rejection_does():
    """Every order of draws without replacement, with its probability, through the rule of algorithm 1 of the paper."""
    p, q = np.array([0.45, 0.3, 0.15, 0.1, 0.0]), np.array([0.1, 0.35, 0.0, 0.25, 0.3])
    tried, accepted = np.zeros(5), np.zeros((5, 5))  # there are four tokens to draw

    def draw(r, q, rank, weight):
        if rank == 5:
            return
        tried[rank] += weight
        for x in np.flatnonzero(q):
            keep = min(1, r[x] / q[x])
            accepted[rank, x] += weight * q[x] * keep
            left, others = np.maximum(r - q, 0), np.where(np.arange(5) == x, 0, q)
            if keep < 1:
                draw(left / left.sum(), others / max(others.sum(), 1e-9), rank + 1, weight * q[x] * (1 - keep))
        if not q.any():
            draw(r, q, rank + 1, weight)

    draw(p, q, 0, 1.0)
    keys = jax.random.split(jax.random.key(0), 6_000)
    for token in (1,):
        found = jax.vmap(acceptance._try_drawn, (None, None, None, 0, None))(
            jnp.float32(p), jnp.float32(q), token, keys, 5
        )
        for sums, wanted in zip(found, (tried, accepted.sum(1), accepted[:, token])):
            assert sums[:, 0].std() < 1e-6  # nothing was drawn yet
            np.testing.assert_allclose(sums.mean(0), wanted, atol=0.02)


def test_places_of_a_table_are_counted_round_by_round():
    shape = from_paths([(0,), (1,), (0, 0), (0, 1), (0, 0, 0)])
    prompts, new, depth = [[7], [5, 6, 5, 7, 5, 6, 8, 5]], 12, 3
    tried, accepted = np.zeros((depth + 1, 3)), np.zeros((depth + 1, 3))
    for prompt in prompts:
        text, table = list(prompt), list_successors(prompt, 3)
        while len(text) < len(prompt) + new:
            nodes = {(): text[-1]}
            for path in shape.paths[1:]:
                successors = table.get(nodes.get(path[:-1]), [])
                if path[-1] < len(successors):
                    nodes[path] = successors[path[-1]]
            spelled = {path: [nodes[path[: i + 1]] for i in range(len(path))] for path in nodes}
            best = {path: ranked(TARGET.model, text + spelled[path]) for path in nodes}
            at, emitted = (), []
            while at is not None and len(text) + len(emitted) < len(prompt) + new:
                successors, wanted = table.get(nodes[at], []), best[at][0]
                rank = successors.index(wanted) if wanted in successors else 3
                tried[len(at), : rank + 1] += 1
                accepted[len(at), rank : rank + 1] += 1
                emitted.append(wanted)
                at = (*at, rank) if (*at, rank) in nodes else None
            table |= {nodes[path]: best[path][:3] for path in nodes}
            text += emitted
    found = acceptance.of_recycling(TARGET, prompts, max_new_tokens=new, drafter=TokenRecycling(shape, 3))
    np.testing.assert_allclose(found.tried_at, tried)
    np.testing.assert_allclose(found.accepted_at, accepted)
    assert found.tried[0] == len(prompts) * new and found.accepted.sum() > 0


def test_deviations_shrink_with_what_was_tried():
    found = acceptance.Acceptance(np.array([100.0, 25.0, 0.0]), np.array([50.0, 5.0, 0.0]), *np.zeros((2, 1, 3)))
    np.testing.assert_allclose(found.P, [0.5, 0.2, 0])
    np.testing.assert_allclose(found.chance, [0.5, 0.05, 0])
    np.testing.assert_allclose(found.deviation, [0.05, 0.08, 1])


@pytest.mark.slow
def test_expected_tokens_are_those_of_the_real_loop():
    """Drawn trees at temperature 1, where the text of a random model does not repeat itself."""
    tree = from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])
    results = Generator(TARGET, "tree", DRAFT, tree=tree)(
        random_prompts(24, 8, seed=5), temperature=1.0, max_new_tokens=64, ignore_eos=True
    )
    found = acceptance.of_draft(TARGET, DRAFT, results, temperature=1.0, depth=2, ranks=3)
    measured = sum(r.stats.generated for r in results) / sum(r.stats.target_calls for r in results)
    assert measured == pytest.approx(expected_tokens(tree, found.chance), rel=0.05)
    assert measured == pytest.approx(expected_tokens(tree, found.chance_at), rel=0.05)


def test_turns_rotate_and_the_first_run_does_not_count():
    seen, clock = [], itertools.count()
    timer = lambda name: lambda: (seen.append(name), float(next(clock)))[1]
    samples = cost.alternate({name: timer(name) for name in "abc"}, 2)
    assert "".join(seen) == "abcbcacab"
    assert {name: times.tolist() for name, times in samples.items()} == {"a": [5, 7], "b": [3, 8], "c": [4, 6]}


@pytest.mark.slow
def test_costs_are_timed_after_everything_is_compiled(monkeypatch):
    compiled, alternate = [], cost.alternate

    def timed(timers, repeats):
        listen = lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
        for timer in timers.values():
            timer()  # copying a state for the first time compiles the copy
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            return alternate(timers, repeats)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)

    monkeypatch.setattr(cost, "alternate", timed)
    found = cost.measure(
        TARGET, DRAFT, length=9, batch=2, temperature=1.0, nodes=(1, 4), widths=(2,), rounds=2, repeats=3
    )
    assert compiled == []
    assert found.verify.sizes == (1, 4) and found.verify.samples.shape == (2, 3) and (found.verify.samples > 0).all()
    assert found.verify.quartiles.shape == (3, 2) and found.of_round(as_topology("2")) > 0


def test_caches_of_unread_texts():
    """They have the shapes and lengths of a text that was read, and all their positions are filled."""
    drafter = DraftModel(2)
    requests = make_requests([[1, 2, 3, 4, 5, 6, 7], [3, 1, 2]], drafter=drafter, max_new_tokens=6, capacity=32)
    given = TARGET.model, DRAFT.model
    prefilled = lambda *models: prefill(*models, requests, drafter=drafter, chunk=4)
    unread = jax.jit(prefilled)(*map(cost.Unread, given))
    shapes = lambda state: jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert shapes(unread) == shapes(jax.eval_shape(prefilled, *given))
    for cache, lengths in ((unread.cache, [6, 2]), (unread.drafter.cache, [5, 1])):
        np.testing.assert_array_equal(cache.length, lengths)
        for leaf in jax.tree.leaves(cache.layers):
            filled = np.asarray(leaf)[0, :, : lengths[0]]
            assert np.unique(filled).size == filled.size and 0.7 < filled.std() < 1.3
    after = jax.jit(partial(step, drafter=drafter, rule=rejection))(*given, unread)
    assert (after.length > unread.length).all() and not after.failed.any()


@pytest.fixture
def specjax_main(capsys, monkeypatch):
    models = {"target": TARGET, "draft": DRAFT, "head": HEAD}
    monkeypatch.setattr(specjax.checkpoints.load, "load", lambda name, **options: models[str(name)])
    monkeypatch.setattr(tune_command, "load_given_drafts", lambda args, target: [models[name] for name in args.draft])

    def run(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def cheap(verify, level: float) -> Cost:
    return Cost(Curve((1, 9), np.array(verify)[:, None]), Curve((1,), np.array([[level]])))


def test_the_command_writes_what_generate_reads(specjax_main, monkeypatch, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "my tree.toml"
    prompts.write_text('{"prompt": "def f("}\n{"prompt": "class A:"}\n')
    argv = (
        "tune",
        "--tree",
        "--model",
        "target",
        "--draft",
        "draft",
        "--prompts",
        prompts,
        "--max-new-tokens",
        "16",
        "--max-nodes",
        "9",
    )
    for verify, level, note in (([1.0, 1.05], 0.4, None), ([1.0, 1.2], 9.0, "no tree beats plain")):
        monkeypatch.setattr(cost, "measure", lambda *args, **options: cheap(verify, level))
        code, out, err = specjax_main(*argv, "--output", output)
        assert (code, err) == (0, "") and "plain decoding" in out and "best" in out
        assert note in out if note else "note" not in out
        written = output.read_text()
        assert written.startswith("# ") and "target with draft" in written and "temperature 0.0" in written
    _, out, _ = specjax_main(*argv, "--output", output)
    report = json.loads(specjax_main(*argv, "--json")[1])
    assert as_topology(str(output)) == from_paths(report["best"]["paths"])
    (line,) = (line for line in out.splitlines() if line.startswith("now: "))
    args = make_parser().parse_args(shlex.split(line)[2:])
    assert make_drafter(args.method, **drafting_options(args)).tree == as_topology(str(output))
    assert (args.model, args.draft, args.siblings) == ("target", ["draft"], "top_k") and not args.temperature
    assert report["acceptance"]["tried"][0] == 2 * 16 and len(report["trees"]) == 8


def test_above_temperature_0_the_best_options_of_the_draft_are_kept(specjax_main, monkeypatch, tmp_path):
    """The draft is the target with half its logits: drawn at half the temperature it has the target's distributions."""
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "def f("}\n{"prompt": "class A:"}\n')
    flat = language_model(tiny_model(0, 8.0, num_layers=1), "draft")
    flat.model.head[...] /= 2
    monkeypatch.setattr(tune_command, "load_given_drafts", lambda args, target: [flat])
    monkeypatch.setattr(cost, "measure", lambda *args, **options: cheap([1.0, 1.05], 0.1))
    argv = ("--prompts", prompts, "--max-new-tokens", "16", "--max-nodes", "5", "--temperature", "0.8")
    code, out, err = specjax_main("tune", "--tree", "--model", "target", "--draft", "draft", *argv, "--json")
    report = json.loads(out)
    best, tried = report["best"], [one["options"] for one in report["draft_options"]]
    assert (code, err) == (0, "") and report["settings"]["draft_options"] == {"draft_temperature": 0.4}
    assert [one["draft_temperature"] for one in tried[:5]] == [0.4, 0.56, 0.68, 0.8, 0.96]
    cuts = [{"draft_top_k": 4}, {"draft_top_k": 16}, {"draft_top_p": 0.8}, {"draft_top_p": 0.95}]
    assert tried[5:] == [{"draft_temperature": 0.4} | cut for cut in cuts]
    assert report["acceptance"]["P"][0] == pytest.approx(1, abs=1e-3)
    assert report["draft_options"][0]["speedup"] == best["speedup"]
    (note,) = (note for note in tune_report.notes(report) if "own options" in note)
    assert f"{best['speedup']:.2f} with --draft-temperature 0.4" in note
    written = tomllib.loads(tune_report.toml(report))
    assert written == {"paths": best["paths"], "draft_temperature": 0.4}
    assert "# use it with --draft-temperature 0.4\n" in tune_report.toml(report)
    args = make_parser().parse_args(shlex.split(tune_report.command(report, "2,1"))[1:])
    assert make_drafter(args.method, **drafting_options(args)).draft_temperature == 0.4


def test_a_truncation_is_tried_at_the_best_temperature():
    """The target draws from 4 tokens. The draft has them at half their logits, and a tail. Speed is sum min(p, q)."""
    logits = np.array([3.0, 2.0, 1.5, 1.0, *[0.0] * 20])
    p = np.where(np.arange(24) < 4, np.exp(logits), 0) / np.exp(logits[:4]).sum()

    def overlap(draft_temperature, draft_top_k=0, draft_top_p=1.0):
        q = np.exp(logits / 2 / draft_temperature) / np.exp(logits / 2 / draft_temperature).sum()
        kept = np.arange(24) < (draft_top_k or 24)
        kept &= np.cumsum(q) - q < draft_top_p  # the tokens are sorted
        return np.minimum(p, q * kept / (q * kept).sum()).sum()

    tried = tune._measure_options(overlap, lambda found: found, 1.0)
    grid = {t: overlap(t) for t in tune.DRAFT_TEMPERATURES}
    assert [speed for *_, speed in tried[:5]] == list(grid.values()) and len(tried) == 9
    best, _, speed = max(tried, key=lambda one: one[2])
    assert best == {"draft_temperature": max(grid, key=grid.get), "draft_top_k": 4} and speed == pytest.approx(1)


def test_a_head_brings_its_method(specjax_main, monkeypatch, tmp_path):
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "def f("}\n{"prompt": "class A:"}\n')
    monkeypatch.setattr(cost, "measure", lambda *args, **options: cheap([1.0, 1.05], 0.4))
    argv = ("--prompts", prompts, "--max-new-tokens", "16", "--max-nodes", "5", "--json")
    code, out, err = specjax_main("tune", "--tree", "--model", "target", "--draft", "head", *argv)
    report = json.loads(out)
    assert (code, err, report["settings"]["method"]) == (0, "", "medusa")
    assert max(tree["depth"] for tree in report["trees"]) <= 2 and "--siblings" not in tune_report.command(
        report, "TREE.toml"
    )


def test_chains_are_named_as_such():
    chain = dict(nodes=3, depth=2, tokens=2.0, seconds=1.0, speedup=1.5, paths=[[0], [0, 0]])
    report = dict(
        best=chain,
        chain=chain,
        trees=[chain],
        draft_options=[],
        cost={"verify": {"sizes": [1, 3], "median": [1.0, 1.5]}},
    )
    assert tune_report.notes(report) == ["no tree beats the chain here: the best tree has no branches"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--draft", "draft"), "--tree"),
        (("--tree",), "needs a draft"),
        (("--tree", "--method", "token_recycling", "--draft", "draft"), "takes no draft"),
        (("--tree", "--method", "ngram"), "no tree to tune"),
        (("--tree", "--method", "mtp"), "no tree to tune"),
        (("--tree", "--method", "medusa"), "name one with draft"),
        (("--tree", "--method", "medusa", "--draft", "draft"), "is a language model"),
        (("--tree", "--method", "tree", "--draft", "head"), "is a head of kind 'medusa'"),
        (("--tree", "--method", "eagle3", "--temperature", "1"), "leave --temperature out"),
        (("--tree", "--draft", "draft", "--max-nodes", "0"), "--max-nodes: must be a whole number from 2"),
        (("--tree", "--draft", "draft", "--max-depth", "0"), "--max-depth: must be a whole number from 1"),
        (("--tree", "--draft", "draft", "--batch", "0"), "--batch: must be"),
        (("--tree", "--draft", "draft", "--num-prompts", "0"), "--num-prompts: must be"),
        (("--tree", "--draft", "draft", "--temperature", "-1"), "temperature"),
        (("--tree", "--draft", "draft", "--prompts", "/nowhere/prompts"), "/nowhere/prompts"),
        (("--tree", "--draft", "draft", "--output", "/nowhere/tree.toml"), "--output /nowhere/tree.toml"),
        (("--tree", "--draft", "draft", "--output", "/"), "--output"),
    ],
)
def test_bad_input_gets_one_line(specjax_main, argv, words, tmp_path):
    """Three errors need the loaded models. A file of prompts is read faster than held-out code is found."""
    (prompts := tmp_path / "prompts.jsonl").write_text('{"prompt": "def f("}\n')
    code, out, err = specjax_main("tune", "--model", "target", "--prompts", prompts, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(max_node=3), "option 'max_node' is unknown; did you mean max_nodes"),
        (dict(max_nodes=1), "max_nodes must be a whole number, at least 2"),
        (dict(temperature=-1.0), "temperature must be a number, at least 0"),
    ],
)
def test_settings_that_no_search_has_are_refused(settings, words):
    with pytest.raises(specjax.RequestError, match=words):
        tune.tune_tree(TARGET, DRAFT, ["a"], **settings)
