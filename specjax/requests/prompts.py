"""Turns prompts as users give them, strings or token ids, into token ids."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.checks import check_text, shorten
from ..errors import RequestError
from ..models.config import ModelConfig
from .limits import check_limit


def is_single(prompts) -> bool:
    """Whether ``prompts`` is one prompt, a string or token ids, and not a list of prompts.

    Raises RequestError where it is neither a prompt nor a list.
    """
    if isinstance(prompts, str):
        return True
    axes = getattr(prompts, "ndim", None)
    if axes is not None:
        if axes != 1:
            raise RequestError(
                f"prompts is an array of {axes} axes; give the token ids of one prompt, or a list of prompts"
            )
        return True
    if isinstance(prompts, Mapping):
        raise RequestError("prompts is a mapping; give its input_ids as a list of token ids, or a string")
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Sequence):
        raise RequestError(f"prompts must be a string, token ids or a list of them, not {shorten(prompts)}")
    return len(prompts) > 0 and not isinstance(prompts[0], Mapping) and _is_number(prompts[0])


def encode_prompts(prompts, tokenizer, config: ModelConfig) -> list[list[int]]:
    """The token ids of each prompt. ``prompts`` is one prompt or a list of prompts.

    An empty string is a prompt if the tokenizer begins every text with a token.

    Raises RequestError for a prompt that has no token, that leaves no room for output in the
    model's context, that is longer than its encoder's, or that is neither a string nor a list of
    token ids of the vocabulary.
    """
    prompts = [prompts] if is_single(prompts) else prompts
    if not len(prompts):
        raise RequestError("the list of prompts is empty; give at least one")
    check_limit(len(prompts), "MOST_PROMPTS", f"the number of {len(prompts):,} prompts", "call with fewer at a time")
    return [
        _encode(prompt, f"prompt {i}" if len(prompts) > 1 else "the prompt", tokenizer, config)
        for i, prompt in enumerate(prompts)
    ]


def _encode(prompt, name: str, tokenizer, config: ModelConfig) -> list[int]:
    ids = tokenizer.encode(check_text(prompt, name)) if isinstance(prompt, str) else _read_ids(prompt, name)
    if not ids:
        raise RequestError(f"{name} is empty; give at least one token")
    if min(ids) < 0 or max(ids) >= config.vocab_size:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise RequestError(
            f"{name} holds a token outside the vocabulary of {config.vocab_size}: {shorten(wrong)}; leave it out"
        )
    longest = config.context - 1 if config.encoder is None else config.encoder.context
    if len(ids) > longest:
        context = config.context if config.encoder is None else config.encoder.context
        raise RequestError(
            f"{name} has {len(ids)} tokens and the model's context is {context}; shorten it to {longest} at most"
        )
    return ids


def _read_ids(prompt, name: str) -> list[int]:
    """The token ids of a prompt that is not a string, as Python ints."""
    if getattr(prompt, "ndim", 1) != 1 or not isinstance(prompt, Sequence) and not hasattr(prompt, "ndim"):
        raise RequestError(f"{name} must be a string or a list of token ids, not {shorten(prompt)}")
    if isinstance(prompt, bytes | bytearray):
        raise RequestError(f"{name} is made of bytes; decode them to a string")
    ids = np.asarray(prompt).tolist() if hasattr(prompt, "ndim") else list(prompt)
    for id in ids:
        if not isinstance(id, int | np.integer) or isinstance(id, bool):
            raise RequestError(f"{name} holds {shorten(id)}; token ids are whole numbers")
    return [int(id) for id in ids]


def _is_number(x) -> bool:
    """Whether ``x`` is a number, such as a token id, and not a prompt."""
    return isinstance(x, int | float | np.number | np.bool_) or getattr(x, "ndim", None) == 0
