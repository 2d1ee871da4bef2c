"""Drafters by name: which options a method takes, and the values that mean the same option."""

import numpy as np
import pytest
from support.models import TINY, language_model, random_prompts, tiny_model
from support.reference import assert_greedy, read_target

from specjax import METHODS, Generator, RequestError
from specjax.core.tree import expansion, from_paths
from specjax.drafters import Adaptive, Switch, all_options, make_drafter, needs_of, own_options
from specjax.heads import Eagle3Config, EagleConfig, HydraConfig, MedusaConfig
from specjax.loop.drafter import Models, TrainedHead

PATHS = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
"""The tree of widths 2, 2, 1, node by node."""


def head_for(method: str, target):
    """The configuration of a head for a method with a tree, or None."""
    layers, size = target.config.replace(num_layers=1), target.config.hidden_size
    kinds = {
        "eagle": lambda: EagleConfig(layers, target_layers=2),
        "eagle3": lambda: Eagle3Config(layers, size, 2, taps=(0, 1, 2), draft_vocab_size=40),
        "medusa": lambda: MedusaConfig(size, 2, target.config.vocab_size, num_heads=4),
        "hydra": lambda: HydraConfig(size, 2, target.config.vocab_size, num_heads=4),
    }
    return kinds[method]() if method in kinds else None


@pytest.mark.parametrize("method", ["tree", "token_recycling", "medusa", "hydra", "eagle", "eagle3"])
def test_a_tree_may_be_given_as_text_widths_paths_or_lists(method, target, tmp_path):
    """All make the drafter of the topology whose nodes are listed by hand."""
    head = head_for(method, target)
    assert expansion((2, 2, 1)) == from_paths(PATHS)
    wanted = make_drafter(method, head=head, tree=from_paths(PATHS))
    (tmp_path / "tree.toml").write_text(f"paths = {[list(path) for path in PATHS]}")
    lists = [list(path) for path in PATHS]
    for tree in ("2,2,1", [2, 2, 1], (2, 2, 1), PATHS, tuple(PATHS), lists, tmp_path / "tree.toml"):
        found = make_drafter(method, head=head, tree=tree)
        assert found == wanted and hash(found) == hash(wanted), tree


NUMPY = dict(skip_attention=[1], num_speculative_tokens=np.int64(2), capacity=np.int64(512))


def test_generators_take_trees_and_layers_as_lists_and_numpy_numbers(target, draft):
    tree = Generator(target, "tree", draft, tree=[2, 2, 1])
    assert tree.drafter == make_drafter("tree", tree=from_paths(PATHS))
    generator = Generator(target, "layer_skip", **NUMPY)
    assert generator.drafter == make_drafter("layer_skip", skip_attention=(1,), num_speculative_tokens=2)


@pytest.mark.slow
def test_a_generator_of_lists_and_numpy_numbers_writes_the_greedy_text(target):
    """The text is the argmax of a forward without a cache."""
    generator = Generator(target, "layer_skip", **NUMPY)
    (prompt,) = random_prompts(1, 9, seed=1)
    result = generator(prompt, max_new_tokens=16, ignore_eos=True)
    text = [*prompt, *result.token_ids]
    assert_greedy([prompt], [text], read_target(target.model, [text], (0,))[1])
    assert len(result.token_ids) == 16 and result.stats.drafted > 0
    assert generator.start([prompt], max_new_tokens=16).state.cache.capacity == 512


def test_fields_that_the_library_sets_are_no_options():
    assert own_options("auto") == ("costs",)
    for name in ("arms", "shape"):
        with pytest.raises(RequestError, match=f"option '{name}' is unknown"):
            make_drafter("auto", **{name: None})


@pytest.mark.parametrize("method", [*METHODS, "ngram,draft_model"])
def test_options_of_other_methods_are_refused_with_those_of_the_method(method):
    """Every option but a method's own is named, and so are its own."""
    own, foreign = own_options(method), sorted(set(all_options()) - set(own_options(method)))
    assert foreign
    for name in foreign:
        with pytest.raises(RequestError) as error:
            make_drafter(method, **{name: 1})
        expected = f"option {name!r} belongs to another method than {method!r}; "
        assert str(error.value) == expected + (f"it takes {', '.join(own)}" if own else "it takes none")


DRAWING = ("draft_temperature", "draft_top_k", "draft_top_p")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", ()),
        ("tree", ("tree", "siblings", *DRAWING)),
        ("merged", ("num_speculative_tokens", *DRAWING)),
        ("medusa", ("tree",)),
        ("dynamic_tree", ("tree_nodes", "tree_depth", "tree_top_k", "tree_temperature")),
        (
            "cascade",
            (
                "num_speculative_tokens",
                "inner_speculative_tokens",
                "prompt_lookup_max",
                "prompt_lookup_min",
                *DRAWING,
            ),
        ),
        (
            "draft_model",
            (
                "num_speculative_tokens",
                "draft_ahead",
                "draft_length",
                "draft_confidence",
                "draft_cost",
                "verify_cost",
                *DRAWING,
            ),
        ),
    ],
)
def test_own_options_are_the_documented_ones(method, options):
    assert set(own_options(method)) == set(options)


def test_misspelt_options_get_a_suggestion(target):
    with pytest.raises(RequestError, match="'num_speculative_token' is unknown; did you mean num_speculative_tokens"):
        Generator(target, "ngram", num_speculative_token=3)
    with pytest.raises(
        RequestError, match="option 'tree' belongs to another method than 'ngram'; it takes num_speculative_tokens, "
    ):
        Generator(target, "ngram", tree="2,2")


def test_methods_that_need_a_head_refuse_to_be_made_without_one():
    for method, drafter in METHODS.items():
        if isinstance(drafter.needs, TrainedHead):
            with pytest.raises(RequestError, match=f"trained head of kind '{drafter.needs.kind}'"):
                make_drafter(method)


def test_needs_are_known_before_any_option():
    assert needs_of("switch") == needs_of("ngram,draft_model") == needs_of(["suffix", "draft_model"]) == Models()
    assert needs_of("merged") == Models(2, None) and needs_of("cascade") == Models(1, 2)
    assert isinstance(make_drafter("ngram", draft_length="ema"), Adaptive) and isinstance(
        make_drafter("ngram,suffix"), Switch
    )


@pytest.mark.parametrize("value", [4097, 10**6, 10**30, 1e9])
@pytest.mark.parametrize(
    ("method", "option"),
    [("ngram", "num_speculative_tokens"), ("ngram", "prompt_lookup_max"), ("token_recycling", "candidates"),
     ("lookahead", "window"), ("lookahead", "ngram_size"), ("suffix", "max_match"), ("dynamic_tree", "tree_nodes")],
)  # fmt: skip
def test_an_option_that_would_fill_the_memory_is_refused_at_once(method, option, value):
    with pytest.raises(RequestError, match=f"{option} must be a whole number, .* at most 4096") as error:
        make_drafter(method, **{option: value})
    assert len(str(error.value)) < 200


def test_rounds_of_lookahead_are_bounded_as_a_whole():
    with pytest.raises(
        RequestError, match="window 4000, ngram_size 1000 and guesses 15 make a round of more than 4096"
    ):
        make_drafter("lookahead", window=4000, ngram_size=1000)


def test_drafts_are_shorter_than_the_context():
    target = language_model(tiny_model())
    with pytest.raises(RequestError, match=f"drafts {TINY.context} tokens at once, and the model's context is"):
        Generator(target, "ngram", num_speculative_tokens=TINY.context)
