"""The most frequent tokens of a text: the draft vocabulary of a head or of a draft model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..checkpoints.load import LanguageModel
from ..core.checks import whole
from .data import standard_library
from .sources import Source, make_sources, read_documents

_EVERY = 8
"""By default the text is every eighth module of the standard library, about a megabyte."""


def frequent_tokens(target: LanguageModel, count: int, data: Sequence[str | Path | Source] = ()) -> np.ndarray:
    """The ``count`` most frequent tokens of a text, for ``restrict_draft``; int64, ascending.

    The tokens that end a text are among them.

    Args:
      data: files, directories or datasets, as for training. By default the text is code of Python's
        standard library.

    Raises RequestError for a count outside the vocabulary, and for data that cannot be read.
    """
    V = target.config.vocab_size
    count = whole("draft_vocab", count, most=V)
    sources = make_sources(data or standard_library()[::_EVERY])
    texts = [document.text for source in sources for document in read_documents(source, target.tokenizer)]
    ids = [np.array(row, np.int64) for row in target.tokenizer(texts, add_special_tokens=False)["input_ids"]]
    ends = np.repeat(target.config.eos_token_ids, sum(map(len, ids)))  # more frequent than any other token
    return most_frequent(np.concatenate([*ids, ends.astype(np.int64)]), count, V)


def most_frequent(stream: np.ndarray, count: int, vocab_size: int) -> np.ndarray:
    """The ``count`` most frequent tokens of a stream, in ascending order.

    Of equally frequent tokens the lower comes first.
    """
    counts = np.bincount(stream, minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:count])
