"""The command line: ``specjax generate``, ``compare`` and ``verify``. What they do is in ``commands.py``."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from . import __version__
from .bench.faults import FAULTS
from .commands import run_compare, run_generate, run_verify
from .drafters import METHODS
from .errors import SpecjaxError


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 where ``verify`` found a disagreement, 2 after one line on stderr for what the user can mend, 130 when interrupted."""
    try:
        args = _parser().parse_args(argv)
        code = args.handler(args)
        sys.stdout.flush()
        return code or 0
    except SpecjaxError as error:
        print("specjax: error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        with suppress(OSError):  # or Python would complain when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as everything here does."""

    def error(self, message):
        self.exit(2, f"specjax: error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specjax", description="Speculative decoding for JAX.")
    parser.add_argument("--version", action="version", version=f"specjax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = _command(commands, "generate", run_generate, "continue prompts and say what it cost")
    command.add_argument("--prompt", action="append", required=True, help="text to continue, - for stdin; may be given several times")
    _method_options(command)
    _sampling_options(command)
    command.add_argument("--logprobs", type=int, help="with --json, log-probabilities of the new tokens and of so many likeliest ones")
    command.add_argument("--capacity", type=int, help="positions of the cache; by default as many as needed")
    command.add_argument("--stream", action="store_true", help="print the text as it grows, on stderr with --json")

    command = _command(commands, "compare", run_compare, "measure methods against plain decoding on the same prompts")
    command.add_argument("--methods", help="separated by commas; by default all that the given models allow")
    command.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    command.add_argument("--num-prompts", type=int, help="how many prompts to use; by default all of the file, or 16")
    command.add_argument("--repeats", type=int, default=1, help="runs of each prompt, of which the median counts (default 1)")
    command.add_argument("--output", type=Path, help="also write the JSON to this file")

    command = _command(commands, "verify", run_verify, "check that a method leaves the output as it is; exit code 1 if not")
    _method_options(command)
    _sampling_options(command, temperature=1.0)
    command.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    command.add_argument("--num-prompts", type=int, help="how many prompts to use (default 4)")
    command.add_argument("--samples", type=int, default=512, help="draws for each prompt and method (default 512)")
    command.add_argument("--tokens", type=int, default=3, help="how many first tokens the draws are compared by (default 3)")
    command.add_argument("--inject", metavar="FAULT", help=f"plant a known wrong rule, which must be found: {', '.join(FAULTS)}")
    return parser


def _command(commands, name: str, handler, description: str) -> argparse.ArgumentParser:
    """A subcommand with the options that all of them have."""
    command = commands.add_parser(name, help=description, description=description)
    command.set_defaults(handler=handler)
    command.add_argument("--model", default="tiny-python", help="embedded name, directory or hub id (default tiny-python)")
    command.add_argument("--draft", help="a smaller model of the same tokenizer")
    command.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights; by default the checkpoint's")
    command.add_argument("--max-new-tokens", type=int, default=128, help="(default 128)")
    command.add_argument("--num-speculative-tokens", type=int, help="for chains, tokens drafted in a round (default 5; suffix 8)")
    command.add_argument("--prompt-lookup-max", type=int, help="for ngram, the longest run to look up (default 4)")
    command.add_argument("--prompt-lookup-min", type=int, help="for ngram, the shortest (default 1)")
    command.add_argument("--max-match", type=int, help="for suffix, the longest run to look up (default 16)")
    command.add_argument("--min-token-prob", type=float, help="for suffix, where a continuation ends (default 0.1)")
    command.add_argument("--candidates", type=int, help="for token_recycling, successors kept for each token (default 8)")
    command.add_argument("--window", type=int, help="for lookahead, W, columns of the window (default 15)")
    command.add_argument("--ngram-size", type=int, help="for lookahead, N (default 5)")
    command.add_argument("--guesses", type=int, help="for lookahead, G, n-grams verified in a round (default 15)")
    command.add_argument("--pool-guesses", type=int, help="for lookahead, n-grams kept for each token (default as --guesses)")
    command.add_argument("--pool-from-prompt", action="store_true", default=None, help="for lookahead, n-grams of the text go to the pool")
    command.add_argument(
        "--tree",
        metavar="WIDTHS|FILE",
        help="for tree (default 1,1,3,1,1,1,1,1) and token_recycling: children at each level, or a TOML file",
    )
    command.add_argument("--siblings", help="for tree, without_replacement (default), independent or top_k")
    command.add_argument("--tree-nodes", type=int, help="for dynamic_tree, drafted nodes (default 16)")
    command.add_argument("--tree-depth", type=int, help="for dynamic_tree, levels (default 5)")
    command.add_argument("--tree-top-k", type=int, help="for dynamic_tree, nodes expanded in a level (default 4)")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _method_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--method", help=f"one of {', '.join(METHODS)}; by default draft_model if there is a draft, else none")
    command.add_argument("--rule", default="auto", help="acceptance rule; auto is the best lossless one (default)")


def _sampling_options(command: argparse.ArgumentParser, temperature: float = 0.0) -> None:
    """Options of ``options.Options``, under its names."""
    add = command.add_argument
    add("--temperature", type=float, default=temperature, help="0 is greedy (default %(default)s)")
    add("--top-k", type=int, help="sample from the k likeliest tokens; 0 for all (default)")
    add("--top-p", type=float, help="sample from the likeliest tokens of this probability")
    add("--min-p", type=float, help="leave out tokens below this fraction of the likeliest")
    add("--repetition-penalty", type=float, help="divide the logits of tokens that occurred; 1 does nothing (default)")
    add("--presence-penalty", type=float, help="subtract from the logits of generated tokens, once")
    add("--frequency-penalty", type=float, help="subtract from the logits of generated tokens, for each occurrence")
    add("--min-new-tokens", type=int, help="until then no token may end the text")
    add("--logit-bias", metavar="JSON", help='numbers added to logits, {"token id": number}, or @FILE')
    add(
        "--allow-token",
        dest="allowed_tokens",
        type=int,
        action="append",
        metavar="ID",
        help="only these tokens; may be given several times",
    )
    add(
        "--suppress-token",
        dest="suppressed_tokens",
        type=int,
        action="append",
        metavar="ID",
        help="not this token; may be given several times",
    )
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given several times")
    add(
        "--stop-token-id",
        dest="stop_token_ids",
        type=int,
        action="append",
        metavar="ID",
        help="end at this token; may be given several times",
    )
    add("--regex", help="the text must match this regular expression in full")
    add("--choice", dest="choices", action="append", metavar="TEXT", help="the text must be one of these; may be given several times")
    add("--json-schema", metavar="JSON", help="the text must be JSON for this schema, or @FILE")
    add("--seed", type=int, default=0)
    add("--ignore-eos", action="store_true", help="go on past end-of-text tokens")
