"""``specjax generate --prompts FILE --output FILE``: continues the prompts of a file in an engine.

Each result is a JSON line, in the order in which the requests end. The same command resumes an
interrupted run: it continues only the prompts that have no line.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core.read_files import parse_json, read_bytes
from ..errors import NumericsError, RequestError, SpecjaxError
from .loading import load_given_drafts, load_target, read_template
from .output import check_output
from .sampling import recommended_options
from .terminal import progress_bar, status

_SLOTS = 16


def continue_file(args: argparse.Namespace, options: dict, drafting: dict) -> None:
    """Continues the prompts of ``args.prompts`` that have no line in ``args.output``.

    A prompt that fails does not stop the others. Its error is raised after the last of them.
    """
    from ..engine import Engine
    from ..tools.evaluate import read_conversations, read_prompts

    # 1. Read the prompts, and leave out those that earlier runs have done.
    _check(args, options)
    prompts = read_conversations(args.prompts) if args.chat else read_prompts(args.prompts)
    keys = [_key(args, options, prompt) for prompt in prompts]
    done = _read_done(args.output, keys)
    left = {i: prompt for i, prompt in enumerate(prompts) if i not in done}
    # 2. Load the models.
    with status("loading"):
        target = load_target(args)
        options = recommended_options(args, target) | options
        recorded = options.get("logprobs", 0 if "policy_logprobs" in options else None)
        sizes = dict(slots=args.slots or _SLOTS, logprobs=recorded)
        sizes |= {} if args.capacity is None else dict(capacity=args.capacity)
        engine = Engine(target, args.method, load_given_drafts(args, target), rule=args.rule, **sizes, **drafting)
    # 3. Decode, and write each result at once.
    began = time.perf_counter()
    stats = []
    failures = {}
    try:
        with progress_bar("decoding") as progress, args.output.open("a", encoding="utf-8") as file:
            requests = {i: {"messages" if args.chat else "prompt": prompt} for i, prompt in left.items()}
            for count, (i, outcome) in enumerate(_decode(engine, requests, options, 2 * (args.slots or _SLOTS)), 1):
                if isinstance(outcome, SpecjaxError):
                    failures[i] = outcome
                else:
                    stats.append(outcome.stats)
                    file.write(json.dumps({"index": i, "key": keys[i]} | outcome.as_dict()) + "\n")
                    file.flush()
                progress(count, len(left))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the same command continues {args.output}") from None
    # 4. Print the figures, and raise the first failure.
    _print_summary(stats, len(prompts), len(done), time.perf_counter() - began)
    if failures:
        i, error = min(failures.items())
        more = f" ({len(failures)} prompts failed)" if len(failures) > 1 else ""
        raise type(error)(f"{args.prompts}, prompt {i + 1}: {error}{more}")


def _print_summary(stats: list, prompts: int, done: int, seconds: float) -> None:
    from ..core.stats import total

    text = f"{len(stats)} of {prompts} prompts, {done} by earlier runs"
    if stats:
        whole = total(stats)
        text += (
            f"; {whole.generated} tokens, {whole.generated / seconds:.1f} tokens/s with compilation, mean acceptance "
            f"length {whole.mean_acceptance_length:.2f}"
        )
    print(text, file=sys.stderr)


def _check(args: argparse.Namespace, options: dict) -> None:
    """Raises RequestError for options that a file of prompts does not go with."""
    if args.output is None:
        raise RequestError("--prompts writes the results to a file; name it with --output")
    for flag, value in {
        "--prompt": args.prompt,
        "--stream": args.stream,
        "--json": args.json,
        "--n": args.n > 1,
        "--feedback-log": args.feedback_log or args.feedback_log_mb,
    }.items():
        if value:
            raise RequestError(f"{flag} does not go with --prompts; leave it out, or give the texts with --prompt")
    check_output(args)


def _decode(engine, requests: Mapping[int, dict], options: dict, most: int) -> Iterator[tuple]:
    """Yields each request's index with its Result or its error, in the order of their ends.

    ``most``: the number of requests that the engine holds at a time.
    """
    waiting = deque(requests.items())
    running = {}
    while waiting or running:
        while waiting and len(running) < most:
            index, request = waiting.popleft()
            try:
                running[index] = engine.submit(**request, **options)
            except RequestError as error:
                yield index, error
        if engine.has_work:
            engine.step()
        for index in [i for i, handle in running.items() if handle.is_over]:
            try:
                yield index, running.pop(index).result()
            except NumericsError as error:
                yield index, error


_TARGET = ("model", "revision", "dtype", "adapter", "quantize", "kv_quantize", "rule")
"""The flags that decide the law of a text, beside the options of the request."""


def _key(args: argparse.Namespace, options: dict, prompt) -> str:
    """A digest of everything that decides the law of a prompt's text.

    Method and drafts are no part of it.
    """
    target = [str(getattr(args, name)) for name in _TARGET]
    target += [read_template(args.chat_template)] if args.chat_template else []
    target += [args.generation_config] if args.chat else []
    return hashlib.sha256(json.dumps([target, options, prompt], sort_keys=True).encode()).hexdigest()[:16]


def _read_done(file: Path, keys: list[str]) -> set[int]:
    """The indices of the prompts that have a line. Half a line at the end is cut off.

    Raises RequestError for a file with other lines, which is not changed.
    """
    if not file.exists():
        return set()
    text = read_bytes(file, f"--output {file}")
    done = set()
    whole = text[: text.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        place = f"--output {file}, line {number}"
        record = parse_json(place, line)
        index = record.get("index") if isinstance(record, dict) else None
        if not isinstance(index, int) or not 0 <= index < len(keys) or record.get("key") != keys[index]:
            raise RequestError(
                f"{place}: is no result of these prompts with this model and these options; name another file"
            )
        done.add(index)
    if len(whole) < len(text):
        os.truncate(file, len(whole))
    return done
