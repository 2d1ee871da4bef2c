"""Limits on the work that one request may ask for. An error names the limit and its value.

The limit on trees, ``MOST_TREE_NODES``, is in ``tree``, and those on files are in ``read_files``.
"""

from ..errors import RequestError


class TooLarge(RequestError):
    """A limit is exceeded."""


MOST_PROMPTS = 4096
"""Prompts of one call."""

MOST_SAMPLES = 1024
"""Samples of one prompt: the option ``n``."""

MOST_ROWS = 16384
"""Rows of one batch: prompts times samples."""

MOST_ROUNDS = 64
"""Rounds of one step of an engine."""

MOST_MESSAGES = 4096
"""Turns of one conversation."""

MOST_STOP_STRINGS = 64
"""Stop strings of one prompt."""

MOST_STOP_BYTES = 1024
"""Bytes of all stop strings of one prompt, in UTF-8."""

MOST_CHOICES = 10_000
"""Texts of the option ``choices``."""

LONGEST_PATTERN = 100_000
"""Characters of a regular expression or of all ``choices`` together."""

LONGEST_GRAMMAR = 1_000_000
"""Characters of a JSON schema as text, or of a grammar."""

MOST_GRAMMAR_PARTS = 500_000
"""Symbols in the rules of a grammar."""

MOST_LEXER_STATES = 50_000
"""States of a grammar's lexer, of about 2 KiB each."""

MOST_PIECES = 200_000
"""Nodes of an expression (characters, alternatives, loops) with repetitions written out."""

MOST_STATES = 2**16
"""States of the automaton of one expression."""

MOST_STEPS = 2**20
"""Steps that make an expression's automaton deterministic: about one second."""

MOST_TOKEN_STEPS = 2**26
"""States of one automaton times the tokens that it tells apart by their bytes."""

MOST_CONSTRAINTS = 256
"""Different constraints of one batch, and different sets of stop strings."""

MOST_TABLE_STATES = 4095
"""States of an automaton over tokens. An expression that needs more is followed on the host."""

MOST_TABLE_CLASSES = 1024
"""Classes of tokens of an automaton over tokens. The host follows an expression that needs more."""

MOST_CELLS = 2**25
"""Cells (states times classes of tokens) of the table of a batch's automata: 128 MiB."""


def check_limit(count: int, limit: str, what: str, mend: str) -> None:
    """Raises TooLarge where ``count`` is above a limit.

    Args:
      limit: the name of a constant of this module.
      what: the beginning of the message, such as "regex '(a|b)*': its length".
      mend: the end of the message, such as "shorten it".
    """
    most = globals()[limit]
    if count > most:
        raise TooLarge(f"{what} is above the limit of {most:,} ({limit}); {mend}")
