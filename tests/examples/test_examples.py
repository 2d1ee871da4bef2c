"""The examples run as they are, and their outputs are greedy texts."""

import importlib.util
from pathlib import Path

import pytest
from support.reference import assert_greedy, read_target

import specjax

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_own_loop_with_a_greedy_rule_writes_the_greedy_text():
    """The oracle is the argmax of a forward without a cache."""
    prompts, new = [[284, 511, 7], [262, 1031]], load_example("own_loop").main()
    rows = [prompt + more for prompt, more in zip(prompts, new, strict=True)]
    assert_greedy(prompts, rows, read_target(specjax.load("tiny-python").model, rows, (0,))[1])
    assert [len(more) for more in new] == [24, 24]


@pytest.mark.slow
def test_own_model_decodes_the_same_with_every_drafter():
    texts = load_example("own_model").main()
    assert all(len(row) == 32 for row in texts["plain"])
    assert texts["ngram"] == texts["plain"] and texts["draft"] == texts["plain"]


@pytest.mark.slow
def test_parameters_of_a_trainer_decode_and_are_replaced_without_compiling():
    before, after = load_example("from_trainer").main()
    assert len(before) == len(after) == 16 and before != after
