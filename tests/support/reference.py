"""Plain-Python references: forwards without a cache, and published procedures over lists."""

import heapq
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specjax.training.losses import scores

from .decoding import NEW, texts

LONGEST = 96
"""Tokens of the longest text that ``logits_of`` reads.

One size for all texts, so that a model compiles once.
"""

score = jax.jit(scores)


def logits_of(model, text: list[int]) -> np.ndarray:
    """Logits float64 [S, V] after every token of a text, by a forward without a cache."""
    padded = np.zeros((1, LONGEST), np.int32)
    padded[0, : len(text)] = text
    return np.asarray(score(model, jnp.asarray(padded)), np.float64)[0, : len(text)]


def logits_after(model, text: list[int]) -> np.ndarray:
    """Logits float64 [V] after a text, by a forward without a cache."""
    return logits_of(model, text)[-1]


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(x))


def rank_tokens(logits: np.ndarray, count: int) -> list[int]:
    """The ``count`` likeliest tokens; of equals the lowest first."""
    return np.argsort(-logits, kind="stable")[:count].tolist()


def continue_greedily(model, prompts: list[list[int]], count: int) -> list[list[int]]:
    """``count`` tokens after each prompt, each the argmax of a forward without a cache."""
    rows = np.zeros((len(prompts), LONGEST), np.int32)
    for row, prompt in zip(rows, prompts):
        row[: len(prompt)] = prompt
    lengths, each = np.array([len(prompt) for prompt in prompts]), np.arange(len(prompts))
    for i in range(count):
        rows[each, lengths + i] = np.asarray(score(model, jnp.asarray(rows)).argmax(-1))[each, lengths + i - 1]
    return [row[n : n + count].tolist() for row, n in zip(rows, lengths)]


def is_greedy(target, state, prompts, new: int = NEW) -> list[bool]:
    """For each row whether it holds ``new`` tokens after its prompt, each the argmax of a forward
    without a cache.
    """
    best = np.asarray(score(target, state.tokens).argmax(-1))
    wanted = [best[b, len(prompt) - 1 : len(prompt) - 1 + new].tolist() for b, prompt in enumerate(prompts)]
    return [text[len(prompt) :] == row for text, prompt, row in zip(texts(state), prompts, wanted)]


def look_up(text: list[int], tokens: int, longest: int, shortest: int) -> list[int] | None:
    """Prompt lookup: the continuation of the most recent earlier occurrence of the longest end of
    ``text`` that has one.

    A continuation that is too short is repeated.
    """
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                following = text[end:]
                return [following[i % len(following)] for i in range(tokens)]
    return None


def list_successors(text: list[int], most: int) -> dict[int, list[int]]:
    """Token Recycling: for each token its successors in the text, the most recent first."""
    table = {}
    for token, successor in zip(text, text[1:]):
        table[token] = [successor, *(s for s in table.get(token, []) if s != successor)][:most]
    return table


def take_best_sequences(logs: np.ndarray, nodes: int, width: int) -> set[tuple[int, ...]]:
    """DDTree (2604.12989): take the likeliest sequence that is not taken yet, and put its
    continuations on the heap.

    Args:
      logs: [D, V], log-probabilities of each place's token; the ``width`` likeliest of a place are considered.
    """
    best = [rank_tokens(place, width) for place in logs]
    taken, waiting = set(), [(0.0, ())]
    while len(taken) <= nodes:
        cost, path = heapq.heappop(waiting)
        taken.add(path)
        if len(path) < len(logs):
            for token in best[len(path)]:
                heapq.heappush(waiting, (cost - logs[len(path), token], (*path, token)))
    return taken


def array(param) -> np.ndarray:
    """A parameter in float64."""
    return np.asarray(param[...], np.float64)


def normed(x: np.ndarray, weight, eps: float) -> np.ndarray:
    """RMS norm over the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * array(weight)


@partial(jax.jit, static_argnames="taps")
def _read(model, tokens, taps: tuple[int, ...]):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    out = model(tokens, positions, jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)), taps=taps)
    return out.taps, model.logits(out.hidden)


def read_target(model, rows: list[list[int]], taps: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """A model's reading of whole texts, without a cache.

    Returns for each row the taps float64 [len(taps), n, E] of its tokens, and int [B, S], the
    likeliest token after each.
    """
    tokens = np.zeros((len(rows), LONGEST), np.int32)
    for row, text in zip(tokens, rows):
        row[: len(text)] = text
    found, logits = _read(model, jnp.asarray(tokens), taps)
    found = np.stack([np.asarray(tap, np.float64) for tap in found], 1)
    return [tap[:, : len(text)] for tap, text in zip(found, rows)], np.asarray(logits.argmax(-1))


def assert_greedy(prompts, rows: list[list[int]], choices: np.ndarray) -> None:
    """Every token after a prompt is the target's own choice after the tokens before it;
    ``choices``: see ``read_target``.
    """
    for prompt, text, wanted in zip(prompts, rows, choices):
        assert text[len(prompt) :] == wanted[len(prompt) - 1 : len(text) - 1].tolist()
