"""The options that the grid tests: one ``Case`` is one request."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from specjax.requests.constraint import Automaton
from specjax.requests.stop_strings import StopAutomaton

V, LENGTH, DRAFTS, CAPACITY = 5, 3, 2, 12
"""Vocabulary, tokens that a row emits at most, drafted tokens of a chain, and positions of the cache."""

END = 3
"""The stop token of cases that have one."""

NEVER = -np.inf


@dataclasses.dataclass(frozen=True)
class Case:
    """A prompt and the options of its request.

    Attributes:
      prompt: repeats itself by default, so that n-grams find something.
      stop: the stop token, -1 for none.
      bias: added to the logits; minus infinity forbids a token.
      language: a regular expression over digits, one for each token, that the text must match; "" for none.
      grammar: the same, followed on the host, where a text may be cut at its limit.
      stop_string: tokens that end the text once they stand in it side by side; () for none.

    The other fields are numbers of ``SamplingParams``.
    """

    prompt: tuple[int, ...] = (1, 2, 1)
    stop: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_new_tokens: int = 0
    bias: tuple[float, ...] = (0.0,) * V
    language: str = ""
    grammar: str = ""
    stop_string: tuple[int, ...] = ()


CASES = {
    "default": Case(),
    "temperature": Case(temperature=0.7),
    "temperature 0": Case(temperature=0.0),
    "top_k": Case(top_k=2),
    "top_p": Case(top_p=0.7),
    "min_p": Case(min_p=0.3),
    "repetition_penalty": Case(repetition_penalty=1.7),
    "presence_penalty": Case(presence_penalty=1.5),
    "frequency_penalty": Case(frequency_penalty=-0.9),
    "logit_bias": Case(bias=(1.0, -0.5, 0.0, 0.7, 0.0)),
    "allowed_tokens": Case(bias=(NEVER, 0.0, 0.0, NEVER, 0.0)),
    "suppressed_tokens": Case(bias=(0.0, 0.0, NEVER, 0.0, 0.0)),
    "stop_token_ids": Case(stop=END),
    "min_new_tokens": Case(stop=END, min_new_tokens=2),
    "stop": Case(stop_string=(1, 2)),
    "regex": Case(stop=END, language="(12*1)*"),
    "grammar": Case(stop=END, grammar="(12*1)*"),
    "grammar, greedy": Case(stop=END, grammar="2*1[012]*2", temperature=0.0),
    "grammar, truncated": Case(stop=END, grammar="(1|21*2)(0*|2)", temperature=0.8, top_p=0.9, min_new_tokens=1),
    "one token of prompt": Case(prompt=(4,), temperature=1.2, top_p=0.95),
    "all together": Case(
        stop=END, temperature=0.8, top_k=4, top_p=0.95, min_p=0.02, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.3, min_new_tokens=1, bias=(0.3, 0.0, 0.5, 0.0, NEVER), language="([01]|2[01]*2)*",
        stop_string=(2, 2),
    ),
}  # fmt: skip

# Both automata are written by hand, so that a fault of specjax's compilers cannot hide behind itself. One automaton serves
# all cases; a case begins in its own state.

CONSTRAINT = Automaton(
    next=jnp.array(
        [
            [0, 0, 0, 0, 0],  # 0: no constraint, allows everything
            [-1, 2, -1, 1, -1],  # 1: (12*1)*, between two groups; final
            [-1, 1, 2, -1, -1],  # 2: (12*1)*, inside a group
            [3, 3, 4, 3, -1],  # 3: ([01]|2[01]*2)*, between two groups; final
            [4, 4, 3, -1, -1],  # 4: ([01]|2[01]*2)*, inside a group
        ],
        jnp.int32,
    ),
    classes=jnp.arange(V, dtype=jnp.int32),
    shortest=jnp.array([0, 0, 1, 0, 1], jnp.int32),
    longest=jnp.full(5, 2**30, jnp.int32),
)
CONSTRAINT_START = {"": 0, "(12*1)*": 1, "([01]|2[01]*2)*": 3}

STOPS = StopAutomaton(
    next=jnp.array(
        [
            [0, 0, 0, 0, 0],  # 0: no stop string
            [1, 2, 1, 1, 1],  # 1: (1, 2), nothing matched
            [1, 2, 5, 1, 1],  # 2: (1, 2), matched 1
            [3, 3, 4, 3, 3],  # 3: (2, 2), nothing matched
            [3, 3, 5, 3, 3],  # 4: (2, 2), matched 2
            [5, 5, 5, 5, 5],  # 5: complete
        ],
        jnp.int32,
    ),
    classes=jnp.arange(V, dtype=jnp.int32),
    accept=jnp.arange(6, dtype=jnp.int32) == 5,
)
STOP_START = {(): 0, (1, 2): 1, (2, 2): 3}
