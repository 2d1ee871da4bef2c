"""The report of an evaluation: an object for JSON, and a table of it."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from rich.table import Column, Table
from rich.text import Text

from ....checkpoints.load import LanguageModel
from ....core.settings import own_settings
from ....loop import decode
from ....loop.chooser import at_largest_shape
from ....parallel import use_mesh
from ....text.generator import Generator
from ..products import Work, of_round
from ..report import markdown_table, with_interval
from ..suites import Question, Suite
from .figures import figures_by_task
from .run import Run

_COLUMNS = ("task", "method", "speed-up", "tokens/s", "tokens/call", "accepted %", "differ", "score")

_NARROW = _COLUMNS[:4]
"""The columns that a narrow terminal does not wrap."""

LEGEND = (
    "speed-up over plain decoding of the same prompts with its 95 % interval; tokens per second of decoding; new "
    "tokens per target call (mean acceptance length); drafts that are accepted, and in parentheses the share of the "
    "text's information -log p that they have; turns that differ from plain greedy decoding, and those of them that "
    "part at a tie; the suite's score"
)


def make_report(run: Run, suite: Suite, questions: Sequence[Question], further: Mapping[str, dict]) -> dict:
    """The report of a run, an object for JSON.

    - ``settings``: see ``run.Run``; with the source and the licence of the questions.
    - ``left_out``: the ids of the questions that are too long for the model's context.
    - ``methods``: the drafts of each method, their parameters, the work of its round, and further
      figures.
    - ``tasks``: the figures by task and method, see ``figures.figures``.

    Args:
      questions: the questions that were asked.
      further: the figures of ``more_measurements.measure_further``, by method.
    """
    answered = [question for question in questions if question.id not in run.left_out]
    tasks = figures_by_task(run.answers, answered, suite.scores)
    whole = list(tasks.values())[-1]
    prompt = run.prompts[0]
    methods = {
        name: _describe(each, prompt, whole[name], further.get(name, {})) for name, each in run.generators.items()
    }
    return {"settings": run.settings, "left_out": run.left_out, "methods": methods, "tasks": tasks}


def table(report: dict) -> Table:
    """A rich table with a row for each task and method."""
    grid = Table(*(Column(name, no_wrap=name in _NARROW) for name in _COLUMNS))
    grid.caption = f"{LEGEND}\n{caption(report)}"
    grid.caption_justify = "left"
    last = list(report["methods"])[-1]
    for task, method, *cells in _rows(report):
        grid.add_row(*map(Text, (task if method == "none" else "", method, *cells)), end_section=method == last)
    return grid


def markdown(report: dict) -> str:
    """The same table in Markdown, with its source, its licence and the notes."""
    settings = report["settings"]
    grid = markdown_table(_COLUMNS, _rows(report))
    source = f"Questions: {settings['source']}; licence: {settings['licence']}."
    return "\n\n".join([grid, f"{caption(report)}.", source, *(f"{note}." for note in notes(report))])


def caption(report: dict) -> str:
    """One line: suite, models, options and machine."""
    settings = report["settings"]
    machine = settings["machine"]
    models = " with ".join([settings["model"], *settings["drafts"]])
    return (
        f"{settings['suite']}: {settings['form']}; {settings['questions']} questions, at most "
        f"{settings['max_new_tokens']} new tokens, batch 1, temperature {settings['temperature']:g}; {models}, "
        f"{machine['dtype']}; {machine['devices']} x {machine['device']}, {machine['cpu']}, {machine['cores']} cores; "
        f"jax {machine['jax']}"
    )


def notes(report: dict) -> list[str]:
    """Warnings of the evaluation."""
    lines = []
    whole = list(report["tasks"].values())[-1]
    left_out = report["left_out"]
    if left_out:
        ids = ", ".join(map(str, left_out[:5])) + ", ..." * (len(left_out) > 5)
        count = "1 question is" if len(left_out) == 1 else f"{len(left_out)} questions are"
        lines.append(f"{count} left out, too long for the model's context: {ids}")
    for method, figures in whole.items():
        if method != "none" and figures["speedup"] < 1:
            lines.append(f"{method} is slower than plain decoding here ({figures['speedup']:.2f}x)")
        if not all(difference["tie"] for difference in figures["differences"]):
            lines.append(
                f"{method} differs from plain decoding by more than rounding; "
                "if it also does with dtype float32, please report it"
            )
    if report["settings"]["temperature"]:
        lines.append(
            "sampled texts are equal in law, not word for word; --samples tests it, and so does specjax verify"
        )
    return lines


def _describe(generator: Generator, prompt: list[int], figures: dict, further: dict) -> dict:
    """The drafts of a method, its work, and its further figures."""
    modules = [each.model if isinstance(each, LanguageModel) else each.module for each in generator.drafts]
    work = work_of_round(generator, prompt)
    return {
        "drafts": [draft.name for draft in generator.drafts],
        "draft_parameters": sum(leaf.size for leaf in jax.tree.leaves(modules)),
        "operations_per_round": work.operations,
        "bytes_per_round": work.bytes,
        "operations_per_token": work.operations / figures["mean_acceptance_length"],
        "bytes_per_token": work.bytes / figures["mean_acceptance_length"],
        **further,
        **_parts_of_round(figures["round"][0], further),
    }


def _parts_of_round(seconds: float, further: dict) -> dict[str, float]:
    """The seconds of a round that drafting and verification take, where the share was measured."""
    if "drafting_share" not in further:
        return {}
    share = further["drafting_share"][1]
    return {"drafting_seconds": share * seconds, "verification_seconds": (1 - share) * seconds}


def _rows(report: dict) -> list[list[str]]:
    """The cells of each task and method."""
    return [
        [task, *_cells(method, figures)]
        for task, methods in report["tasks"].items()
        for method, figures in methods.items()
    ]


def _cells(method: str, figures: dict) -> list[str]:
    ties = sum(difference["tie"] for difference in figures["differences"])
    information = figures["acceptance_by_information"]
    accepted = f"{100 * figures['draft_acceptance_rate']:.0f}"
    return [
        method,
        with_interval(figures["speedup"], figures["speedup_interval"], ".2f"),
        f"{figures['tokens_per_second']:.1f}",
        f"{figures['mean_acceptance_length']:.2f}",
        accepted if information is None else f"{accepted} ({100 * information:.0f})",
        f"{len(figures['differences'])} ({ties} ties)" if figures["differences"] else "none",
        ", ".join(f"{name} {value:.2f}" for name, value in (figures["score"] or {}).items()) or "-",
    ]


def work_of_round(generator: Generator, prompt: list[int]) -> Work:
    """The least work of a round at batch 1, as if one device did all of it, with full caches.

    It follows from the traced program, see ``tools.evaluate.products``. The caches have the
    generator's capacity. Of a method that chooses a shape for each round it is a round with the
    largest drafts.

    ``prompt``: token ids of a prompt, for the state of a batch.
    """
    session = generator.session
    state = generator.start([prompt], max_new_tokens=1).state
    run = partial(decode.run, drafter=at_largest_shape(session.drafter), rule=session.rule)
    on_device = jax.tree.map(jnp.asarray, session.parameters)  # the times of method auto lie on the host
    weights = (generator.target.model, on_device)
    until = jnp.int32(1)
    with use_mesh(session.mesh), own_settings():
        return of_round(jax.jit(run).trace(*weights, state, until), weights, (state, until), 1)
