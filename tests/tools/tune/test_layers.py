"""The choice of layers: agreement against numpy, costs and speed-ups against formulas, models with a known answer."""

import json
import tomllib

import numpy as np
import pytest
from support.models import language_model, tiny_model
from support.partial_target import TARGET, logits_without
from support.reference import logits_of, softmax

from specjax import RequestError, save
from specjax.cli.main import main
from specjax.models.decoder import Skip
from specjax.models.feed_forwards import NoMlpConfig
from specjax.models.mixers import DeltaRuleConfig, Mamba2Config, ShortConvConfig
from specjax.tools.tune import layer_agreement, layer_cost, layers
from specjax.tools.tune.layer_cost import Costs, solve, speedup

L = 4
TEXTS = ["def f(a, b):", "class A"]
EACH = Costs((1.0, 0.01), (1.0, 0.01), (1.0, 0.01))  # every part takes a second, and further nodes next to nothing


def idle_above(exit_layer: int):
    """A model whose layers from ``exit_layer`` on do nothing."""
    model = tiny_model(0, 6.0, num_layers=L)
    for layer in model.layers[exit_layer:]:
        layer.mixer.out[...] *= 0
        layer.mlp.down[...] *= 0
    return language_model(model)


@pytest.fixture(scope="module")
def target():
    return idle_above(2)


@pytest.mark.parametrize("temperature", [0.0, 1.7])
def test_agreement_is_that_of_the_first_drafts_of_rounds(temperature):
    model = language_model(TARGET)
    rate = layer_agreement.agreement_on(model, TEXTS, temperature)
    law = lambda logits: np.eye(logits.size)[logits.argmax()] if temperature == 0 else softmax(logits / temperature)
    for skip in (Skip((2,), (1,)), Skip((1, 2), (1, 2))):
        lacks, found = {"attention": {*skip.attention}, "mlp": {*skip.mlp}}, []
        for ids in map(model.tokenizer.encode, TEXTS):
            for end in range(1, len(ids) + 1):
                p, q = (law(logits_without(ids[:end], lack, end - 1)) for lack in ({}, lacks))
                found.append(np.minimum(p, q).sum())
        assert 0 < np.mean(found) < 1
        assert rate(skip) == pytest.approx(np.mean(found), abs=1e-4)


def test_costs_are_solved_from_what_is_missing():
    every, made = tuple(range(L)), Costs((3.0, 0.3), (2.0, 0.1), (5.0, 0.7))
    skips = {Skip(): (L, L), Skip(attention=every): (0, L), Skip(mlp=every): (L, 0)}
    found = solve({(n, skip): made(n, *parts) for n in (1, 6) for skip, parts in skips.items()}, 6, L)
    for name in ("base", "attention", "mlp"):
        assert getattr(found, name) == pytest.approx(getattr(made, name))


def test_speedup_is_leviathans_where_further_nodes_are_free():
    free, skip, alpha, drafted = Costs((1.0, 0.0), (1.0, 0.0), (1.0, 0.0)), Skip((0, 1), (0,)), 0.7, 5
    c = (1 + 2 + 3) / (1 + 2 * L)
    wanted = (1 - alpha ** (drafted + 1)) / ((1 - alpha) * (drafted * c + 1))
    assert speedup(alpha, drafted, skip, free, L) == pytest.approx(wanted)
    deep = Skip((2, 3), (2, 3))  # layers 0 and 1 are run for the last drafted token alone instead of in the verify pass
    assert speedup(1.0, 1, deep, free, L) == pytest.approx(2 * (1 + 2 * L) / ((1 + 4) + 4 + (1 + 4)))


def test_the_best_exit_is_where_the_layers_begin_to_do_nothing(target):
    rate = layer_agreement.agreement_on(target, TEXTS, 0.0)
    found = layers.find_exit(rate, EACH, L, longest=8)
    assert [s.skip.mlp[0] for s in found if s.alpha == 1] == [2, 3] and found[0].skip == Skip((2, 3), (2, 3))
    assert found[0].drafted == 8 and found[0].cost == pytest.approx((1 + 4) / (1 + 8)) and found[0].speedup > 1
    best = layers.find_skip_set(rate, EACH, L, longest=8, budget=8 * L)[0]
    assert {2, 3} <= {*best.skip.attention} and {2, 3} <= {*best.skip.mlp} and best.speedup >= found[0].speedup


