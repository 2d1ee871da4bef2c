"""Prompts for measurements: files of public benchmarks, or held-out modules of Python's library.

The embedded models were not trained on the held-out modules.
"""

import re
from itertools import zip_longest
from pathlib import Path

import numpy as np

from ...checkpoints.load import LanguageModel
from ...core.checks import check_text, shorten
from ...core.read_files import parse_json, read_bytes
from ...errors import RequestError
from ...text.generator import Generator
from ...training.data import read_texts, standard_library

_DEFINITION = re.compile(r"\s*(async def|def|class) .*:\s*$")
_ROLES = ("system", "user", "assistant")


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file of JSON lines. Blank lines are ignored.

    A line is an object with "prompt" (as in HumanEval), or with "turns" (as in Spec-Bench and
    MT-Bench), whose first turn is the prompt. Raises RequestError, which names the file and the
    line.
    """
    return [_prompt(record, place) for place, record in _read_records(path)]


def read_conversations(path: str | Path) -> list[list[dict]]:
    """The conversations of a file of JSON lines, as lists of messages. Blank lines are ignored.

    A line is an object with "messages" ([{"role": "user", "content": "..."}, ...]), with "turns"
    (the user's turns, as in Spec-Bench and MT-Bench), or with "prompt" (the user's only turn). The
    roles are system, user and assistant. Raises RequestError, which names the file and the line.
    """
    return [_conversation(record, place) for place, record in _read_records(path)]


def held_out_prompts(tokenizer, count: int, tokens: int) -> list[str]:
    """``count`` pieces of the standard library's held-out modules, spread evenly over the modules.

    The pieces are the same on every call. A piece ends with the first line of a function or class,
    and has at most ``tokens`` tokens. Raises RequestError where the library has too few pieces.
    """
    texts = read_texts(standard_library(held_out=True))
    rng = np.random.default_rng(0)
    modules = [rng.permutation(np.array(_pieces(text, tokenizer, tokens), object)) for text in texts]
    turns = zip_longest(*(modules[i] for i in rng.permutation(len(modules))))
    prompts = [piece for turn in turns for piece in turn if piece is not None]
    if len(prompts) < count:
        raise RequestError(
            f"the standard library has {len(prompts)} held-out prompts of {tokens} tokens, not {count}; "
            "name a prompts file"
        )
    return prompts[:count]


def edit_prompts(target: LanguageModel, count: int, tokens: int) -> list[str]:
    """``count`` prompts in which the model writes a file once more.

    A prompt consists of held-out code of ``tokens`` tokens, the target's own continuation of the
    same length, a comment, and the same code again. So most of the next tokens stand in the prompt,
    even for a model that cannot copy foreign text.
    """
    pieces = held_out_prompts(target.tokenizer, count, tokens)
    write = Generator(target, "none")
    return [
        f"{piece}{write(piece, max_new_tokens=tokens, ignore_eos=True).text}\n\n# second version\n{piece}"
        for piece in pieces
    ]


def _read_records(path: str | Path) -> list[tuple[str, dict]]:
    """The objects of a file of JSON lines. Before each stands its place, for errors."""
    lines = read_bytes(path, str(path), mend="name a file of JSON lines").split(b"\n")
    records = [
        (f"{path}, line {i}", _parse_line(line, f"{path}, line {i}")) for i, line in enumerate(lines, 1) if line.strip()
    ]
    if not records:
        raise RequestError(f'{path}, line 1: the file is empty; write one {{"prompt": "..."}} a line')
    return records


def _parse_line(line: bytes, place: str) -> dict:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError(f"{place}: not UTF-8; save the file as UTF-8") from None
    record = parse_json(f"{place}: the line", text)
    if not isinstance(record, dict):
        raise RequestError(f'{place}: the line is no object; write {{"prompt": "..."}}')
    return record


def _prompt(record: dict, place: str) -> str:
    turns = record.get("turns")
    prompt = record.get("prompt", turns[0] if isinstance(turns, list) and turns else None)
    if not isinstance(prompt, str):
        other = '; --chat reads "messages"' if "messages" in record else ""
        raise RequestError(f'{place}: no prompt; give "prompt" (a string) or "turns" (a list of strings){other}')
    return _check_text(prompt, f"{place}: the prompt")


def _conversation(record: dict, place: str) -> list[dict]:
    key = next((key for key in ("messages", "turns", "prompt") if record.get(key) is not None), None)
    turns = [record[key]] if key == "prompt" else record.get(key)
    if not isinstance(turns, list) or not turns:
        raise RequestError(
            f'{place}: no conversation; give "messages" (a list of objects with role and content), "turns" (a list of '
            'strings) or "prompt" (a string)'
        )
    if key == "messages":
        messages = [_message(turn, f"{place}: messages[{i}]") for i, turn in enumerate(turns)]
    else:
        names = [f"{place}: the prompt"] if key == "prompt" else [f"{place}: turns[{i}]" for i in range(len(turns))]
        messages = [{"role": "user", "content": _check_text(turn, name)} for turn, name in zip(turns, names)]
    if not any(message["role"] == "user" for message in messages):
        raise RequestError(f"{place}: no message of the role user; give at least one")
    return messages


def _message(turn, name: str) -> dict:
    """The role and the content of a turn. Errors call the turn ``name``."""
    if not isinstance(turn, dict):
        raise RequestError(f"{name} must be an object with role and content, not {shorten(turn)}")
    role = turn.get("role")
    if role not in _ROLES:
        raise RequestError(f"{name} has the role {shorten(role)}; use one of {', '.join(_ROLES)}")
    return {"role": role, "content": _check_text(turn.get("content"), f"{name}.content")}


def _check_text(text, name: str) -> str:
    """Returns ``text``. Raises RequestError where it is not a string or has only white space."""
    if not check_text(text, name).strip():
        raise RequestError(f"{name} is empty; give some text or remove the line")
    return text


def _pieces(text: str, tokenizer, tokens: int) -> list[str]:
    """A piece for each definition with ``tokens`` tokens before it: lines up to its first line."""
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
