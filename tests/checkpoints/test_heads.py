"""Loading, choosing and writing heads by their names."""

import json
import os

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support.head_cases import parameters, same, same_heads
from support.models import language_model, tiny_model
from support.published_heads import DEEP, E, L, eagle, eagle3, medusa, mtp, normal, write

import specjax
from specjax import load_drafter, save_head
from specjax.checkpoints import hub
from specjax.checkpoints.heads import choose_head
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model, save_model
from specjax.errors import CheckpointError, RequestError, SpecjaxError
from specjax.heads import Head
from specjax.parallel import make_mesh


def test_every_fault_is_listed_at_once(tmp_path):
    raw, tensors = eagle3(norm_before_fc=True)
    del tensors["d2t"], tensors["midlayer.self_attn.v_proj.weight"]
    tensors |= {"fc.weight": normal(E, 5 * E), "midlayer.extra.weight": normal(2), "norm.weight": np.ones(E, np.int8)}
    with pytest.raises(CheckpointError) as error:
        load_drafter(write(tmp_path / "a", raw, tensors), DEEP)
    message = str(error.value)
    for fault in (
        "d2t is missing",
        "v_proj.weight is missing",
        "input_norm.weight is missing",
        "midlayer.extra.weight is unexpected",
    ):
        assert fault in message
    assert (
        f"fc.weight has shape ({E}, {5 * E}), not ({E}, {3 * E})" in message
        and "norm.weight is of type I8" in message
        and "\n" not in message
    )


def test_saving_in_a_layout_of_other_heads(tmp_path):
    head = load_drafter(write(tmp_path / "a", *eagle()), DEEP)
    for layout in ("medusa", "nothing"):
        with pytest.raises(RequestError, match=f"{layout!r} cannot hold a head of kind 'eagle'; use one of eagle$"):
            save_head(head, tmp_path / "b", layout)


def test_another_dtype_and_a_mesh(tmp_path):
    directory = write(tmp_path / "a", *eagle3())
    half = load_drafter(directory, DEEP, "bfloat16")
    assert {str(x.dtype) for x in jax.tree.leaves(nnx.state(half.module))} == {"bfloat16", "int32"}
    save_head(half, tmp_path / "b")
    assert load_file(tmp_path / "b/model.safetensors")["fc.weight"].dtype == ml_dtypes.bfloat16
    assert json.loads((tmp_path / "b/config.json").read_text())["dtype"] == "bfloat16"
    save_model(DEEP.model, tmp_path / "target")
    split = language_model(load_model(tmp_path / "target", Placement(mesh=make_mesh(data=2, model=2))), "deep")
    head = load_drafter(directory, split)
    assert same_heads(head, load_drafter(directory, DEEP))
    sharding = head.module.layers[0].mixer.qkv[...].sharding  # each device drafts for itself
    assert len(sharding.device_set) == 4 and sharding.is_fully_replicated


def test_heads_inside_a_language_model(tmp_path):
    """One checkpoint is read as the model, without the heads, and as the head, without the
    model."""
    model = tiny_model(num_layers=L, family="qwen2", qkv_bias=True, windows=(None,) * L)
    target = language_model(model, "target")
    specjax.save(target, tmp_path / "whole")
    raw, tensors = (
        json.loads((tmp_path / "whole/config.json").read_text()),
        load_file(tmp_path / "whole/model.safetensors"),
    )
    for added, changes in (
        (mtp("mimo")[1], dict(model_type="mimo", num_nextn_predict_layers=1)),
        (medusa(prefix="medusa_head.")[1], {}),
        (mtp("deepseek", 2)[1], dict(num_nextn_predict_layers=2)),
    ):
        directory = write(tmp_path / "whole", raw | changes, tensors | added)
        loaded = load_model(directory)
        assert parameters(loaded).keys() == parameters(model).keys() and loaded.config == target.config
        head = load_drafter(directory, target)
        assert isinstance(head, Head)
        join = {"mtp": "input_proj.weight", "medusa": "medusa_head.0.0.linear.weight", "deepseek": "eh_proj.weight"}
        kind = "deepseek" if head.layout == "deepseek" else head.config.kind
        ours = head.module.modules[0].join if head.config.kind == "mtp" else head.module.heads[0].blocks[0].linear
        same(ours, next(tensor for name, tensor in added.items() if name.endswith(join[kind])))
    write(tmp_path / "whole", raw, tensors)
    plain = load_drafter(tmp_path / "whole", target)
    assert isinstance(plain, specjax.LanguageModel) and plain.config == target.config


def test_names(tmp_path, monkeypatch):
    """Embedded heads are found by name and by their target's, and are no language models."""
    head = load_drafter(write(tmp_path / "deep-eagle3", *eagle3()), DEEP)
    specjax.save(DEEP, tmp_path / "deep")
    monkeypatch.setattr(hub, "ZOO", tmp_path)
    assert hub.zoo() == ["deep", "deep-eagle3"] and specjax.embedded() == ["deep"]
    assert same_heads(load_drafter("deep-eagle3", DEEP), head)
    assert isinstance(load_drafter("deep", DEEP), specjax.LanguageModel)
    for name in ("deep-eagle3", tmp_path / "deep-eagle3"):
        with pytest.raises(CheckpointError, match=r"deep-eagle3' is a head \(eagle3\), not a language model"):
            specjax.load(name)
    assert same_heads(choose_head(DEEP, (), "eagle3", "x"), head)
    assert choose_head(DEEP, (head, DEEP), "eagle3", "x") is head
    with pytest.raises(RequestError, match="draft 'deep' is a language model; name another draft"):
        choose_head(DEEP, (DEEP, head), "eagle3", "x")
    with pytest.raises(
        RequestError, match="method 'eagle2' drafts with a trained head of kind eagle, and none is embedded for 'deep'"
    ):
        choose_head(DEEP, (), "eagle", "eagle2")
    with pytest.raises(RequestError, match="deep-eagle3' is one of kind 'eagle3'; name another draft"):
        choose_head(DEEP, (head,), "eagle", "eagle2")
    with pytest.raises(
        RequestError,
        match="draft 'deep-eagle3' is a head of kind 'eagle3'; method 'draft_model' needs a language model",
    ):
        specjax.Generator(DEEP, "draft_model", "deep-eagle3")
    assert specjax.Generator(DEEP, draft="deep-eagle3", tree_top_k=4).method == "eagle3"


def test_names_that_are_no_drafter(tmp_path):
    """An empty name, a pipe, an empty directory and a missing one: one line each, at once."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    for name in ("", " ", tmp_path / "pipe", tmp_path / "empty", tmp_path / "missing", "\0"):
        with pytest.raises(SpecjaxError) as error:
            load_drafter(name, DEEP)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400
