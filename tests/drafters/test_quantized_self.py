"""The target's quantised copy: a copy that rounds nothing drafts what the target writes, other copies cost acceptance only."""

import jax
import numpy as np
import pytest
from flax import nnx
from support.decoding import decode_all
from support.models import language_model, random_prompts, tiny_model
from support.reference import is_greedy

import specjax
from specjax import Generator, RequestError
from specjax.drafters import QuantizedSelf
from specjax.models.quantised_weights import Quantised
from specjax.models.rounding import quantise_module

DRAFTS = 3
PROMPTS = random_prompts(6, 30, seed=3)
TARGET = tiny_model(num_layers=1)
DRAFTER = QuantizedSelf("int8:exact", DRAFTS)


def rounded(model):
    """The model with the weights that its int8 copy has."""
    is_weight = lambda leaf: isinstance(leaf, Quantised)

    @jax.jit
    def both(graph, params):
        copy = nnx.split(quantise_module(nnx.merge(graph, params), "int8:exact"))[1]
        flat = jax.tree.leaves(copy, is_leaf=is_weight)
        values = [leaf.dequantise() if is_weight(leaf) else leaf for leaf in flat]
        return jax.tree.unflatten(jax.tree.structure(copy, is_leaf=is_weight), values)

    graph, params = nnx.split(model)
    return nnx.merge(graph, both(graph, params))


@pytest.mark.parametrize("model", [TARGET, rounded(TARGET)], ids=["rounds", "rounds nothing"])
def test_texts_are_greedy_and_an_exact_copy_is_always_right(model):
    state, _ = decode_all(model, DRAFTER.parameters(model, 61), DRAFTER, PROMPTS)
    assert all(is_greedy(model, state, PROMPTS))
    accepted, rounds = state.counters.accepted_at.sum(), np.asarray(state.counters.calls)
    assert accepted > 0
    if model is not TARGET:
        assert rounds.max() <= -(-32 // (DRAFTS + 1))  # 32 new tokens, four in each round


def test_a_generator_copies_its_target_and_follows_updates():
    target, other = (language_model(tiny_model(seed, num_layers=1)) for seed in (0, 1))
    generator = Generator(target, "quantized_self", draft_scheme="int8", capacity=256)
    copy = lambda: np.asarray(generator.session.parameters.layers[0].mixer.qkv[...].values)
    np.testing.assert_array_equal(copy(), quantise_module(target.model, "int8").layers[0].mixer.qkv[...].values)
    generator.update(other.model)
    np.testing.assert_array_equal(copy(), quantise_module(other.model, "int8").layers[0].mixer.qkv[...].values)


def test_a_quantised_target_has_a_copy_of_fewer_bits():
    target = quantise_module(tiny_model(hidden_size=128, intermediate_size=128, head_dim=32, num_layers=1), "int8")
    copy = QuantizedSelf("int4").parameters(target, 61).layers[0].mixer.qkv[...]
    assert copy.scheme == "int4" and copy.offsets is not None


def test_bad_options_are_refused():
    with pytest.raises(RequestError, match="draft_scheme is 'int3'; it must be one of int8, int4, fp8"):
        QuantizedSelf("int3")
    with pytest.raises(
        RequestError, match=r"int4 has two inputs in a byte, and layers.0.[a-z_.]+ has 33 inputs; use int8"
    ):
        Generator(language_model(tiny_model(intermediate_size=33)), "quantized_self")
    with pytest.raises(RequestError, match="takes no draft"):
        Generator(language_model(TARGET), "quantized_self", "tiny-python-draft")
    with pytest.raises(RequestError, match="the target is another model"):
        DRAFTER.parameters(object(), 61)


def test_the_method_has_its_name():
    assert specjax.METHODS["quantized_self"] is QuantizedSelf
