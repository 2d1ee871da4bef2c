"""Requests of an engine that come and go."""

import jax.numpy as jnp
import numpy as np

from specjax import Engine

from .models import random_prompts

NAN = 59
"""A prompt that begins with this token gets NaN instead of logits."""


def break_marked_rows(logits, context):
    return jnp.where((context.tokens[:, 0] == NAN)[:, None, None], jnp.nan, logits)


SETTING = dict(method="ngram", num_speculative_tokens=2, processors=(break_marked_rows,))
PROMPTS = [[5 + i, *prompt] for i, prompt in enumerate(random_prompts(12, 15))]
PROMPTS[4] += random_prompts(1, 40)[0] * 3  # longer than a chunk
OPTIONS = [
    dict(max_new_tokens=12, ignore_eos=True),
    dict(max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=3),
    dict(max_new_tokens=1),
    dict(max_new_tokens=20, temperature=1.0, top_k=5, seed=4, repetition_penalty=1.3),
    dict(max_new_tokens=25, stop_token_ids=[5, 9, 11], ignore_eos=True),
    dict(max_new_tokens=40, stop=["+", "%"], ignore_eos=True),
]

RECORDED = dict(logprobs=1, policy_logprobs=True)
COMMON = RECORDED | dict(stop="never")
"""Options of all calls of the Generator, which thus compiles one loop."""


def facts(result) -> tuple:
    return result.text, result.token_ids, result.finish_reason, result.stop_reason, result.from_draft


def cost(result) -> tuple:
    stats = result.stats
    return stats.target_calls, stats.drafted, stats.accepted_at, stats.generated


def submit_over_time(engine: Engine, prompts, options, seed: int = 0) -> list:
    """Handles of requests between whose arrivals there are random numbers of steps; all have ended."""
    handles = []
    for prompt, own, steps in zip(prompts, options, np.random.default_rng(seed).poisson(3, len(prompts))):
        handles.append(engine.submit(prompt, **own))
        for _ in range(steps):
            engine.step()
    while engine.step():
        pass
    return handles


def count_waits(engine: Engine) -> list[int]:
    """A list that gets the age of each row that has to wait."""
    waits, suspend = [], engine._scheduler.suspend
    engine._scheduler.suspend = lambda row: waits.append(row.age) or suspend(row)
    return waits
