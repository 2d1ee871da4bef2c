"""The likelihood of options, against one forward for each token."""

import pytest
from scipy.special import log_softmax

from specjax.tools.evaluate.benchmark.run import option_logprobs
from specjax.tools.evaluate.fidelity import logits_after


def test_options_have_the_sum_over_their_tokens(model):
    prompt, options = "Q: 1+1", [" A", "BCDEFG"]
    start = len(model.tokenizer.encode(prompt))
    expected = []
    for option in options:
        ids = model.tokenizer.encode(prompt + option)
        places = range(start, len(ids))
        expected.append(sum(log_softmax(logits_after(model, ids[:k], k))[ids[k]] for k in places))
    assert option_logprobs(model, prompt, options) == pytest.approx(expected, rel=1e-4)
    assert option_logprobs(model, prompt, ()) == []
