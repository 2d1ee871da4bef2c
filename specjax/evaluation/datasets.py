"""Prompts for measurements: files of public benchmarks, or modules that the embedded models were not trained on."""

import json
import re
from itertools import zip_longest
from pathlib import Path

import numpy as np

from ..checkpoints.load import LanguageModel
from ..errors import RequestError
from ..generate import Generator
from ..training.data import read_texts, standard_library

_DEFINITION = re.compile(r"\s*(async def|def|class) .*:\s*$")


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file of JSON lines, blank lines left out.

    A line is an object with "prompt" (a plain list, HumanEval) or "turns" (Spec-Bench, MT-Bench), whose first turn is the
    prompt. Raises RequestError with the file and the line.
    """
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror}); name a file of JSON lines") from None
    prompts = [_prompt(line, f"{path}, line {i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise RequestError(f'{path}, line 1: the file is empty; write one {{"prompt": "..."}} a line')
    return prompts


def held_out_prompts(tokenizer, count: int, tokens: int) -> list[str]:
    """``count`` pieces of held-out standard-library modules, the same on every call, spread evenly over the modules.

    A piece ends with the first line of a function or class, and its lines have at most ``tokens`` tokens together. Raises
    RequestError where the library has too few.
    """
    texts = read_texts(standard_library(held_out=True))
    rng = np.random.default_rng(0)
    modules = [rng.permutation(np.array(_pieces(text, tokenizer, tokens), object)) for text in texts]
    turns = zip_longest(*(modules[i] for i in rng.permutation(len(modules))))
    prompts = [piece for turn in turns for piece in turn if piece is not None]
    if len(prompts) < count:
        raise RequestError(
            f"the standard library has {len(prompts)} held-out prompts of {tokens} tokens, not {count}; name a prompts file"
        )
    return prompts[:count]


def edit_prompts(target: LanguageModel, count: int, tokens: int) -> list[str]:
    """``count`` files that are written again after an edit.

    Each is held-out code of ``tokens`` tokens, the target's own continuation of the same length, a comment, and the same
    code again. Most of the next tokens thus stand in the prompt, also for a model that cannot copy foreign text.
    """
    pieces = held_out_prompts(target.tokenizer, count, tokens)
    write = Generator(target)
    return [
        f"{piece}{write(piece, max_new_tokens=tokens, ignore_eos=True).text}\n\n# second version\n{piece}"
        for piece in pieces
    ]


def _prompt(line: bytes, place: str) -> str:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RequestError(f"{place}: not UTF-8; save the file as UTF-8") from None
    except RecursionError:
        raise RequestError(f"{place}: nests too deeply; write one flat object a line") from None
    except ValueError as error:
        raise RequestError(f"{place}: not JSON ({error}); write one object a line") from None
    record = record if isinstance(record, dict) else {}
    turns = record.get("turns")
    prompt = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(prompt, str):
        raise RequestError(f'{place}: no prompt; give "prompt" (a string) or "turns" (a list of strings)')
    if not prompt.strip():
        raise RequestError(f"{place}: the prompt is empty; give some text or remove the line")
    return prompt


def _pieces(text: str, tokenizer, tokens: int) -> list[str]:
    """For each definition with enough text before it, the lines up to its first line that fit into ``tokens``."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return []
    ends = np.cumsum([len(ids) for ids in tokenizer(lines, add_special_tokens=False)["input_ids"]])
    pieces = []
    for i in np.flatnonzero(ends >= tokens):
        start = np.searchsorted(ends, ends[i] - tokens) + 1
        if start < i and _DEFINITION.match(lines[i]):
            pieces.append("".join(lines[start : i + 1]))
    return pieces
