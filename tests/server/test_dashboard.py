"""What a server exposes against what the dashboard asks for."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

BOARD = Path(__file__).resolve().parents[2] / "docs" / "grafana-dashboard.json"
WORDS = frozenset(
    ["sum", "max", "min", "avg", "by", "le", "rate", "histogram_quantile", "label_values"]
)


@pytest.fixture(scope="module")
def exposed(server):
    """Label names of every sample name, after a request of each kind."""
    assert server.complete().status_code == 200
    found = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def queries():
    board = json.loads(BOARD.read_text())
    found = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    found += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    return found


@pytest.mark.parametrize("query", queries())
def test_every_query_of_the_dashboard_has_series(exposed, query):
    text = query.replace("$__rate_interval", "5m")
    selectors = re.findall(r"([a-z_:][a-z0-9_:]+)(\{[^}]*\})?(\[5m\])?", _without_by(text))
    names = [s for s in selectors if s[0] not in WORDS and (":" in s[0] or "_" in s[0])]
    names = [s for s in names if s[0] != "model_name"]
    assert names, query
    for name, matchers, window in names:
        assert name in exposed, f"{name} is not exposed"
        labels = set(exposed[name][0])
        for label in re.findall(r"(\w+)=~?\"", matchers):
            assert label in labels, f"{name} has no label {label}"
        cumulative = name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert bool(window) == cumulative, f"{name}: a rate is for counters, and they need one"
        for label in re.findall(r"by \(([^)]*)\)", text):
            missing = {part.strip() for part in label.split(",")} - labels
            assert not missing, f"{name} has no label {missing}"


def _without_by(text):
    """A query without its groupings and label values, which are no names of series."""
    return re.sub(r"by \([^)]*\)", "", text)


def test_panels_do_not_overlap():
    seen = set()
    for panel in json.loads(BOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & seen
        seen |= cells
