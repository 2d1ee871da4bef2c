"""Layers in the host's memory are loaded there and compute the same; a CPU and several devices are refused.

A CPU has a memory of the same name, so the loop runs here as on a device. The public option refuses a CPU, because
nothing would be won. ``planning/test_offload_compiled.py`` asks the compilers of TPU and GPU.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import disturbed, language_model, tiny_model

import specjax
from specjax import Generator, RequestError
from specjax.checkpoints.placement import Placement
from specjax.checkpoints.tensors import load_model
from specjax.models.offload import HOST, check_streaming, copy_in_halves, fetch, is_streamed, to_host


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    specjax.save(language_model(tiny_model()), path)
    return path


def memories(tree) -> set:
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_the_layers_are_loaded_into_the_hosts_memory(directory, scheme):
    """The same bits, quantised or not; embeddings, norm and head stay on the device."""
    found = load_model(directory, Placement(quantize=scheme, offload=True))
    wanted = load_model(directory, Placement(quantize=scheme))
    assert memories(found.layers) == {HOST} and HOST not in memories((found.embed, found.norm, found.head))
    assert all(map(is_streamed, jax.tree.leaves(found.layers))) and not is_streamed(wanted)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_the_loop_gives_the_tokens_of_resident_layers(directory):
    """A quantised target: its layers hold numbers and scales. The draft is resident, and so are its layers."""
    draft = language_model(disturbed(tiny_model()))
    results = [
        Generator(
            language_model(load_model(directory, Placement(quantize="int8", offload=offload))), "draft_model", draft
        )([5, 6, 7], max_new_tokens=12, logprobs=1)
        for offload in (False, True)
    ]
    assert results[1].token_ids == results[0].token_ids and results[1].stats.accepted == results[0].stats.accepted > 0
    assert results[1].logprobs == results[0].logprobs


@pytest.mark.parametrize("after", [np.int32([3, 0]), np.float32([[0.5, -2.0]])])
@pytest.mark.parametrize("shape", [(6, 5), (7, 5), (4, 3, 2), (8,)])
def test_halves_are_the_weight(shape, after):
    """The form for TPUs, of even and odd numbers of rows."""
    weight = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = jax.jit(copy_in_halves)(to_host(jnp.asarray(weight)), after)
    np.testing.assert_array_equal(found, weight)
    assert not is_streamed(found)


def test_resident_layers_are_not_touched():
    layer = tiny_model().layers[0]
    assert fetch(layer, jnp.zeros(1)) is layer


def test_a_cpu_is_refused(directory):
    with pytest.raises(RequestError, match="a CPU has no other memory to copy them to; leave it out, or run on a TPU"):
        specjax.load(directory, offload=True)


def test_several_devices_are_refused():
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")] * 4), size=4)
    with pytest.raises(RequestError, match="one device, and the mesh has several; leave out offload or mesh"):
        check_streaming(mesh)


def test_a_method_that_drafts_with_the_targets_layers_is_refused(directory):
    target = language_model(load_model(directory, Placement(offload=True)))
    with pytest.raises(RequestError, match="'early_exit' drafts with the target's layers, which offload keeps"):
        Generator(target, "early_exit", exit_layer=1)
