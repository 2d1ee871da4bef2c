"""Options of the draft itself: q against numpy and against a request with these options; acceptance by a closed form."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from support.decoding import rounds, start, texts
from support.grid import DRAFTS, METHODS, V, random_model
from support.grid.methods import EAGLE3, draft_of, target_of, with_own
from support.models import warped
from support.reference import logits_after, softmax

from specjax import RequestError
from specjax.cli.main import main
from specjax.drafters import METHODS as CLASSES
from specjax.drafters import Adaptive, Auto, BlockDrafter, DraftModel, DraftTree, Eagle3, Merged, Switch, make_drafter
from specjax.drafters.parts.draft_sampling import Drawing
from specjax.loop import decode
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn

OWN = dict(temperature=4.0, top_k=4, top_p=0.95)
REQUEST = dict(temperature=[1.4, 0.0], top_k=2, top_p=0.5)  # the second row is greedy
PROMPTS = [[1, 2, 3], [4, 0]]  # without repeats, so that no n-gram is found
DRAWN = {
    name: with_own(drafter, temperature=None)
    for name, (drafter, _) in METHODS.items()
    if drafter.drawn is not Drawn.CHOSEN
    and not isinstance(drafter, Auto)  # the draft of auto has no options of its own
}
DRAWN["block, drawn"] = dataclasses.replace(DRAWN["block, drawn"], draft_confidence=0.0)  # chains of full length
for name, wide in {"block, path selector": dict(candidates=4), "assistant": dict(clusters=0)}.items():
    DRAWN[name] = dataclasses.replace(
        DRAWN[name], head=dataclasses.replace(DRAWN[name].head, **wide)
    )  # over more tokens


def propose(drafter, plain, **sampling):
    """The tree of the first round, after the prefill of the drafter ``plain`` without options."""
    target, draft = target_of(drafter), drafter.parameters(draft_of(drafter, 1), V)
    state = start(target, draft, plain, PROMPTS, capacity=12, chunk=4, limit=9, **sampling)
    key, _ = decode.round_keys(state, drafter.depth + 1)
    return jax.jit(lambda state: drafter.propose(target, draft, state, key)[0])(state)


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "tree" else pytest.mark.slow) for name in DRAWN]
)
def test_the_draft_draws_as_under_a_request_with_its_options(method):
    """Each node's token and q are those of a request with these options. A greedy row stays greedy."""
    plain = DRAWN[method]
    own = propose(with_own(plain, **OWN), plain, **REQUEST)
    wanted = propose(plain, plain, **OWN | dict(temperature=[4.0, 0.0]))
    jax.tree.map(np.testing.assert_array_equal, own, wanted)
    sampled, greedy = np.asarray(own.q)
    assert (sampled > 0).sum(-1).max() > REQUEST["top_k"] and {*np.unique(greedy)} <= {0.0, 1.0}


def test_every_method_that_draws_takes_the_options():
    """A head without a Markov correction and a tree of the likeliest tokens choose, and refuse them."""
    classes = {cls for cls in CLASSES.values() if issubclass(cls, Drawing)}
    assert {type(drafter) for drafter in DRAWN.values()} - {Adaptive, Switch} | {Eagle3} == classes
    options = dict(draft_temperature=0.7, draft_top_k=5, draft_top_p=0.9)
    chain = make_drafter("ngram,draft_model", **options).drafters[1]
    adaptive = make_drafter("draft_model", draft_length="ema", **options).drafter
    for drafter in (chain, adaptive, Merged(**options).member, Eagle3(tree=(2, 1), head=EAGLE3, **options).drafter):
        assert drafter.draft_options == options


@pytest.mark.parametrize("temperature", [0.3, pytest.param(2.5, marks=pytest.mark.slow)])
def test_q_is_the_adjusted_distribution(temperature):
    """Chains of a draft model: q after each node, from logits of a forward without a cache, in numpy."""
    own = dict(draft_temperature=temperature, draft_top_k=4, draft_top_p=0.95)
    target, draft = random_model(0), random_model(1)
    size = dict(capacity=12, chunk=4, limit=9)
    for state, tree in rounds(target, draft, DraftModel(DRAFTS, **own), 2, PROMPTS, temperature=0.9, top_p=0.7, **size):
        for text, tokens, q, done in zip(texts(state), tree.tokens, tree.q, np.asarray(state.done)):
            for node in range(DRAFTS if not done else 0):
                logits = logits_after(draft, [*text, *tokens[1 : node + 1].tolist()])
                np.testing.assert_allclose(q[node], warped(logits, temperature, 4, 0.95), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.4, 2.0])
def test_acceptance_follows_from_p_and_q(temperature):
    """A draft of one token is accepted with the probability sum min(p, q) (Leviathan et al. 2023, section 3.2)."""
    rows, prompt, (target, draft) = 5_000, [1, 2, 1], map(random_model, (0, 1))
    p, logits = softmax(logits_after(target, prompt)), logits_after(draft, prompt)
    chance = np.minimum(p, warped(logits, temperature)).sum()
    assert abs(chance - np.minimum(p, softmax(logits)).sum()) > 0.05  # the draft's temperature matters
    drafter = DraftModel(1, draft_temperature=temperature)
    state = start(
        target, draft, drafter, [prompt] * rows, temperature=1.0, seeds=range(rows), capacity=12, chunk=4, limit=9
    )
    step = jax.jit(partial(decode.step, drafter=drafter, rule=RULES["rejection"]))
    accepted = np.asarray(step(target, draft, state).cache.length - state.cache.length) - 1
    assert abs(accepted.mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / rows)


DFLASH = METHODS["block"][0].head


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DraftModel(draft_temperature=0), "draft_temperature must be a number, above 0"),
        (lambda: DraftModel(draft_temperature=float("nan")), "draft_temperature must be a number"),
        (lambda: DraftModel(draft_temperature=[0.5, 0.7]), "draft_temperature must be one number"),
        (lambda: DraftModel(draft_top_k=-1), "draft_top_k must be a whole number"),
        (lambda: DraftModel(draft_top_k=2.5), "draft_top_k must be a whole number"),
        (lambda: DraftModel(draft_top_p=1.5), "draft_top_p must be a number, above 0 and at most 1"),
        (lambda: DraftTree(siblings="top_k", draft_top_p=0.5), "draft_top_p is for tokens that are drawn"),
        (lambda: Eagle3(head=EAGLE3, draft_temperature=0.5), "draft_temperature is for tokens that are drawn"),
        (lambda: BlockDrafter(head=DFLASH, draft_top_k=2), "draft_top_k is for tokens that are drawn"),
        (lambda: make_drafter("dynamic_tree", draft_top_k=2), "'draft_top_k' belongs to another method"),
    ],
)
def test_bad_options_are_named(make, words):
    with pytest.raises(RequestError, match=words):
        make()


def test_the_command_line_refuses_bad_options_in_one_line(capsys):
    for flag, value in (("--draft-temperature", "0"), ("--draft-top-p", "2"), ("--draft-top-k", "-1")):
        argv = ("generate", "--model", "tiny-python", "--draft", "tiny-python-draft", "--prompt", "x", flag, value)
        assert main([*argv]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and flag[2:].replace("-", "_") in err
