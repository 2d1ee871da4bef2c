"""The arguments that several commands share, and their translation for the library."""

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..cache import KV_SCHEMES
from ..errors import RequestError
from ..models.quantised import SCHEMES
from ..parallel import is_first_host
from ..requests.options import Options, read_numbers
from .hosts import add_host_arguments
from .parser import integer, name, path

SAMPLING = tuple(
    field.name for field in dataclasses.fields(Options) if field.name not in ("max_new_tokens", "seed", "n")
)
"""The options of ``requests.options.Options`` that commands pass on under the same names."""

LARGEST_SEED = 2**32 - 1
MOST_PROMPTS = 100_000


def add_model_arguments(command: argparse.ArgumentParser, apart: bool = False) -> None:
    """Adds the flags of models.

    ``apart``: whether drafts may have devices of their own, and the target's layers the host's memory.
    """
    group = command.add_argument_group("models")
    group.add_argument(
        "--model",
        type=name,
        default="tiny-python",
        help="the target: an embedded name, a directory or a hub id (default tiny-python)",
    )
    group.add_argument(
        "--draft",
        type=name,
        action="append",
        default=[],
        help="a smaller model or a trained head, by name like --model; merged, cascade and "
        "lists such as draft_model,draft_model take several",
    )
    add_revision_argument(group)
    add_dtype_argument(group)
    add_adapter_argument(group)
    add_quantize_argument(group)
    group.add_argument(
        "--kv-quantize", choices=[*KV_SCHEMES], help="form of keys and values in the cache of --model; by default full"
    )
    group.add_argument("--draft-adapter", type=name, metavar="DIR", help="LoRA adapter of the draft")
    group.add_argument("--draft-quantize", choices=SCHEMES, help="form of the draft models' weights; by default dtype")
    group.add_argument(
        "--draft-vocab",
        type=integer(1),
        metavar="N",
        help="draft the N most frequent tokens only: a smaller output matrix of draft models; the output stays exact",
    )
    group.add_argument(
        "--draft-vocab-data",
        type=name,
        nargs="+",
        metavar="PATH",
        help="texts that --draft-vocab counts, as for training; by default code of Python's standard library",
    )
    add_mesh_argument(group)
    if apart:
        add_offload_argument(group)
        group.add_argument(
            "--draft-mesh",
            type=name,
            metavar="AXES|cpu",
            help="devices of the drafts' own, of those that the target leaves, such as model=2; cpu for the CPU beside "
            "a GPU or TPU; by default drafts are on the target's devices",
        )
    add_host_arguments(command)


def add_revision_argument(group) -> None:
    group.add_argument("--revision", type=name, help="branch, tag or commit of --model, if that is a hub id")


def add_dtype_argument(group) -> None:
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="dtype of the weights; by default the checkpoint's"
    )


def add_adapter_argument(group) -> None:
    group.add_argument(
        "--adapter",
        type=name,
        metavar="DIR",
        help="LoRA adapter of --model in the layout of PEFT, a directory or a hub id; it is merged at load",
    )


def add_quantize_argument(group) -> None:
    group.add_argument(
        "--quantize", choices=SCHEMES, help="form of the weights of --model in memory; by default those of --dtype"
    )


def add_offload_argument(group) -> None:
    group.add_argument(
        "--offload",
        action="store_true",
        default=None,
        help="keep the layers of --model in the host's memory, and copy them to the device for each forward; for a "
        "target that is larger than the device's memory",
    )


def add_mesh_argument(group) -> None:
    group.add_argument(
        "--mesh",
        type=name,
        metavar="AXES",
        help="devices to run on, such as data=2,model=4: data splits the prompts of a batch, model the weights, "
        "nodes the nodes of token trees; by default one device",
    )


def add_method_arguments(command: argparse.ArgumentParser) -> None:
    from ..drafters import METHODS

    group = command.add_argument_group("method")
    group.add_argument(
        "--method",
        type=name,
        help=f"one of {', '.join(METHODS)}, or several in order, such as ngram,draft_model; by default none without a "
        "draft, draft_model with one, merged with several, and the head's own method with a trained head",
    )
    group.add_argument(
        "--rule", type=name, default="auto", help="acceptance rule; auto (default) is the best lossless one"
    )


