"""``specjax plan``: what bad input gets, before any compiler runs, and the output of a plan."""

import json
from importlib import util

import pytest
from support.command_line import assert_one_line, specjax_main
from support.models import TINY

from specjax.checkpoints.config import to_hf
from specjax.tools.plan import settings as plan_settings


@pytest.fixture
def shape(tmp_path):
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(to_hf(TINY.replace(max_position_embeddings=2048))))
    return path


@pytest.fixture
def plan(specjax_main, shape):
    return lambda *argv: specjax_main("plan", "--model", shape, *argv)


def test_bad_input_gets_one_line(specjax_main, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda module: None)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(to_hf(TINY.replace(vocab_size=70))))
    (tmp_path / "plan.toml").write_text("bach = 8")
    for found, words in (
        (specjax_main("plan", "--device", "h100"), "no model is named; use --model"),
        (plan(), "no device is named; use --device"),
        (plan("--device", "h300"), "device 'h300' is unknown; use one of"),
        (plan("--device", "v5e:2-4"), "write v5e:2x4"),
        (plan("--device", "h100"), "pip install 'specjax[cuda]'"),
        (plan("--device", "h100", "--mesh", "depth=2"), "axes are data, model, nodes"),
        (plan("--device", "h100", "--method", "draft_model"), "needs a draft"),
        (plan("--device", "h100", "--method", "ngram", "--draft", other), "takes no draft, and 1 are named"),
        (plan("--device", "h100:2", "--offload"), "offload copies layers to one device and h100:2 has several"),
        (plan("--device", "h100", "--offload", "--method", "early_exit", "--exit-layer", "1"), "the target's layers"),
        (plan("--device", "h100", "--draft", other), "a vocabulary of 70 tokens and the target one of 61"),
        (plan("--device", "h100", "--max-length", "2049"), "max_length is 2049 and the model's context 2048"),
        (plan("--device", "h100", "--tree-nodes", "5"), "belongs to another method"),
        (plan("--config", tmp_path / "absent.toml"), "cannot be read (No such file or directory); name a TOML file"),
        (plan("--config", tmp_path / "plan.toml"), "key 'bach' is unknown; did you mean batch?"),
        (specjax_main("plan", "--model", tmp_path / "absent.json", "--device", "h100"), "no model shape"),
    ):
        assert_one_line(found, words)


PLANNED = {
    "method": "none", "chooses_drafts": False, "device": "h100:2", "mesh": {"data": 1, "model": 2, "nodes": 1}, "fits": True,
    "device_memory_bytes": 80 * 10**9, "memory_bytes": dict(weights=10**9, cache=0, draft=0, temporaries=0, total=10**9),
    "bytes_per_round": 11 * 10**8, "minimum_bytes_per_round": 10**9, "plain_bytes_per_round": 11 * 10**8,
    "plain_minimum_bytes_per_round": 10**9, "launches_per_layer": 19.0, "launches_per_round": 200,
    "collectives": [{"kind": "all-reduce", "bytes": 16384, "count": 64}], "cache_copies": 0,
    "seconds_per_round": 0.01, "plain_seconds_per_token": 0.01, "tokens_per_second": {"0.6": 100.0},
    "speedup": {"0.6": 1.0}, "break_even_acceptance": 0.0, "experts_per_layer": None,
    "offload": False, "host_memory_bytes": 0, "bytes_from_host_per_round": 0, "host_link_bytes_per_second": 64 * 10**9,
}  # fmt: skip


def test_a_plan_is_printed(plan, monkeypatch):
    """For people, as JSON, and with exit code 2 where it does not fit. Flags go before the file's settings."""
    given = []
    monkeypatch.setattr(plan_settings, "make_plan", lambda settings: given.append(settings) or PLANNED)
    code, out, err = plan("--device", "h100:2", "--mesh", "model=2", "--num-speculative-tokens", "3")
    assert (code, err) == (0, "")
    assert given[0]["mesh"] == {"model": 2} and given[0]["options"] == {"num_speculative_tokens": 3}
    for words in ("1.10 times the minimum", "200 a round, 19.0 a layer", "64 a round", "predicted", "not measured"):
        assert words in out
    code, out, err = plan("--device", "h100:2", "--json")
    assert (code, json.loads(out), err) == (0, PLANNED, "")
    streamed = dict(offload=True, host_memory_bytes=10**11, bytes_from_host_per_round=10**11)
    monkeypatch.setattr(plan_settings, "make_plan", lambda settings: given.append(settings) or PLANNED | streamed)
    assert "100.00 GB a round, at 64 GB/s" in plan("--device", "h100", "--offload")[1] and given[-1]["offload"] is True
    monkeypatch.setattr(plan_settings, "make_plan", lambda settings: PLANNED | {"chooses_drafts": True})
    assert "note: none chooses its drafts in each round; the figures are those of its largest drafts" in plan()[1]
    monkeypatch.setattr(plan_settings, "make_plan", lambda settings: PLANNED | {"fits": False})
    code, out, err = plan("--device", "h100:2")
    assert code == 2 and err.startswith("specjax: error: the plan does not fit: it needs 1.0 GB a device")


def test_flags_go_before_the_settings_of_a_file(specjax_main, shape, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(plan_settings, "make_plan", lambda settings: given.append(settings) or PLANNED)
    file = tmp_path / "plan.toml"
    file.write_text('model = "shape.json"\ndevice = "h100:8"\nbatch = 4\n[options]\nnum_speculative_tokens = 3\n')
    assert specjax_main("plan", "--config", file, "--device", "v5e:2x2")[0] == 0
    assert given == [dict(model=str(shape), device="v5e:2x2", batch=4, options={"num_speculative_tokens": 3})]
