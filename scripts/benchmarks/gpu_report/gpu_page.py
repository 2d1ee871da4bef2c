"""The page of GPUs: a column for each model and context."""

from page import RANDOM, Result, measured, section
from plan import ATTENDED, GRAPHS, NODES, Plan

from specjax.tools.evaluate.report import markdown_table

ATTENTIONS = {
    "specjax": "specjax, rotation and the nodes among themselves included",
    "products": "the same without its kernel",
    "xla": "`dot_product_attention`, XLA",
    "cudnn": "the same, cuDNN",
}
TITLE = "GPU report"
QUESTION = """How close does decoding come to the limits of a GPU?

Random weights, bfloat16, batch 1. The number beside a model is the capacity of its cache, which is nearly full. Cells are
medians, with the least and the greatest of the repeats. Ratios come from alternating runs."""
FOLLOWS = """
- Plain decoding reads weights and cache at most of the bandwidth of the memory, so the size of the model gives its speed.
- A round of 16 nodes takes about the time of one token: draft up to 16 tokens or nodes freely, more only if they are
  accepted often.
"""
VARIANTS = ("no kernels", *GRAPHS)
"""Other forms of the plain loop: XLA's products in place of the kernels, and other CUDA graphs."""


def rows() -> list[tuple[str, str, str]]:
    """The key, the title and the goal of each line of the table."""
    lines = [
        ("plain/ms", "plain decoding, ms per token", ""),
        ("plain/gb_s", "weights and cache read, GB/s", ""),
        ("plain/share", "share of the copy bandwidth", "at least 0.90"),
    ]
    goal = {16: "at most 1.05"}
    lines += [(f"forward/{n}", f"forward of {n} nodes, times that of one", goal.get(n, "")) for n in NODES]
    lines += [(f"round/{n}", f"whole round of {n} nodes, times that of one", goal.get(n, "")) for n in NODES]
    lines += [
        ("dispatch", "round in the loop, times a single `step` called from Python", ""),
        ("copies", "cache-sized copies in the compiled loop", "0"),
    ]
    lines += [
        (f"attention{n}/{name}", f"attention of {n} to the past, µs a layer: {text}", "")
        for n in ATTENDED
        for name, text in ATTENTIONS.items()
    ]
    lines += [(f"variant/{name}", f"plain round with {name}, times that of the first line", "") for name in VARIANTS]
    lines += [
        ("int8", "plain decoding with int8 weights, times as fast", "at least 1.70"),
        ("int4", "plain decoding with int4 weights, times as fast", "at least 2.60"),
        ("offload/gb_s", "layers in the host's memory: bytes over the link, GB/s", ""),
        ("offload/16", "the same: whole round of 16 nodes, times that of one", "at most 1.05"),
    ]
    lines += [
        ("launches/round", "kernels launched in a plain round", ""),
        ("launches/layer1", "kernels launched in a layer, plain", "at most 12"),
        ("launches/layer16", "kernels launched in a layer, 16 nodes", "at most 13"),
        ("kernel", "largest difference of the attention kernel from products, random bfloat16", "at most 0.02"),
    ]
    return lines + [
        ("compile/cold", "compiling the loop, s", ""),
        ("compile/warm", "the same from the persistent cache, s", ""),
    ]


def column(name: str, context: int) -> str:
    return f"{name}, {context}"


def blank(plan: Plan) -> dict:
    columns = {column(name, context): {} for name in plan.models for context in plan.contexts}
    return {"conditions": measured(note=RANDOM), "columns": columns}


def write_page(result: Result, reports: list[dict]) -> None:
    sections = [section(report["conditions"], text(report), report["conditions"]["device"]) for report in reports]
    result.write(TITLE, QUESTION, sections, FOLLOWS)


def text(report: dict) -> str:
    """The report's table: medians, with the least and the greatest of the repeats."""
    columns = report["columns"]
    cells = [[title, goal, *(cell(figures, key) for figures in columns.values())] for key, title, goal in rows()]
    bandwidth = f"Copy bandwidth, read and written: {cell(report, 'copy_gb_s')} GB/s."
    return f"{bandwidth}\n\n{markdown_table(['', 'goal', *columns], cells)}"


def cell(figures: dict, key: str) -> str:
    found = figures.get(key) or figures.get(key.split("/")[0]) or figures.get("all")
    if found is None:
        return "not measured"
    if "error" in found:
        return found["error"].replace("|", "\\|")
    low, median, high = (f"{found[name]:.4g}" for name in ("low", "median", "high"))
    return median if low == high else f"{median} ({low} to {high})"
