"""Flags of drafting options: every option of every method has one, with the type, the default and the text of its field."""

import argparse
import re

import pytest

from specjax.cli.drafting import drafting_flags, drafting_options
from specjax.cli.fields import add_flags
from specjax.core.tree import expansion
from specjax.drafters import METHODS, all_options, own_options


@pytest.fixture(scope="module")
def parser():
    parser = argparse.ArgumentParser(prog="x", add_help=False)
    add_flags(parser, drafting_flags(), ())
    return parser


FORMER = """--num-speculative-tokens --inner-speculative-tokens --prompt-lookup-max --prompt-lookup-min --ngram-statistics --draft-length
--draft-cost --verify-cost --max-match --min-token-prob --store-tokens --candidates --window --ngram-size --guesses --pool-guesses
--pool-from-prompt --tree --siblings --tree-nodes --tree-depth --tree-top-k --tree-temperature --exit-layer --skip-attention --skip-mlp
--draft-confidence""".split()


def test_every_option_has_its_flag_and_its_help(parser):
    assert {*FORMER} <= {*parser._option_string_actions}
    text = " ".join(parser.format_help().split())
    assert "see the method" not in text
    for method in METHODS:
        for option in own_options(method):
            assert f"--{option.replace('_', '-')}" in text
    assert "options of suffix: --max-match N the longest run looked up (default 16)" in text
    assert re.search(
        r"tokens that are drafted in a round, at most \(default 5; suffix 8, early_exit 6, [a-z0-9_, ]+\)", text
    )


def test_values_have_the_types_of_their_fields(parser):
    argv = "--num-speculative-tokens 3 --min-token-prob 0.5 --pool-from-prompt --skip-mlp 1,3 --skip-attention= --siblings top_k --tree 2,1"
    found = drafting_options(parser.parse_args(argv.split()))
    assert found == {
        "num_speculative_tokens": 3, "min_token_prob": 0.5, "pool_from_prompt": True, "skip_mlp": (1, 3), "skip_attention": (),
        "siblings": "top_k", "tree": expansion((2, 1)),
    }  # fmt: skip
    assert drafting_options(parser.parse_args([])) == {}
    assert {*found} <= {*all_options()}
