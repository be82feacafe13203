"""The dashboard and the alerts in `deploy/`: every series that they use is in /metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import yaml
from arenite_server import REPOSITORY, Server
from authority import Authority
from tenant import TenantsServer

OURS = re.compile(r"\b(?:arenite|process)_[a-z0-9_]+")
DASHBOARD = REPOSITORY / "deploy/grafana/arenite.json"
RULES = REPOSITORY / "deploy/prometheus/arenite.rules.yml"


@pytest.fixture
def families(own_server: Callable[..., Server], authority: Authority) -> dict[str, str]:
    """The names of /metrics and their kinds, of a server with TLS and tenants, which add some. A histogram has four names."""
    server = own_server(args=("--tls-cert", str(authority.cert), "--tls-key", str(authority.key), "--tenants"))
    server.scheme = "https"
    server.start()
    key = TenantsServer(server).operator.key
    text = httpx.get(f"{server.url}/metrics", timeout=60, headers={"x-api-key": key}).raise_for_status().text
    declared = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    parts = {f"{name}{part}": "counter" for name, kind in declared.items() if kind == "histogram" for part in ("_bucket", "_sum", "_count")}
    return declared | parts


def expressions(value: Any) -> list[str]:
    """Every query in a dashboard or in rules, wherever it is."""
    if isinstance(value, dict):
        found = [text for key, text in value.items() if key in ("expr", "query") and isinstance(text, str)]
        return found + [text for inner in value.values() for text in expressions(inner)]
    return [text for inner in value for text in expressions(inner)] if isinstance(value, list) else []


def test_every_series_of_the_dashboard_and_the_alerts_exists(families: dict[str, str]) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for file, content in ((DASHBOARD, json.loads(DASHBOARD.read_text())), (RULES, rules)):
        queries = expressions(content)
        used = {name for query in queries for name in OURS.findall(query)}
        assert len(used) > 10, (file, used)
        assert not used - set(families), (file, used - set(families))
        for query in queries:
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}"), query
            # Only counters can be compared over time, and only buckets have quantiles.
            for name in re.findall(r"(?:rate|increase)\((\w+)", query):
                assert families[name] == "counter", (name, query)
            for quantile in re.findall(r"histogram_quantile\(.*", query):
                assert "_bucket" in quantile and "le" in quantile, query


def test_the_dashboard_shows_all_that_metrics_have(families: dict[str, str]) -> None:
    """A new series is either shown or left out on purpose."""
    queries = expressions(json.loads(DASHBOARD.read_text()))
    used = {name for query in queries for name in OURS.findall(query)}
    left_out = {
        "arenite_tls_certificate_outdated",
        "arenite_http_request_seconds_sum",
        "arenite_http_request_seconds_count",
        "arenite_webhook_deliveries_waiting",
    }
    histograms = {"arenite_http_request_seconds"}
    assert set(families) - used == left_out | histograms


def test_alerts_say_what_to_do_and_panels_do_not_overlap() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule
    taken: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
