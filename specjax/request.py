"""Checks of what users ask for, made before anything is loaded or compiled, and the names that other libraries taught them."""

import numpy as np

from .errors import RequestError

LARGEST = 2**31 - 1


def per_row(name: str, value, batch: int, dtype, least=0, most=LARGEST, above: bool = False) -> np.ndarray:
    """``value``, one number or a list with one for each row, as an array [batch]. Raises RequestError that names it.

    Args:
      least, most: bounds, themselves allowed; ``above`` excludes the lower one.
    """
    array = np.asarray(value)
    whole = np.issubdtype(dtype, np.integer)
    if array.dtype.kind not in ("iu" if whole else "iuf") or not np.all((array > least if above else array >= least) & (array <= most)):
        bounds = f"{'above' if above else 'at least'} {least}" + (f" and at most {most}" if most < LARGEST else "")
        raise RequestError(f"{name} must be a {'whole ' * whole}number, {bounds}, not {value}")
    if array.shape not in ((), (batch,)):
        raise RequestError(f"{name} has {array.size} values for {batch} prompts; give one value, or one for each prompt")
    return np.broadcast_to(array, batch).astype(dtype)


def whole(name: str, value, least: int = 1) -> int:
    """``value`` as a whole number of at least ``least``. Raises RequestError that names it."""
    if np.ndim(value):
        raise RequestError(f"{name} must be one whole number, not {value}")
    return int(per_row(name, value, 1, np.int64, least)[0])


def translated(setting: dict, assistant_model=None, prompt_lookup_num_tokens=None, speculative_config: dict | None = None) -> dict:
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
