"""Text in, text out in one call, with a generator that the target keeps for the next call."""

from collections.abc import Sequence
from typing import Any, Unpack

from ..checkpoints.load import LanguageModel
from ..core.checks import plain
from ..drafters import all_options
from ..requests.other_libraries import from_other_libraries
from .drafts import as_list
from .generator import Generator, Prompt, as_model
from .keywords import GenerateKeywords

_SETTINGS: dict[str, Any] = {"rule": "auto", "capacity": None, "processors": (), "feedback_log": None}
"""The arguments of ``Generator`` that ``generate`` shares, with their defaults."""


def generate(
    target: LanguageModel | str,
    prompts: Prompt | Sequence[Prompt] | None = None,
    method: str | Sequence[str] | None = None,
    draft=None,
    *,
    messages=None,
    assistant_model=None,
    prompt_lookup_num_tokens: int | None = None,
    speculative_config: dict | None = None,
    **options: Unpack[GenerateKeywords],
) -> Any:
    """The Result of one prompt, or of one conversation, or a list of them, see ``Generator``.

    ``options`` are options of the method and of a request, and ``rule``, ``capacity``,
    ``processors`` and ``feedback_log``, which ``Generator`` describes with the other arguments.
    ``assistant_model`` and ``prompt_lookup_num_tokens`` have the meaning they have in transformers.
    ``speculative_config`` is vLLM's, with the keys ``method``, ``model``,
    ``num_speculative_tokens``, ``prompt_lookup_max`` and ``prompt_lookup_min``.
    """
    target = as_model(target)
    setting = {name: options.pop(name) for name in all_options() if name in options}
    setting |= {"method": tuple(method) if isinstance(method, list) else method, "draft": draft}
    setting |= {name: options.pop(name, default) for name, default in _SETTINGS.items()}
    setting = from_other_libraries(setting, assistant_model, prompt_lookup_num_tokens, speculative_config)
    setting |= {"draft": as_list(setting["draft"]), "processors": tuple(setting["processors"])}
    key = tuple((name, plain(value)) for name, value in setting.items())
    if key not in target.generators:
        target.generators[key] = Generator(target, **setting)
    return target.generators[key](prompts, messages=messages, **options)
