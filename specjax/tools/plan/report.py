"""A plan for people: a table, its notes, and the error of a plan that does not fit."""

import math

from rich.table import Table

from .devices import GB


def table(planned: dict) -> Table:
    """The plan of ``plan.plan``, with figures of one device."""
    grid = Table(planned["method"], f"one of {planned['device']}", box=None)
    memory = planned["memory_bytes"]

    def gigabytes(size: float) -> str:
        return f"{size / GB:.2f} GB"

    # 1. Memory, and the traffic of a round.
    rows = {"fits": f"{'yes' if planned['fits'] else 'no'}, of {planned['device_memory_bytes'] / GB:.0f} GB"}
    rows |= {f"memory, {kind}": gigabytes(size) for kind, size in memory.items()}
    if planned["offload"]:
        rows["host's memory, layers"] = gigabytes(planned["host_memory_bytes"])
        link = planned["host_link_bytes_per_second"] / GB
        rows["bytes from the host"] = f"{gigabytes(planned['bytes_from_host_per_round'])} a round, at {link:.0f} GB/s"
    for name, key in (("bytes a round", ""), ("bytes a plain token", "plain_")):
        moved = planned[f"{key}bytes_per_round"]
        least = planned[f"{key}minimum_bytes_per_round"]
        rows[name] = f"{gigabytes(moved)}, {moved / least:.2f} times the minimum"
    # 2. Experts, kernels, collectives and copies.
    if experts := planned["experts_per_layer"]:
        rows["experts that a layer reads"] = (
            f"{experts['round']:.1f} of {experts['all']} a round, {experts['plain']:.1f} a plain token"
        )
    if planned["launches_per_round"] is not None:
        rows["kernels"] = f"{planned['launches_per_round']} a round, {planned['launches_per_layer']:.1f} a layer"
    for one in planned["collectives"]:
        rows[f"{one['kind']} of {one['bytes'] / 1e3:.1f} kB"] = f"{one['count']} a round"
    rows["cache-sized copies"] = str(planned["cache_copies"])
    if planned.get("stored_weight_bytes") is not None:
        rows["checkpoint, packed weights"] = f"{planned['stored_weight_bytes'] / GB:.2f} GB in files"
    # 3. Predicted times and speeds.
    rows["predicted round"] = f"{planned['seconds_per_round'] * 1e3:.2f} ms"
    plain = planned["plain_seconds_per_token"]
    rows["predicted plain token"] = f"{plain * 1e3:.2f} ms"
    decimals = 0 if plain < 0.05 else 2
    for alpha, speed in planned["tokens_per_second"].items():
        rows[f"predicted at acceptance {alpha}"] = (
            f"{speed:.{decimals}f} tokens/s, {planned['speedup'][alpha]:.2f} times plain"
        )
    for row in rows.items():
        grid.add_row(*row)
    return grid


def notes(planned: dict) -> list[str]:
    """The acceptance from which the method pays, and the nature of the times."""
    least = planned["break_even_acceptance"]
    pays = "never pays" if least is None else f"pays from acceptance {least:.2f} on"
    subject = planned["method"]
    choice = []
    if planned["chooses_drafts"]:
        choice = [f"{subject} chooses its drafts in each round; the figures are those of its largest drafts"]
        subject = f"a round of these drafts of {subject}"
    return [
        *choice,
        f"{subject} {pays} here, by these predictions",
        "times are predicted from published figures of the device, and not measured",
    ]


def too_large(planned: dict) -> str:
    """The error of a plan that does not fit: the figure, and sizes that would fit."""
    need = planned["memory_bytes"]
    have = planned["device_memory_bytes"]
    devices = math.prod(planned["mesh"].values())
    split = need["weights"] + need["cache"]
    ways = []
    if (free := have - need["draft"] - need["temporaries"]) > 0 and not planned["offload"]:
        ways.append(f"about {math.ceil(split * devices / free)} devices")
    if need["draft"] > need["total"] / 4:
        ways.append("a smaller draft")
    if need["cache"] > need["total"] / 4:
        ways.append("a smaller batch or max-length")
    ways.append("quantised weights")
    if need["weights"] > need["total"] / 4 and not planned["offload"] and devices == 1:
        ways.append("offload")
    return (
        f"the plan does not fit: it needs {need['total'] / GB:.1f} GB a device and {planned['device']} has "
        f"{have / GB:.0f} GB; use {' or '.join(ways)}"
    )
