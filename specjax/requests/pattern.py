"""Patterns: expressions over characters, as trees of four kinds of nodes.

Regular expressions and choices become such trees. ``automaton`` compiles a tree.
"""

import dataclasses
import re
import warnings
from re import _constants as op  # pyright: ignore
from re import _parser  # pyright: ignore

from ..core.checks import check_text, shorten
from ..errors import RequestError
from .characters import Ranges, find_members, outside_surrogates
from .limits import check_limit


@dataclasses.dataclass(frozen=True)
class Character:
    """Any one character of a set."""

    ranges: Ranges


@dataclasses.dataclass(frozen=True)
class Sequence:
    """Parts one after another."""

    parts: tuple = ()


@dataclasses.dataclass(frozen=True)
class Either:
    """One of several alternatives. Without alternatives it matches no text."""

    parts: tuple = ()


@dataclasses.dataclass(frozen=True)
class Repeat:
    """A part ``least`` to ``most`` times; ``most`` is None where there is no bound."""

    part: "Pattern"
    least: int
    most: int | None


Pattern = Character | Sequence | Either | Repeat


def literal(text: str) -> Sequence:
    """The pattern of one text."""
    return Sequence(tuple(Character(((ord(c), ord(c)),)) for c in text))


def spell(pattern: Pattern) -> str:
    """The pattern as a regular expression in the syntax of Rust's ``regex``."""
    if isinstance(pattern, Character):
        return f"[{''.join(map(_spell_range, outside_surrogates(pattern.ranges)))}]"
    if isinstance(pattern, Repeat):
        return f"(?:{spell(pattern.part)}){{{pattern.least},{'' if pattern.most is None else pattern.most}}}"
    return f"(?:{('' if isinstance(pattern, Sequence) else '|').join(map(spell, pattern.parts))})"


def _spell_range(bounds: tuple[int, int]) -> str:
    return "-".join(f"\\x{{{code:x}}}" for code in bounds)


def read_regex(regex: str, name: str) -> Pattern:
    """The tree of a regular expression in the syntax of Python's ``re``, for full matches.

    ``^`` may stand at the beginning and ``$`` at the end. Raises RequestError, which begins with
    ``name``, for an expression that cannot be read, is too long, or uses look-around, back
    references or other parts that an automaton cannot express.
    """
    check_limit(len(regex), "LONGEST_PATTERN", f"{name}: its length of {len(regex):,} characters", "shorten it")
    check_text(regex, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of sets whose meaning may change.
            tree = _parser.parse(regex)
        return _Reader(name).read(tree, tree.state.flags, True, True)
    except (re.error, OverflowError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{name} cannot be read: {error}; mend its syntax") from None
    except RecursionError:
        raise RequestError(f"{name} cannot be read: it nests too deeply; use fewer parentheses") from None


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads the tree of Python's own parser, so that an expression has the meaning of ``re``."""

    name: str

    def read(self, items, flags: int, starts: bool, ends: bool) -> Sequence:
        """The pattern of some items of the tree.

        Args:
          items: the nodes of Python's parser.
          flags: the flags of ``re`` that hold for them.
          starts, ends: whether the items begin and end the whole expression.
        """
        items = list(items)
        while starts and items and items[0] in ((op.AT, op.AT_BEGINNING), (op.AT, op.AT_BEGINNING_STRING)):
            items = items[1:]
        while ends and items and items[-1] in ((op.AT, op.AT_END), (op.AT, op.AT_END_STRING)):
            items = items[:-1]
        last = len(items) - 1
        return Sequence(
            tuple(
                self._one(item[0], item[1], flags, starts and i == 0, ends and i == last)
                for i, item in enumerate(items)
            )
        )

    def _one(self, kind, value, flags: int, starts: bool, ends: bool) -> Pattern:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return Character(_members(kind, value, flags))
        if kind is op.BRANCH:
            return Either(tuple(self.read(items, flags, starts, ends) for items in value[1]))
        if kind is op.SUBPATTERN:
            _, on, off, items = value
            return self.read(items, (flags | on) & ~off, starts, ends)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, items = value
            return Repeat(self.read(items, flags, False, False), least, None if most is op.MAXREPEAT else most)
        raise RequestError(
            f"{self.name} cannot be read: {_UNSUPPORTED.get(kind, str(kind).lower())} is not supported; leave it out"
        )


_UNSUPPORTED = {
    op.AT: "an anchor inside the expression",
    op.ASSERT: "look-around",
    op.ASSERT_NOT: "look-around",
    op.GROUPREF: "a back reference",
    op.GROUPREF_EXISTS: "a back reference",
    op.POSSESSIVE_REPEAT: "a possessive repetition",
    op.ATOMIC_GROUP: "an atomic group",
}
_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_WORD: r"\W",
}


def _members(kind, value, flags: int) -> Ranges:
    """The characters of one node of Python's parser."""
    if kind is op.LITERAL and not flags & re.IGNORECASE:
        return ((value, value),)
    spelled = "." if kind is op.ANY else f"[{_spell(value if kind is op.IN else [(kind, value)])}]"
    return find_members(spelled, flags & (re.IGNORECASE | re.DOTALL | re.ASCII))


def _spell(items) -> str:
    """The inside of a set in brackets."""
    code = lambda c: f"\\U{c:08x}"
    spelled = []
    for kind, value in items:
        if kind is op.NEGATE:
            spelled.append("^")
        elif kind is op.NOT_LITERAL:
            spelled.append("^" + code(value))
        elif kind is op.RANGE:
            spelled.append(f"{code(value[0])}-{code(value[1])}")
        else:
            spelled.append(_CATEGORIES[value] if kind is op.CATEGORY else code(value))
    return "".join(spelled)


def name_regex(regex: str) -> str:
    """The name of a regular expression in messages."""
    return f"regex {shorten(regex)}"
