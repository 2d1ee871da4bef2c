"""The report: its object, its table, and its page."""

import io
import json
import re
import sys
from html.parser import HTMLParser

import jax
import pytest
from rich.console import Console

from specjax import Generator
from specjax.tools.evaluate.benchmark import html, report
from specjax.tools.evaluate.benchmark.plots import draw_plots
from specjax.tools.evaluate.benchmark.report import work_of_round
from specjax.tools.evaluate.suites import find_suite

from .conftest import QUESTIONS


@pytest.fixture(scope="module")
def made_report(finished):
    return report.make_report(finished[0], find_suite("spec-bench"), QUESTIONS, {})


class Tags(HTMLParser):
    """Notes open tags and everything that a page loads."""

    VOID = {"meta", "br", "path", "use", "rect"}

    def __init__(self, text: str):
        super().__init__()
        self.open, self.loads, self.counts = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [
            value for name, value in attributes if name in ("src", "href", "xlink:href") and value[:1] != "#"
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_report_is_json_and_names_its_sources(made_report):
    found = json.loads(json.dumps(made_report, allow_nan=False))
    assert found["settings"]["licence"].startswith("Apache-2.0")
    assert "plain text, without a chat template" in found["settings"]["form"]
    assert list(found["tasks"]) == ["mt_bench", "qa", "rag", "all"]
    assert found["methods"]["none"]["draft_parameters"] == 0


def test_draft_parameters_and_work_of_a_plain_round(made_report, made, model):
    """A plain round multiplies each matrix with one vector, and attends to a full cache."""
    cost, config = made_report["methods"], model.config
    draft = made["draft_model"].draft.model
    assert cost["draft_model"]["draft_parameters"] == sum(leaf.size for leaf in jax.tree.leaves(draft))
    leaves = jax.tree.leaves(model.model)
    matrices = sum(leaf.size for leaf in leaves if leaf.ndim == 2)
    embeddings = config.vocab_size * config.hidden_size * (not config.tie_embeddings)
    attention = 4 * config.num_heads * config.head_dim * config.num_layers
    plain = cost["none"]["operations_per_round"]
    capacity = made["none"].start("A", max_new_tokens=1).state.tokens.shape[1]
    assert plain == 2 * (matrices - embeddings) + attention * (capacity + 1)
    assert cost["none"]["operations_per_token"] == plain


def test_auto_without_a_draft_reads_as_much_as_plain_decoding(model):
    """Its times lie on the host, not on a device."""
    works = [work_of_round(Generator(model, method, capacity=64), [1, 2]) for method in ("none", "auto")]
    assert works[1].bytes == pytest.approx(works[0].bytes, rel=0.01)  # and its table of times


def test_the_table_has_a_row_for_each_task_and_method(made_report):
    console = Console(width=120, file=io.StringIO())
    console.print(report.table(made_report))
    shown = console.file.getvalue()
    for words in ("mt_bench", "qa", "rag", "all", "draft_model", "target with draft", "speed-up"):
        assert words in shown
    assert shown.count("draft_model") == 4


def test_the_page_is_whole_and_loads_nothing(made_report):
    text = html.page(made_report)
    page = Tags(text)
    assert page.open == [] and page.loads == []
    assert page.counts["svg"] == 3
    assert page.counts["table"] == 5  # three tasks, all, the methods
    for words in ("draft_model", "mt_bench", "Apache-2.0", "Acceptance by position"):
        assert words in text
    assert html.page(made_report) == text  # the plots have no date and no random names


def test_further_figures_are_in_report_and_page(finished):
    points = [
        dict(batch=1, tokens_per_second=50.0, token_seconds=0.02),
        dict(batch=4, tokens_per_second=160.0, token_seconds=0.025),
    ]
    further = {"draft_model": dict(drafting_share=(0.2, 0.25, 0.3), batches=points, law_p_value=0.625)}
    found = report.make_report(finished[0], find_suite("spec-bench"), QUESTIONS, further)
    cost, seconds = found["methods"]["draft_model"], found["tasks"]["all"]["draft_model"]["round"][0]
    assert cost["drafting_seconds"] == pytest.approx(seconds / 4)
    assert cost["verification_seconds"] == pytest.approx(3 * seconds / 4)
    text = html.page(found)
    assert Tags(text).counts["svg"] == 4
    for words in ("4: 160 / 25.00", "0.625", "Throughput against latency, by batch"):
        assert words in text


def test_names_are_escaped(made_report):
    settings = made_report["settings"] | {"model": "<b>&"}
    text = html.page(made_report | {"settings": settings})
    assert "<b>" not in text and "&lt;b&gt;&amp;" in text


def test_without_matplotlib_the_page_names_the_extra(made_report, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw_plots(made_report) == {}
    assert "pip install 'specjax[plot]'" in html.page(made_report)


def test_bars_have_the_height_of_the_speed_up(made_report):
    """One bar a task, and the line at 1; the tallest bar belongs to the largest speed-up."""
    from matplotlib.figure import Figure

    from specjax.tools.evaluate.benchmark import plots

    axes = Figure().subplots()
    plots._draw_speedups(axes, made_report)
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [figures["draft_model"]["speedup"] for figures in made_report["tasks"].values()]


def test_notes_name_what_was_left_out_and_what_differs(made_report):
    whole = made_report["tasks"]["all"]["draft_model"]
    slow = whole | {"speedup": 0.5, "differences": [{"prompt": 1, "token": 2, "margin": 3.0, "tie": False}]}
    changed = made_report | {"left_out": list(range(7)), "tasks": {"all": {"draft_model": slow}}}
    changed["settings"] = made_report["settings"] | {"temperature": 1.0}
    found = " ".join(report.notes(changed))
    for words in (
        "7 questions are left out",
        "0, 1, 2, 3, 4, ...",
        "slower than plain",
        "more than rounding",
        "equal in law",
    ):
        assert re.search(re.escape(words), found)
