"""The examples run as they are, and their outputs are those of plain decoding."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_example(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_loop_with_a_greedy_rule_writes_the_text_of_plain_decoding():
    import specjax

    target = specjax.load("tiny-python")
    plain = specjax.generate(target, [[284, 511, 7], [262, 1031]], max_new_tokens=24, ignore_eos=True)
    assert load_example("own_loop").main() == [result.token_ids for result in plain]


def test_own_model_decodes_the_same_with_every_drafter():
    texts = load_example("own_model").main()
    assert all(len(row) == 32 for row in texts["plain"])
    assert texts["ngram"] == texts["plain"] and texts["draft"] == texts["plain"]


def test_parameters_of_a_trainer_decode_and_are_replaced_without_compiling():
    before, after = load_example("from_trainer").main()
    assert len(before) == len(after) == 16 and before != after
