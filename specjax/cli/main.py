"""The command line: ``specjax generate``, ``compare``, ``verify``, ``tune``, ``train`` and ``ngrams``. What they do is in ``commands``."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from .. import __version__
from ..drafters import METHODS
from ..errors import SpecjaxError
from ..evaluation.faults import FAULTS
from .generate import run_generate
from .measure import run_compare, run_verify
from .plan import run_ngrams, run_tune
from .train import run_train


def main(argv: list[str] | None = None) -> int:
    """Runs a command and returns its exit code: 1 where ``verify`` found a disagreement or the disk is full, 2 after one line on stderr for what the user can mend, 130 when interrupted."""
    try:
        args = _parser().parse_args(argv)
        code = args.handler(args)
        sys.stdout.flush()
        return code or 0
    except SpecjaxError as error:
        print("specjax: error:", " ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
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
    command.add_argument(
        "--methods", help="separated by commas; by default all, of which those are left out that the given models do not allow"
    )
    command.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    command.add_argument("--num-prompts", type=int, help="how many prompts to use; by default all of the file, or 16")
    command.add_argument("--repeats", type=int, default=1, help="runs of each prompt, of which the median counts (default 1)")
    command.add_argument("--shares", action="store_true", help="also measure what part of a round is drafting")
    command.add_argument("--output", type=Path, help="also write the JSON to this file")

    command = _command(commands, "verify", run_verify, "check that a method leaves the output as it is; exit code 1 if not")
    _method_options(command)
    _sampling_options(command, temperature=1.0)
    command.add_argument("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    command.add_argument("--num-prompts", type=int, help="how many prompts to use (default 4)")
    command.add_argument("--samples", type=int, default=512, help="draws for each prompt and method (default 512)")
    command.add_argument("--tokens", type=int, default=3, help="how many first tokens the draws are compared by (default 3)")
    command.add_argument("--inject", metavar="FAULT", help=f"plant a known wrong rule, which must be found: {', '.join(FAULTS)}")
    _tune_command(commands)
    _train_command(commands)

    text = "count what follows what in text files, for --ngram-statistics"
    command = commands.add_parser("ngrams", help=text, description=text)
    command.set_defaults(handler=run_ngrams)
    command.add_argument(
        "--model", default="tiny-python", help="whose tokens to count: embedded name, directory or hub id (default tiny-python)"
    )
    command.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE", help="text files")
    command.add_argument("--output", type=Path, required=True, help="the file to write, such as text.npz")
    command.add_argument("--contexts", type=int, default=1 << 17, help="contexts kept of each length, the most frequent (default 131072)")
    return parser


def _tune_command(commands) -> None:
    command = commands.add_parser("tune", help=(about := "measure what drafts best here and write it to a file"), description=about)
    command.set_defaults(handler=run_tune)
    add = command.add_argument
    _model_options(command)
    add("--tree", action="store_true", help="the shape of a token tree, for methods whose trees have a fixed shape")
    add(
        "--method", help="whose tree: tree (default, with a model as draft), token_recycling, or with a head medusa, hydra, eagle or eagle3"
    )
    add("--layers", action="store_true", help="which layers of the target should draft, for early_exit and layer_skip")
    add("--budget", type=int, help="with --layers, how many sets of sub-layers to try (default 8 for each layer)")
    add("--num-speculative-tokens", type=int, help="with --layers, the longest draft to consider (default 8)")
    add("--prompts", type=Path, help="JSON lines with prompt or turns; by default held-out standard-library code")
    add("--num-prompts", type=int, help="how many prompts to use; by default all of the file, or 16")
    add("--max-new-tokens", type=int, default=128, help="that the target writes after each prompt (default 128)")
    add("--max-nodes", type=int, default=32, help="the largest tree, its root counted (default 32)")
    add("--max-depth", type=int, default=8, help="the deepest tree (default 8)")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default 0)")
    add("--batch", type=int, default=1, help="rows that will be decoded together (default 1)")
    add("--output", type=Path, help="write the result to this TOML file")
    add("--json", action="store_true", help="print one JSON object")


def _train_command(commands) -> None:
    command = commands.add_parser("train", help=(about := "train a drafter for a model by a recipe"), description=about)
    command.set_defaults(handler=run_train)
    add = command.add_argument
    kinds = "medusa, hydra, eagle, eagle3, mtp, block, draft"
    add("--recipe", required=True, metavar="KIND|FILE", help=f"{kinds}, or a TOML file such as those in configs/")
    add("--model", help="the target: embedded name, directory or hub id; by default the recipe's, or tiny-python")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="of the target's weights; by default the checkpoint's")
    add(
        "--data",
        type=Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="text files, or directories of them; by default the standard library",
    )
    add("--on-policy", help="target: train on its answers to the data; draft: on what the draft itself writes")
    add(
        "--output", type=Path, help="directory of the drafter, its log and checkpoints; a run found there goes on (default runs/MODEL-KIND)"
    )
    add("--steps", type=int, help="in all; this and what follows by default as in the recipe")
    add("--batch", type=int, help="windows of a step")
    add("--length", type=int, help="tokens of a window")
    add("--every", type=int, help="steps between checkpoints and measurements of acceptance")
    add("--prompts", type=int, help="how many held-out prompts to measure acceptance on; 0 for none")
    add("--seed", type=int)


def _command(commands, name: str, handler, description: str) -> argparse.ArgumentParser:
    """A subcommand with the options that all of them have."""
    command = commands.add_parser(name, help=description, description=description)
    command.set_defaults(handler=handler)
    _model_options(command)
    command.add_argument("--max-new-tokens", type=int, default=128, help="(default 128)")
    command.add_argument(
        "--num-speculative-tokens",
        type=int,
        help="for chains, most tokens drafted in a round (default 5; mtp 3, early_exit 6, suffix and layer_skip 8, block all that the head drafts); "
        "eagle3 then drafts a chain",
    )
    command.add_argument("--inner-speculative-tokens", type=int, help="for cascade, tokens that the draft judges in a call (default 3)")
    command.add_argument("--prompt-lookup-max", type=int, help="for ngram and cascade, the longest run to look up (default 4)")
    command.add_argument("--prompt-lookup-min", type=int, help="for ngram and cascade, the shortest (default 1)")
    command.add_argument("--ngram-statistics", metavar="FILE", help="for ngram, where the text has no match; see specjax ngrams")
    command.add_argument("--draft-length", help="for chains: fixed (default), confidence, heuristic or ema")
    command.add_argument("--draft-cost", type=float, help="for ema and switch, a drafted token's cost in plain target calls (default 0.1)")
    command.add_argument(
        "--verify-cost", type=float, help="for ema, what one more token adds to a target call, in plain ones (default 0.02)"
    )
    command.add_argument("--max-match", type=int, help="for suffix, the longest run to look up (default 16)")
    command.add_argument("--min-token-prob", type=float, help="for suffix, where a continuation ends (default 0.1)")
    command.add_argument("--store-tokens", type=int, help="for suffix, tokens of earlier texts to look up as well (default 0)")
    command.add_argument("--candidates", type=int, help="for token_recycling, successors kept for each token (default 4)")
    command.add_argument("--window", type=int, help="for lookahead, W, columns of the window (default 15)")
    command.add_argument("--ngram-size", type=int, help="for lookahead, N (default 5)")
    command.add_argument("--guesses", type=int, help="for lookahead, G, n-grams verified in a round (default 15)")
    command.add_argument("--pool-guesses", type=int, help="for lookahead, n-grams kept for each token (default as --guesses)")
    command.add_argument("--pool-from-prompt", action="store_true", default=None, help="for lookahead, n-grams of the text go to the pool")
    command.add_argument(
        "--tree",
        metavar="WIDTHS|FILE",
        help="for tree (default 1,1,3,1,1,1,1,1), token_recycling, eagle, eagle3, medusa and hydra: children at each level, or a TOML file",
    )
    command.add_argument("--siblings", help="for tree, eagle and eagle3, without_replacement (default), independent or top_k")
    command.add_argument(
        "--tree-nodes",
        type=int,
        help="for dynamic_tree (default 15), eagle2 and eagle3 (59), drafted nodes; for block, a tree of so many (default 0, a chain)",
    )
    command.add_argument("--tree-depth", type=int, help="for dynamic_tree (default 5), eagle2 and eagle3 (6), levels")
    command.add_argument(
        "--tree-top-k",
        type=int,
        help="for dynamic_tree (default 4), eagle2 and eagle3 (10), nodes expanded in a level; for block, tokens of each place (default 4)",
    )
    command.add_argument(
        "--tree-temperature", type=float, help="for dynamic_tree, eagle2 and eagle3, at which nodes are ranked; lower is deeper (default 1)"
    )
    command.add_argument("--exit-layer", type=int, help="for early_exit, how many layers draft (default half of them)")
    layers = dict(type=_numbers, metavar="LAYERS")
    command.add_argument("--skip-attention", **layers, help="for layer_skip, layers that draft without attention, such as 1,3")
    command.add_argument("--skip-mlp", **layers, help="for layer_skip, layers that draft without MLP (default for both: every other one)")
    command.add_argument(
        "--draft-confidence",
        type=float,
        help="for early_exit (default 0, never) and layer_skip (default 0.8): stop drafting where the likeliest token is less probable; "
        "for block (default 0), where the head is less confident",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas; none at all for an empty text."""
    try:
        return tuple(int(number) for number in text.split(",") if text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 1,3") from None


def _model_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="tiny-python", help="embedded name, directory or hub id (default tiny-python)")
    command.add_argument(
        "--draft",
        action="append",
        default=[],
        help="a smaller model, or a trained head; several for merged and cascade, the first that fits for others",
    )
    command.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="of the weights; by default the checkpoint's")


def _method_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--method",
        help=f"one of {', '.join(METHODS)}, or several as ngram,draft_model; by default draft_model if there is a draft, merged if there are several, else none",
    )
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
