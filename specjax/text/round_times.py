"""The measured times of method "auto": a file that names machine, versions and models.

``specjax tune --auto`` writes it, see ``tools.tune.auto``. ``Generator`` reads it.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checkpoints.load import LanguageModel
from ..core.read_files import read_json
from ..drafters import Auto
from ..drafters.auto.arms import ARMS, TREE, Arm
from ..drafters.auto.constants import CONSTANTS
from ..drafters.auto.times import Times
from ..errors import RequestError, SpecjaxWarning
from ..parallel import mesh_of, several_hosts
from .drafts import Draft, module_of
from .machine import cache_folder, machine

_FORMAT = "specjax costs 4"


def find_costs(
    drafter: Auto, target: LanguageModel, drafts: Sequence[Draft]
) -> tuple[Auto, dict[str, Any], Path | None]:
    """The drafter with its arms for these models, its parameters, and the file of the times.

    The parameters are the "times", and the "rates" where the file has them.

    The times are those of the drafter's file, else of the file in the cache folder, else predicted.
    Several hosts must choose alike, so they read no file of a cache folder. A file of other models,
    of another mesh or machine, or of other versions is not used. A warning says so.

    Raises RequestError for a file that the user named and that cannot be read.
    """
    file = Path(drafter.costs) if drafter.costs is not None else default_file(target, drafts)
    if not drafts:
        drafter = drafter.without_model()
    if drafter.costs is not None or (file.exists() and not several_hosts()):
        record = read_costs(file)
        if not (other := describe_difference(record, target, drafts)):
            arms = tuple(Arm(**arm) for arm in record["arms"])
            times = Times.of_table(record["seconds"], record["batches"], record["contexts"], CONSTANTS.measured_rounds)
            rates = {"rates": jnp.array(record["rates"], jnp.float32)} if "rates" in record else {}
            return dataclasses.replace(drafter, arms=arms), {"times": times} | rates, file
        message = f"costs {file}: of {other}; method auto predicts its times, specjax tune --auto measures them anew"
        warnings.warn(message, SpecjaxWarning, stacklevel=3)
    if drafts and drafter.arms == ARMS and jax.default_backend() != "cpu":
        drafter = dataclasses.replace(drafter, arms=(*ARMS, TREE))
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(module_of(one))) for one in (target, *drafts)]
    return drafter, {"times": drafter.predict(sizes[-1] / sizes[0])}, None


def describe_models(target: LanguageModel, drafts: Sequence[Draft]) -> dict[str, Any]:
    """The machine, versions, mesh and models for which times hold, an object for JSON.

    The names of models are for readers. Models of as many parameters have the same times.
    """
    name = lambda one: {"name": one.name, "parameters": sum(leaf.size for leaf in jax.tree.leaves(module_of(one)))}
    mesh = mesh_of(target.model)
    return {
        "machine": machine(target),
        "mesh": {} if mesh is None else dict(mesh.shape),
        "model": name(target),
        "drafts": [name(draft) for draft in drafts],
    }


def default_file(target: LanguageModel, drafts: Sequence[Draft]) -> Path:
    """The file of these models in their dtype, on this mesh, in the cache folder of the user."""
    described = describe_models(target, drafts)
    numbers = [described["machine"][name] for name in ("dtype", "quantize")]
    sizes = [model["parameters"] for model in (described["model"], *described["drafts"])]
    parts = json.dumps([described["mesh"], sizes, numbers, _FORMAT])
    key = hashlib.sha256(parts.encode()).hexdigest()[:16]
    return cache_folder() / "costs" / f"{key}.json"


def describe_difference(record: dict, target: LanguageModel, drafts: Sequence[Draft]) -> str:
    """The difference of a file's models, mesh or machine from those at hand; "" for none."""
    here = describe_models(target, drafts)
    sizes = lambda models: [model["parameters"] for model in models]
    if sizes([record["model"]]) != sizes([here["model"]]):
        return "another model"
    if sizes(record["drafts"]) != sizes(here["drafts"]):
        return "another draft"
    if record["mesh"] != here["mesh"]:
        return "another mesh"
    differ = [name for name, value in here["machine"].items() if record["machine"].get(name) != value]
    return f"another machine or version ({', '.join(differ)})" if differ else ""


def read_costs(file: Path) -> dict[str, Any]:
    """The record in a file of costs. Raises RequestError for a file that is none."""
    record = read_json(file, f"costs {file}", mend="measure with specjax tune --auto")
    if not _is_record(record):
        raise RequestError(f"costs {file}: is no file of specjax tune --auto; measure anew with that command")
    return record


def make_record(target, drafts, arms: Sequence[Arm], batches, contexts, seconds) -> dict[str, Any]:
    """The record of measured ``seconds``, an object for JSON.

    The axes are [temperatures, batches, contexts, arms].

    The temperatures are 0 and 1.
    """
    return {
        "format": _FORMAT,
        **describe_models(target, drafts),
        "arms": [dataclasses.asdict(arm) for arm in arms],
        "batches": list(batches),
        "contexts": list(contexts),
        "seconds": np.asarray(seconds, float).tolist(),
    }


def check_writable(file: Path) -> None:
    """Raises RequestError where a file of costs cannot be written. It makes the file's folder."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise RequestError(f"costs {file}: cannot be written ({error.strerror}); name another file") from None


def write_costs(file: Path, record: dict) -> None:
    """Writes a record.

    A reader never sees half a file. Raises RequestError where it cannot be written.
    """
    check_writable(file)
    try:
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(new, file)
    except OSError as error:
        raise RequestError(f"costs {file}: cannot be written ({error.strerror}); name another file") from None


def _is_record(record) -> bool:
    """Whether ``record`` is that of a file of costs.

    Its shapes fit, its times are positive, and its rates are below 1.
    """
    try:
        seconds = np.array(record["seconds"], float)
        shaped = seconds.shape == (2, *(len(record[name]) for name in ("batches", "contexts", "arms")))
        increasing = all(list(x) == sorted(set(map(int, x))) for x in (record["batches"], record["contexts"]))
        numbers = lambda arm: (int(arm["length"]), bool(arm["model"]), int(arm["nodes"]), int(arm["top_k"]))
        arms = [Arm(*numbers(arm)) for arm in record["arms"]]
        sound = arms[0] == Arm(0) and all(arm.model or not arm.nodes for arm in arms)  # look-ups make no trees
        sound = sound and list(map(dataclasses.asdict, arms)) == record["arms"]
        positive = bool(np.all((seconds > 0) & (seconds < np.inf)))
        known = {"machine", "mesh"} <= record.keys() and isinstance(record["machine"], dict)
        known = known and all(int(model["parameters"]) > 0 for model in (record["model"], *record["drafts"]))
        rates = np.array(record.get("rates", [0, 0]), float)
        known = known and rates.shape == (2,) and bool(np.all((rates >= 0) & (rates < 1)))
        return record["format"] == _FORMAT and shaped and increasing and positive and known and sound
    except (TypeError, KeyError, ValueError, IndexError, AttributeError, OverflowError):
        return False
