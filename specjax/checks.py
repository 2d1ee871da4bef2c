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
