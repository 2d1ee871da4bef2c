"""Log-probabilities under the sampling policy, against forwards without a cache and the options by their definitions."""

import numpy as np
import pytest
from support.models import TINY, random_head, random_prompts, warped
from support.reference import logits_after

from specjax import Generator, Head
from specjax.heads import Eagle3Config
from specjax.heads.eagle3 import Eagle3Head

PROMPTS = random_prompts(4, 12, seed=3)
LETTERS, REPEATED, BIAS = "[B-M]{16,60}", 1.3, {9: 1.5, 20: -np.inf}
OPTIONS = dict(
    max_new_tokens=16, ignore_eos=[True, True, True, False], policy_logprobs=[True, True, True, True],
    temperature=[0.0, 0.8, 1.3, 0.9], top_k=[0, 0, 12, 0], top_p=[1.0, 1.0, 0.9, 1.0], min_p=[0.0, 0.0, 0.05, 0.0],
    repetition_penalty=[1.0, REPEATED, 1.0, 1.0], logit_bias=[None, BIAS, None, None],
    regex=[None, None, None, LETTERS], seed=[1, 2, 3, 4],
)  # fmt: skip


def log_policy(target, text: list[int], row: int) -> np.ndarray:
    """The log-law of the token after ``text`` in a row of OPTIONS."""
    logits = logits_after(target.model, text)
    if row == 1:
        for token, value in BIAS.items():
            logits[token] += value
        for token in set(text):
            logits[token] *= REPEATED if logits[token] < 0 else 1 / REPEATED
    if row == 3:
        allowed = target.tokenizer.convert_tokens_to_ids([*"BCDEFGHIJKLM"])
        logits[[token for token in range(logits.size) if token not in allowed]] = -np.inf
    with np.errstate(divide="ignore"):
        return np.log(warped(logits, *(OPTIONS[name][row] for name in ("temperature", "top_k", "top_p", "min_p"))))


def make_head() -> Head:
    config = Eagle3Config(TINY.replace(num_layers=1), TINY.hidden_size, TINY.num_layers, (0, 1, 2), TINY.vocab_size)
    return Head(random_head(Eagle3Head, config), config, "eagle3")


@pytest.mark.parametrize("method", ["draft_model", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_policy_logprobs_are_those_of_the_drawn_law(method, target, draft):
    """Of drawn chains, and of the most probable trees of a head; of accepted drafts and of bonus tokens."""
    drafting = dict(draft=draft, num_speculative_tokens=3)
    if method == "eagle3":
        drafting = dict(draft=make_head(), tree_nodes=8, tree_depth=3, tree_top_k=3)
    results = Generator(target, method, **drafting)(PROMPTS, **OPTIONS)
    for row, result in enumerate(results):
        assert len(result.policy_logprobs) == len(result.token_ids) == 16 and result.logprobs is None
        for i, token in enumerate(result.token_ids):
            wanted = log_policy(target, result.prompt_token_ids + result.token_ids[:i], row)[token]
            assert abs(result.policy_logprobs[i] - wanted) < 1e-4, (row, i)
    assert not any(results[0].policy_logprobs) and all(any(result.policy_logprobs) for result in results[1:])
    drawn = [accepted for result in results for accepted in result.from_draft]
    assert any(drawn) and not all(drawn)
