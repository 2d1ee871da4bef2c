"""The names of other libraries: arguments of transformers and vLLM become arguments of a ``Generator``."""

from ..errors import RequestError


def from_other_libraries(setting: dict, assistant_model=None, prompt_lookup_num_tokens=None, speculative_config: dict | None = None) -> dict:
    """``setting``, the arguments of a Generator, with those of transformers and vLLM worked in. Raises RequestError."""
    given = [x is not None for x in (assistant_model, prompt_lookup_num_tokens, speculative_config)]
    if sum(given) > 1 or any(given) and (setting.get("method") or setting.get("draft") is not None):
        raise RequestError("give the method once: method and draft, assistant_model, prompt_lookup_num_tokens or speculative_config")
    if assistant_model is not None:
        return setting | {"method": "draft_model", "draft": assistant_model}
    if prompt_lookup_num_tokens is not None:
        return setting | {"method": "ngram", "num_speculative_tokens": prompt_lookup_num_tokens}
    known = ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
    unknown = sorted(set(speculative_config or ()) - set(known))
    if unknown:
        raise RequestError(f"speculative_config has {unknown[0]!r}, which specjax does not know; it takes {', '.join(known)}")
    return setting | {"draft" if name == "model" else name: value for name, value in (speculative_config or {}).items()}