def add_prompts_arguments(group, default: str) -> None:
    group.add_argument(
        "--prompts",
        type=path,
        metavar="FILE",
        help="file of JSON lines with prompt or turns; by default held-out code of Python's standard library",
    )
    group.add_argument(
        "--num-prompts",
        type=integer(1, MOST_PROMPTS),
        metavar="N",
        help=f"number of prompts to use; by default {default}",
    )


def add_chat_argument(group) -> None:
    group.add_argument(
        "--chat",
        action="store_true",
        help="read the lines of --prompts as conversations in the model's chat template: each turn of the user is a "
        "prompt, after the file's answers or else the model's own; --num-prompts counts conversations",
    )


def add_new_tokens_argument(group) -> None:
    group.add_argument(
        "--max-new-tokens",
        type=integer(1),
        default=128,
        metavar="N",
        help="the most new tokens after each prompt (default 128)",
    )


def add_sampling_arguments(command: argparse.ArgumentParser, temperature: float = 0.0) -> None:
    """Adds the options of ``requests.options.Options`` under their names."""
    add = command.add_argument_group("sampling").add_argument
    token: dict[str, Any] = dict(type=int, action="append", metavar="ID")
    text: dict[str, Any] = dict(action="append", metavar="TEXT")
    add("--temperature", type=float, metavar="X", default=temperature, help="0 is greedy (default %(default)s)")
    add("--top-k", type=int, metavar="N", help="sample from the N likeliest tokens; 0 for all (default)")
    add("--top-p", type=float, metavar="X", help="sample from the likeliest tokens that sum to this probability")
    add("--min-p", type=float, metavar="X", help="leave out tokens below this fraction of the largest probability")
    add(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="make tokens that occurred less likely, by this factor on the logit; 1 does nothing (default)",
    )
    add("--presence-penalty", type=float, metavar="X", help="subtract this once from the logits of generated tokens")
    add(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="subtract this from the logits of generated tokens, for each occurrence",
    )
    add("--logit-bias", metavar="JSON", help='numbers to add to logits: {"token id": number}, or @FILE')
    add("--allow-token", dest="allowed_tokens", **token, help="allow only such tokens; may be given several times")
    add("--suppress-token", dest="suppressed_tokens", **token, help="forbid this token; may be given several times")
    add("--seed", type=integer(0, LARGEST_SEED), metavar="N", default=0, help="seed of the random numbers (default 0)")
    add = command.add_argument_group("end and form of the text").add_argument
    add("--min-new-tokens", type=int, metavar="N", help="no token may end the text before this number of new tokens")
    add("--stop", **text, help="end the text before this string; may be given several times")
    add("--stop-token-id", dest="stop_token_ids", **token, help="end at this token; may be given several times")
    add("--ignore-eos", action="store_true", help="continue past end-of-text tokens")
    add("--regex", metavar="TEXT", help="the text must match this regular expression in full")
    add("--choice", dest="choices", **text, help="the text must be one of these; may be given several times")
    add("--json-schema", metavar="JSON", help="the text must be JSON for this schema, or @FILE")


def choose_method(args: argparse.Namespace) -> str | None:
    """The method by whose name flags are checked: the user's, or "none" without a method and drafts.

    None for drafts without a method: one of them may be a head, which has a method of its own; and
    for times of method auto.
    """
    from ..drafters import default_method

    return args.method or (None if args.draft or args.costs else default_method(()))