@pytest.mark.parametrize(
    "mixer",
    [
        pytest.param(DeltaRuleConfig(1, 2, 4, 4, 3), marks=pytest.mark.slow),
        pytest.param(Mamba2Config(2, 4, 1, 4, 3), marks=pytest.mark.slow),
        ShortConvConfig(8, 3),
    ],
)
def test_a_recurrent_layer_that_is_left_out_adds_nothing(mixer):
    whole, idle = (tiny_model(0, 6.0, num_layers=2, mixers=(None, mixer)) for _ in range(2))
    idle.layers[1].mixer.out_proj[...] *= 0
    ids = language_model(whole).tokenizer.encode(TEXTS[0])
    p, q = (np.stack([softmax(row) for row in logits_of(model, ids)]) for model in (whole, idle))
    shared = np.minimum(p, q).sum(-1).mean()
    rate = layer_agreement.agreement_on(language_model(whole), TEXTS[:1], 1.0)
    assert rate(Skip((1,), ())) == pytest.approx(shared, abs=1e-5) and shared < 0.99


def test_layers_of_one_part_are_refused():
    model = tiny_model(num_layers=2, mlps=(None, NoMlpConfig()))
    with pytest.raises(RequestError, match="one sub-layer only"):
        layers.tune_layers(language_model(model), TEXTS)


def test_texts_may_be_token_ids(target):
    ids, skip = [target.tokenizer.encode(text) for text in TEXTS], Skip((3,), (3,))
    assert layer_agreement.agreement_on(target, ids, 0.0)(skip) == layer_agreement.agreement_on(target, TEXTS, 0.0)(
        skip
    )


def test_a_table_or_json_and_the_flags_to_use(target, tmp_path, monkeypatch, capsys):
    save(target, tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    argv = ["tune", "--layers", "--model", str(tmp_path / "model"), "--prompts", str(prompts), "--budget", str(4 * L)]
    monkeypatch.setattr(layers, "measure_costs", lambda *args: EACH)
    monkeypatch.setattr(layers, "agreement_on", lambda *args: lambda skip: float(min(skip.attention + skip.mlp) >= 2))
    assert main([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["early_exit"][0]["setting"] == "--exit-layer 2"
    assert len(report["early_exit"]) == L - 1 and len(report["layer_skip"]) == 4 * L
    assert report["flags"] in (report["early_exit"][0]["flags"], report["layer_skip"][0]["flags"])

    assert main([*argv, "--output", str(tmp_path / "best.toml")]) == 0
    capsys.readouterr()
    best = tomllib.loads((tmp_path / "best.toml").read_text())
    flags = report["flags"].split()
    assert flags[:2] == ["--method", best.pop("method")] and len(flags) == 2 + 2 * len(best)
    for flag, value in zip(flags[2::2], flags[3::2]):
        assert best[flag[2:].replace("-", "_")] in ([int(n) for n in value.split(",")], json.loads(value.split(",")[0]))

    dear = Costs(
        (1e3, 1e3), (1e-3, 1e-3), (1e-3, 1e-3)
    )  # the output matrix takes all the time, so that no part is cheaper
    monkeypatch.setattr(layers, "measure_costs", lambda *args: dear)
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "no early exit and no set of skipped sub-layers beats plain decoding" in out and "--method" not in out


def test_measure_costs_gives_seconds_of_this_device(monkeypatch):
    monkeypatch.setattr(layer_cost, "_REPEATS", 2)
    costs = layer_cost.measure_costs(tiny_model(num_layers=1), 4, 16, np.float32)
    assert costs(1, 1, 1) > 0 and all(x >= 0 for pair in (costs.base, costs.attention, costs.mlp) for x in pair)


def test_a_budget_too_small_is_named(target):
    with pytest.raises(RequestError, match="budget"):
        layers.tune_layers(target, TEXTS, budget=3)
