"""Options of ``config.json`` that no list of specjax names.

An option changes the maths only if the code of the family reads it. Transformers' configuration
class has a field for each option that its model reads. An option with a field is refused, and an
option without one is ignored with a warning.
"""

import inspect
import warnings
from collections.abc import Collection

from ..errors import ConfigError, SpecjaxWarning
from .json_fields import show
from .schemas import HARMLESS

NEUTRAL: tuple = (None, False, [], {})
"""The values with which an option is off."""


def check_options(raw: dict, known: Collection[str], where: str) -> None:
    """Raises ConfigError for an option in ``raw`` that is set, and neither known nor harmless."""
    if unlisted := _unlisted(raw, known):
        raise _refusal(unlisted[0], raw, where)


def ignore_or_refuse(model_type: str, raw: dict, known: Collection[str], where: str, harmless: frozenset[str]) -> None:
    """Warns of the options in ``raw`` that neither specjax nor transformers knows.

    Raises ConfigError for an option that is set, that transformers knows for this ``model_type``,
    and that is neither known here nor harmless.
    """
    unlisted = _unlisted(raw, known, harmless)
    if not unlisted:
        return
    read = fields_in_transformers(model_type)
    for name in unlisted:
        if name in read:
            raise _refusal(name, raw, where)
    names = ", ".join(show(name) for name in unlisted[:5]) + ", ..." * (len(unlisted) > 5)
    options = "option" if len(unlisted) == 1 else "options"
    warnings.warn(f"{where}: ignores {options} {names}, which transformers does not read", SpecjaxWarning, stacklevel=2)


def fields_in_transformers(model_type: str) -> frozenset[str]:
    """The options of transformers' configuration of this ``model_type``, with their other names.

    None for a family that transformers lacks.
    """
    # Here, because it takes a second.
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return frozenset()
    configuration = CONFIG_MAPPING[model_type]
    return frozenset(inspect.signature(configuration).parameters) | frozenset(configuration.attribute_map)


def _unlisted(raw: dict, known: Collection[str], harmless: frozenset[str] = frozenset()) -> list[str]:
    return [
        name
        for name, value in raw.items()
        if name not in known and name not in HARMLESS | harmless and value not in NEUTRAL
    ]


def _refusal(name: str, raw: dict, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: option {show(name)} = {show(raw[name])} is not supported; remove it if it does not change the model"
    )
