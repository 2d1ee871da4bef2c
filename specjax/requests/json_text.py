"""Patterns of JSON texts.

The texts have at most one space between two symbols. Their strings have no escapes by code point.
"""

import json

from .characters import Ranges, complement, intersect
from .pattern import Character, Either, Pattern, Repeat, Sequence, literal, map_characters, optional, read_regex

_PLAIN: Ranges = complement(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x9F)))
"""Characters that stand for themselves in a string. Control characters are left out."""

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}

_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2})"
_LONG = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY = f"(?:{_LONG}|{_SHORT}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_NAME = "[a-z0-9]+(?:-[a-z0-9]+)*"
FORMATS = {
    "date": f"{_YEAR}-{_DAY}",
    "time": _TIME,
    "date-time": f"{_YEAR}-{_DAY}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[a-z0-9_+-]+(?:\.[a-z0-9_+-]+)*@{_NAME}(?:\.{_NAME})+",
    "uri": rf"https?://{_NAME}(?:\.{_NAME})*(?::[0-9]{{1,4}})?(?:/[A-Za-z0-9._~-]*)*(?:\?[A-Za-z0-9._~=&-]*)?",
}
"""Regular expressions for formats. They leave out some valid texts: no date is 29 February."""


def _in_string(character: Character) -> Pattern:
    """The spelling of a set of characters in a string, with short escapes."""
    has = lambda c: any(low <= ord(c) <= high for low, high in character.ranges)
    escaped = [literal("\\" + letter) for c, letter in _ESCAPES.items() if has(c)]
    plain = intersect(character.ranges, _PLAIN)
    return Either((*([Character(plain)] if plain else []), *escaped))


_QUOTE = literal('"')
_SPACE = optional(literal(" "))
_COMMA = literal(",")
_ANY_LETTER = _in_string(Character(complement(())))


def string_of(content: Pattern) -> Pattern:
    """A string whose text, without quotes and escapes, matches ``content``."""
    return Sequence((_QUOTE, map_characters(content, _in_string), _QUOTE))


def string(least: int = 0, most: int | None = None) -> Pattern:
    """Any string of ``least`` to ``most`` characters."""
    return Sequence((_QUOTE, Repeat(_ANY_LETTER, least, most), _QUOTE))


INTEGER = read_regex("-?(?:0|[1-9][0-9]*)", "integer")
NUMBER = read_regex(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-][0-9]+)?", "number")
BOOLEAN = Either((literal("true"), literal("false")))
NULL = literal("null")
EMPTY_ARRAY = Sequence((literal("["), _SPACE, literal("]")))
EMPTY_OBJECT = Sequence((literal("{"), _SPACE, literal("}")))


def constant(value) -> Pattern:
    """The JSON text of one value. Raises TypeError or ValueError where JSON cannot spell it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()  # fails for half of a surrogate pair
    return literal(text)


def anything(depth: int) -> Pattern:
    """Any value of at most ``depth`` levels of arrays and objects."""
    scalars = (string(), NUMBER, BOOLEAN, NULL)
    if depth == 0:
        return Either(scalars)
    inner = anything(depth - 1)
    return Either((*scalars, array_of(inner), object_of(inner)))


def array_of(item: Pattern, least: int = 0, most: int | None = None) -> Pattern:
    """An array of ``least`` to ``most`` items."""
    return Sequence(
        (literal("["), _SPACE, _separate(item, Sequence((_COMMA, _SPACE)), least, most), _SPACE, literal("]"))
    )


def tuple_of(items: list[Pattern]) -> Pattern:
    """An array of exactly these items."""
    after = [piece for item in items for piece in (_COMMA, _SPACE, item)]
    return Sequence((literal("["), _SPACE, *after[2:], _SPACE, literal("]")))


def object_of(value: Pattern, least: int = 0, most: int | None = None) -> Pattern:
    """An object of ``least`` to ``most`` members with any names."""
    member = Sequence((string(), _SPACE, literal(":"), _SPACE, value))
    comma = Sequence((_SPACE, _COMMA, _SPACE))
    return Sequence((literal("{"), _SPACE, _separate(member, comma, least, most), _SPACE, literal("}")))


def object_in_order(members: list[tuple[str, Pattern, bool]]) -> Pattern:
    """An object with these members in this order.

    A member consists of a name, the pattern of its value, and whether it is required. Raises
    ValueError for a name that JSON cannot spell.
    """
    comma = Sequence((_SPACE, _COMMA))
    parts = [Sequence((_SPACE, constant(name), _SPACE, literal(":"), _SPACE, value)) for name, value, _ in members]
    needed = [i for i, (_, _, required) in enumerate(members) if required]
    before = [optional(Sequence((part, comma))) for part in parts]
    after = [
        Sequence((comma, part)) if i in set(needed) else optional(Sequence((comma, part)))
        for i, part in enumerate(parts)
    ]
    if needed:  # A comma follows each member before the first required one, and precedes each one after it.
        inside = Sequence((*before[: needed[0]], parts[needed[0]], *after[needed[0] + 1 :]))
    else:
        inside = optional(Either(tuple(Sequence((part, *after[i + 1 :])) for i, part in enumerate(parts))))
    return Sequence((literal("{"), inside, _SPACE, literal("}")))


def _separate(part: Pattern, comma: Pattern, least: int, most: int | None) -> Pattern:
    """``least`` to ``most`` times ``part``, separated by ``comma``."""
    more = Repeat(Sequence((comma, part)), max(least - 1, 0), None if most is None else most - 1)
    return Sequence((part, more)) if least else optional(Sequence((part, more)))
