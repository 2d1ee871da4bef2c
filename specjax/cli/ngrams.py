"""``specjax ngrams``: counts the n-grams of text files, for ``--ngram-statistics``."""

import argparse
import dataclasses
import sys
from pathlib import Path

from .arguments import Models
from .fields import flag, flags_of
from .output import check_output, replace_file
from .terminal import status


@dataclasses.dataclass(frozen=True)
class Ngrams:
    """The flags of the command.

    Attributes:
      data: text files to count in.
      output: the file to write, such as text.npz.
      contexts: keep the N most frequent contexts of each length.
    """

    data: tuple[Path, ...] = flag(nargs="+")
    output: Path = flag()
    contexts: int = flag(1 << 17, least=1)


FLAGS = {"options": flags_of(Models, "model", "revision") | flags_of(Ngrams)}
COMMON = ("model", "data", "output", "contexts")


def run(args: argparse.Namespace) -> None:
    """Counts the n-grams of text files and writes them to a file."""
    from ..checkpoints.load import load_tokenizer
    from ..drafters.parts import ngram_statistics
    from ..training.data import read_texts

    check_output(args)
    texts = read_texts(args.data)
    with status("counting"):
        tokenizer, config = load_tokenizer(args.model, args.revision)
        ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        counted = ngram_statistics.count_ngrams(ids, config.vocab_size, args.contexts)
        with replace_file(args.output) as new:
            ngram_statistics.save(counted, config.vocab_size, new)
    known = " and ".join(f"{leaf.shape[0]} of {leaf.shape[1]}" for leaf in counted.contexts)
    print(f"{sum(map(len, ids))} tokens; contexts {known} tokens", file=sys.stderr)
