"""The dashboard of Grafana, against the names that the server exports."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.serving import wait_until

from specjax.serve.metrics import Metrics

DASHBOARD = json.loads((Path(__file__).parents[2] / "scripts/launch/grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def exported(app) -> set[str]:
    """The names of all samples after a request, which gives those with further labels."""
    metrics = Metrics(app.state.engine, "bytes")
    handle = app.state.engine.submit("hi", max_new_tokens=2)
    metrics.follow(handle, 0.0)
    handle.result()
    metrics._accepted_at(0)  # of a method that drafts
    wait_until(lambda: not app.state.engine.has_work)
    return {one.name for family in text_string_to_metric_families(metrics.page().decode()) for one in family.samples}


def test_every_panel_asks_for_figures_that_the_server_has(exported):
    names = {name for expression in EXPRESSIONS for name in re.findall(r"vllm:\w+", expression)}
    assert len(names) > 20 and names <= exported, names - exported
    assert all('{model_name=~"$model"}' in expression for expression in EXPRESSIONS)


def test_every_figure_of_the_server_is_on_the_dashboard(exported):
    text = "".join(EXPRESSIONS)
    stem = lambda name: re.sub(r"_(bucket|count|sum|created)$", "", name)
    assert {stem(name) for name in exported if stem(name) not in text and not name.endswith("_created")} == set()


def test_panels_have_places_of_their_own():
    places = [tuple(panel["gridPos"][axis] for axis in "xy") for panel in DASHBOARD["panels"]]
    assert len({*places}) == len(places) == len({panel["id"] for panel in DASHBOARD["panels"]})
