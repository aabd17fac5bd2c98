"""What is generated for Prometheus and Grafana names only metrics and labels that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.command_line import twinlog
from twinlog.cli.generate import alerts, grafana, recording
from twinlog.observe.families import FAMILIES, Kind

NAME = re.compile(r"\b(?:twinlog|rocketmq|process)_[a-z0-9_]+\b|\bup\b")
PROCESS = {
    "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds",
    "process_max_fds", "process_start_time_seconds", "process_virtual_memory_bytes",
}  # fmt: skip
COMMON = {"cluster", "node_type", "node_id", "broker_id", "instance", "job", "le"}


def exposed() -> dict[str, set[str]]:
    """Names of series and their labels."""
    found: dict[str, set[str]] = {name: set() for name in PROCESS} | {"up": set()}
    for family in FAMILIES:
        names = [family.exposed_name]
        if family.kind is Kind.HISTOGRAM:
            names = [f"{family.name}{suffix}" for suffix in ("_bucket", "_sum", "_count")]
        found |= {name: set(family.labels) for name in names}
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts.ALERTS:
        yield alert.name, alert.expression
    yield from recording.RECORDS.items()
    for panel in grafana.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_expressions_are_about_metrics_that_exist(name: str, expression: str) -> None:
    known = exposed()
    outside_of_text = re.sub(r'"[^"]*"', '""', expression)
    used = set(NAME.findall(outside_of_text))
    assert used, expression
    assert used <= known.keys()
    labels = set().union(*(known[metric] for metric in used)) | COMMON
    for chosen in re.findall(r"\{([^}]*)\}", expression):
        assert {part.split("=")[0].strip(" !~") for part in chosen.split(",")} <= labels
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        assert {label.strip() for label in grouped.split(",")} <= labels


def test_legends_and_annotations_name_labels_that_exist() -> None:
    known = exposed()
    texts = [
        (a.expression, f"{a.summary} {a.next_step}", r"\$labels\.(\w+)") for a in alerts.ALERTS
    ]
    for panel in grafana.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            texts.append((target["expr"], target["legendFormat"], r"\{\{(\w+)\}\}"))
    for expression, text, form in texts:
        used = set(NAME.findall(re.sub(r'"[^"]*"', '""', expression)))
        labels = set().union(*(known[metric] for metric in used)) | COMMON
        assert set(re.findall(form, text)) <= labels, text


def test_the_first_row_is_replication_and_nothing_overlaps() -> None:
    panels = grafana.dashboard()["panels"]
    assert (panels[0]["type"], panels[0]["title"]) == ("row", "Replication")
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own


def test_every_alert_has_a_next_step() -> None:
    """Ten ways in which a pair becomes unsafe, and two of groups with a controller."""
    assert len(alerts.ALERTS) == 13
    rules = yaml.safe_load(twinlog("generate", "alert-rules", "--for", "1s").ok().out)
    for rule in rules["groups"][0]["rules"]:
        assert rule["for"] == "1s"
        assert "WINDOW" not in rule["expr"]
        assert rule["annotations"]["description"].endswith(".")


def test_each_alert_is_made_to_fire_with_a_real_prometheus() -> None:
    """`make services` runs those tests; each waits for its alert, and for its end."""
    tests = Path(__file__).parents[2] / "services"
    fired = {
        name
        for file in tests.glob("test_prometheus*.py")
        for name in re.findall(r'wait_firing\("(\w+)"\)', file.read_text(encoding="utf-8"))
    }
    assert fired == {alert.name for alert in alerts.ALERTS}


def test_prometheus_scrapes_what_is_named() -> None:
    words = ("--target", "a:1", "--target", "b:2", "--interval", "5s")
    config = yaml.safe_load(twinlog("generate", "prometheus", *words).ok().out)
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["a:1", "b:2"]}]
    assert config["global"]["scrape_interval"] == "5s"
