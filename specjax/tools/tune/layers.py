"""Finds the layers of a target that draft best: an early exit, or sub-layers to skip.

A setting is ranked by its expected speed-up, see ``layer_cost.speedup``. The speed-up follows from
the acceptance rate of the setting's tokens on given texts, and from the times of the setting and of
the whole target on this device.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from ...checkpoints.load import LanguageModel
from ...core.checks import per_row, whole
from ...errors import RequestError
from ...models.decoder import Skip
from ...text.cache_dtype import cache_dtype
from ...text.generator import Prompt
from ...text.machine import machine
from .layer_agreement import Rate, agreement_on
from .layer_cost import Costs, measure_costs, speedup


@dataclasses.dataclass(frozen=True)
class Setting:
    """A part of the target that may draft, and its expected speed.

    Attributes:
      skip: the sub-layers that the part skips.
      alpha: the acceptance rate of its tokens (alpha of Leviathan et al. 2023).
      cost: the seconds of its step over those of the target's step (their c).
      drafted: the draft length with the highest speed-up.
      speedup: the expected speed-up over plain decoding.
    """

    skip: Skip
    alpha: float
    cost: float
    drafted: int
    speedup: float


def tune_layers(
    target: LanguageModel,
    texts: Sequence[Prompt],
    *,
    temperature: float = 0.0,
    longest: int = 8,
    budget: int | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> dict:
    """Measures the target and looks for the best early exit and the best set of sub-layers to skip.

    Args:
      target: the model to decode with.
      texts: the texts on which acceptance is measured. Each is a string or token ids, and is cut at
        512 tokens.
      temperature: the temperature of later requests.
      longest: the length of the longest draft to consider.
      budget: the number of sets of sub-layers to try, at least 4 for each layer; by default 8 for
        each layer.
      progress: called with the number of evaluated settings and of all settings.

    Returns an object for JSON: "machine", "settings", "seconds"; "early_exit" and "layer_skip", the
    settings of each, best first; "flags", the flags of the best setting, None where no setting
    beats plain decoding; and "note".

    Raises RequestError for bad input.
    """
    # 1. Checks.
    target.config.refuse_encoder("tune")
    L = target.config.num_layers
    if L < 2:
        raise RequestError("the target has one layer, and no part of it can draft; use another method")
    layers = target.config.layers
    bound = any(layer.mixer.source is not None or layer.mixer.absent or layer.mlp.absent for layer in layers)
    if target.config.normed == "stream" or bound:
        raise RequestError(
            f"the layers of {target.name!r} norm the whole stream, read one another's keys or have one sub-layer only, "
            "so their parts cannot be left out one by one; use another method"
        )
    per_row("temperature", temperature, 1, np.float32)
    whole("longest", longest)
    budget = 8 * L if budget is None else whole("budget", budget, 4 * L)
    # 2. The acceptance of a part, which counts evaluated parts.
    agreement = agreement_on(target, texts, temperature)
    steps = iter(range(1, L + budget))

    def rate(skip: Skip) -> float:
        alpha = agreement(skip)
        progress(next(steps), L - 1 + budget)
        return alpha

    # 3. The times of parts, and the searches.
    length = min(128, target.config.context - longest - 1)
    costs = measure_costs(target.model, longest + 1, length, cache_dtype(target))
    exits = find_exit(rate, costs, L, longest)
    skips = find_skip_set(rate, costs, L, longest, budget)
    return report(target, len(texts), temperature, costs, exits, skips)


def find_exit(rate: Rate, costs: Costs, num_layers: int, longest: int) -> list[Setting]:
    """Every early exit, the best first. Of equally good exits the earlier comes first.

    ``rate`` returns the alpha of a part.
    """
    above = (tuple(range(exit_layer, num_layers)) for exit_layer in range(1, num_layers))
    return sorted(
        (_evaluate(Skip(layers, layers), rate, costs, num_layers, longest) for layers in above),
        key=lambda s: -s.speedup,
    )


def find_skip_set(rate: Rate, costs: Costs, num_layers: int, longest: int, budget: int) -> list[Setting]:
    """The tried sets of sub-layers, the best first.

    The search first skips each sub-layer alone. Then it grows a set in the order of these results.
    Then it adds or removes one or two random sub-layers of the best set so far, until it has tried
    ``budget`` sets.
    """
    parts = [(kind, layer) for layer in range(num_layers) for kind in ("attention", "mlp")]
    settings: dict[frozenset, Setting] = {}

    def try_set(chosen) -> None:
        chosen = frozenset(chosen)
        if 0 < len(chosen) < len(parts) and chosen not in settings and len(settings) < budget:
            attention, mlp = (tuple(sorted(layer for k, layer in chosen if k == kind)) for kind in ("attention", "mlp"))
            settings[chosen] = _evaluate(Skip(attention, mlp), rate, costs, num_layers, longest)

    for part in parts:
        try_set([part])
    order = sorted(parts, key=lambda part: -settings[frozenset([part])].speedup)
    for size in range(2, len(parts)):
        try_set(order[:size])
    rng = np.random.default_rng(0)
    for _ in range(4 * budget):  # Some changes give a set that was tried before.
        best = max(settings, key=lambda chosen: settings[chosen].speedup)
        changed = rng.choice(len(parts), size=rng.integers(1, 3), replace=False)
        try_set(best ^ {parts[i] for i in changed})
    return sorted(settings.values(), key=lambda s: -s.speedup)


def report(
    target: LanguageModel, texts: int, temperature: float, costs: Costs, exits: list[Setting], skips: list[Setting]
) -> dict:
    """The object that ``tune_layers`` returns."""
    L = target.config.num_layers
    kinds = {"early_exit": exits, "layer_skip": skips}
    method, best = max(((kind, settings[0]) for kind, settings in kinds.items()), key=lambda pair: pair[1].speedup)
    wins = best.speedup > 1
    note = f"{method} is expected to be {best.speedup:.2f}x as fast as plain decoding"
    if not wins:
        note = (
            "no early exit and no set of skipped sub-layers beats plain decoding here; "
            f"the best, {method}, is expected at {best.speedup:.2f}x"
        )
    return {
        "machine": machine(target),
        "settings": {"model": target.name, "layers": L, "texts": texts, "temperature": temperature},
        "seconds": {"target": costs(1, L, L), "one_node": _named(costs, 0), "further_node": _named(costs, 1)},
        **{kind: [_record(kind, setting) for setting in settings] for kind, settings in kinds.items()},
        "flags": _flags(method, best) if wins else None,
        "note": note,
    }


def toml(report: dict) -> str:
    """The best setting as a TOML file: the method, its options, and its figures as comments."""
    best_of_each = {kind: report[kind][0] for kind in ("early_exit", "layer_skip")}
    method, best = max(best_of_each.items(), key=lambda pair: pair[1]["speedup"])
    settings = report["settings"]
    about = [
        report["note"],
        f"{settings['model']}, {settings['layers']} layers, temperature {settings['temperature']}",
        best["flags"],
    ]
    words = best["flags"].split()[2:]  # after --method
    options = {flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2])}
    lines = [
        f"{name} = [{value.replace(',', ', ')}]" if name.startswith("skip_") else f"{name} = {value}"
        for name, value in options.items()
    ]
    return "".join(f"# {line}\n" for line in about) + "\n".join([f'method = "{method}"', *lines]) + "\n"


def table(report: dict, rows: int = 5) -> Table:
    """The best few settings of each method."""
    grid = Table("method", "setting", "acceptance rate", "cost of a draft step", "tokens drafted", "expected speed-up")
    for kind in ("early_exit", "layer_skip"):
        for record in report[kind][:rows]:
            figures = (
                f"{record['alpha']:.3f}",
                f"{record['cost']:.3f}",
                str(record["num_speculative_tokens"]),
                f"{record['speedup']:.2f}",
            )
            grid.add_row(kind, record["setting"], *figures)
    return grid


def _evaluate(skip: Skip, rate: Rate, costs: Costs, L: int, longest: int) -> Setting:
    alpha = rate(skip)
    gains = [speedup(alpha, drafted, skip, costs, L) for drafted in range(1, longest + 1)]
    cost = costs(1, L - len(skip.attention), L - len(skip.mlp)) / costs(1, L, L)
    return Setting(skip, alpha, cost, int(np.argmax(gains)) + 1, max(gains))


def _named(costs: Costs, i: int) -> dict:
    return {"base": costs.base[i], "attention": costs.attention[i], "mlp": costs.mlp[i]}


def _flags(method: str, setting: Setting) -> str:
    skip = setting.skip
    flags = [f"--method {method}"]
    if method == "early_exit":
        flags += [f"--exit-layer {skip.mlp[0]}"]
    else:
        skipped = {"attention": skip.attention, "mlp": skip.mlp}
        flags += [f"--skip-{name} {','.join(map(str, numbers))}" for name, numbers in skipped.items() if numbers]
    # The expected speed-up is that of full chains, so the draft must not stop early.
    flags += [f"--num-speculative-tokens {setting.drafted}", "--draft-confidence 0"]
    return " ".join(flags)


def _record(method: str, setting: Setting) -> dict:
    flags = _flags(method, setting)
    return {
        "setting": " ".join(flags.split()[2:-4]),
        "alpha": setting.alpha,
        "cost": setting.cost,
        "num_speculative_tokens": setting.drafted,
        "speedup": setting.speedup,
        "flags": flags,
    }