def check_method(args: argparse.Namespace, method: str | None, options: dict) -> None:
    """Raises RequestError for options, drafts or a rule that do not fit the method.

    It runs before a model is loaded.
    """
    from ..drafter import TrainedHead
    from ..drafters import check_drafts, check_options, make_drafter, needs_of
    from ..verify import resolve

    if args.draft_mesh is not None and not args.draft:
        raise RequestError("--draft-mesh places a draft and none is given; name one with --draft")
    if args.draft_adapter is not None and len(args.draft) != 1:
        raise RequestError(f"--draft-adapter changes one draft and {len(args.draft)} are given; give one --draft")
    if args.draft_quantize is not None and not args.draft:
        raise RequestError("--draft-quantize quantises a draft model and none is given; name one with --draft")
    if args.draft_vocab_data is not None and args.draft_vocab is None:
        raise RequestError("--draft-vocab-data is counted for --draft-vocab; give --draft-vocab N too")
    if args.draft_vocab is not None and not args.draft:
        raise RequestError("--draft-vocab restricts a draft model and none is given; name one with --draft")
    if method is None:
        return
    check_options(method, options)
    check_drafts(method, len(args.draft))
    if not isinstance(needs_of(method), TrainedHead):  # A method with a head is made after its head is loaded.
        resolve(getattr(args, "rule", "auto"), make_drafter(method, **options).drawn)


def given_sampling(args: argparse.Namespace) -> dict:
    """The sampling options that the user gave, by their names in ``Options``.

    Raises RequestError for numbers that are out of range.
    """
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name, None) is not None}
    for option in ("logit_bias", "json_schema"):
        if option in given:
            given[option] = _read_json(option, given[option])
    read_numbers(Options.of(given), 1)
    return given


def _read_json(option: str, text: str) -> dict:
    """The JSON object in an argument, or in the file that the argument names after an @."""
    from ..checks import parse_json

    flag = f"--{option.replace('_', '-')}"
    try:
        text = Path(text[1:]).read_text() if text.startswith("@") else text
    except OSError as error:
        raise RequestError(f"{flag}: {text[1:]} cannot be read ({error.strerror}); name another file") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{flag}: {text[1:]} is not UTF-8 ({error.reason}); save it as UTF-8") from None
    value = parse_json(flag, text)
    if not isinstance(value, dict):
        raise RequestError(f'{flag} must be a JSON object such as {{"a": 1}}')
    return value


def prepare_prompts(args: argparse.Namespace, tokens: int = 128, count: int = 16) -> Callable:
    """Reads ``--prompts``, and returns a function from a loaded target to its prompts.

    Without ``--prompts`` they are ``count`` held-out pieces of code of at most ``tokens`` tokens.
    """
    from ..evaluation import held_out_prompts, read_prompts

    given = args.prompts and read_prompts(args.prompts)

    def prompts(target) -> list[str]:
        size = min(tokens, target.config.context // 4)
        return (given or held_out_prompts(target.tokenizer, args.num_prompts or count, size))[: args.num_prompts]

    return prompts


def prepare_conversations(args: argparse.Namespace) -> Callable:
    """Reads the conversations of ``--prompts``, and returns a function from a target to prompts."""
    from ..evaluation import chat_prompts, read_conversations

    if args.prompts is None:
        raise RequestError("--chat needs --prompts; name a file of JSON lines with turns or messages")
    conversations = read_conversations(args.prompts)[: args.num_prompts]
    return lambda target: chat_prompts(target, conversations, args.max_new_tokens)


def check_output(file: Path | None) -> None:
    """Raises RequestError for a file that cannot be written. It runs before the long work."""
    if file is None:
        return
    writable = os.access(file if file.exists() else file.parent, os.W_OK)
    if file.is_dir() or not file.parent.is_dir() or not writable:
        raise RequestError(f"--output {file}: cannot be written; name a file in a directory that can be written")


@contextmanager
def replace_file(file: Path) -> Iterator[Path]:
    """Yields a new file, which replaces ``file`` at the end of the block.

    A reader never sees half a file. If two commands write one file, it has the whole text of the
    later one. A device or a pipe is written directly.
    """
    file = file.resolve()
    if file.exists() and not file.is_file():
        yield file
        return
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    os.close(handle)
    try:
        yield Path(new)
        os.chmod(new, file.stat().st_mode if file.exists() else 0o666 & ~_umask())
        os.replace(new, file)
    finally:
        Path(new).unlink(missing_ok=True)


def write_output(file: Path | None, text: str) -> None:
    """Writes ``text`` to the file of ``--output``, if it was given, on the first host."""
    if file is not None and is_first_host():
        with replace_file(file) as new:
            new.write_text(text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
