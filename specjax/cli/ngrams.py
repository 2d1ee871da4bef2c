"""``specjax ngrams``: counts the n-grams of text files, for ``--ngram-statistics``."""

import argparse
import sys

from ..errors import RequestError
from .arguments import add_revision_argument, check_output, replace_file
from .parser import integer, name, path
from .terminal import status

_CONTEXTS = 1 << 17


def add_command(commands) -> None:
    about = "count the n-grams of text files, for --ngram-statistics"
    command = commands.add_parser("ngrams", help=about, description=about)
    command.set_defaults(handler=run)
    add = command.add_argument
    add(
        "--model",
        type=name,
        default="tiny-python",
        help="the model whose tokens are counted: an embedded name, a directory or a hub id (default tiny-python)",
    )
    add_revision_argument(command)
    add("--data", type=path, nargs="+", required=True, metavar="FILE", help="text files to count in")
    add("--output", type=path, required=True, metavar="FILE", help="the file to write, such as text.npz")
    add(
        "--contexts",
        type=integer(1),
        default=_CONTEXTS,
        metavar="N",
        help=f"keep the N most frequent contexts of each length (default {_CONTEXTS})",
    )


def run(args: argparse.Namespace) -> None:
    """Counts the n-grams of text files and writes them to a file."""
    from ..checkpoints.load import load_tokenizer
    from ..drafters.parts import statistics
    from ..training.data import read_texts

    check_output(args.output)
    try:
        texts = read_texts(args.data)
    except OSError as error:
        raise RequestError(f"--data {error.filename}: cannot be read ({error.strerror}); name text files") from None
    with status("counting"):
        tokenizer, config = load_tokenizer(args.model, args.revision)
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        counted = statistics.count_ngrams(ids, config.vocab_size, args.contexts)
        with replace_file(args.output) as new:
            statistics.save(counted, config.vocab_size, new)
    known = " and ".join(f"{leaf.shape[0]} of {leaf.shape[1]}" for leaf in counted.contexts)
    print(f"{sum(map(len, ids))} tokens; contexts {known} tokens", file=sys.stderr)
