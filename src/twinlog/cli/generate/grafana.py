"""`twinlog generate grafana-dashboard`: a dashboard whose first row is replication."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_SELECT = '{cluster=~"$cluster"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: queries with their legends."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    text: str = ""


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{_SELECT}[$__rate_interval]))"


def _top(name: str, by: str) -> str:
    return f"topk(10, sum by ({by}) ({name}{_SELECT}))"


def _quantile(name: str) -> str:
    buckets = f"sum by (node_id, broker_id, le) (rate({name}_bucket{_SELECT}[$__rate_interval]))"
    return f"histogram_quantile(0.99, {buckets})"


_NODE = "{{node_id}}:{{broker_id}}"

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Replication", (
        Panel("Healthy", ((f"twinlog_healthy{_SELECT}", _NODE),),
              text="1 when a server finds no problem with itself."),
        Panel("Slaves in sync", ((f"twinlog_replicas_in_sync{_SELECT}", "in sync " + _NODE),
                                 (f"twinlog_replicas_needed{_SELECT}", "needed " + _NODE))),
        Panel("Lag in bytes", ((f"twinlog_replica_lag_bytes{_SELECT}", "{{replica}}"),), "bytes"),
        Panel("Lag in seconds", ((f"twinlog_replica_lag_seconds{_SELECT}", "{{replica}}"),), "s"),
        Panel("Age of the last acknowledgement",
              ((f"twinlog_replica_ack_age_seconds{_SELECT}", "{{replica}}"),), "s"),
        Panel("What is wrong", ((f"twinlog_health_finding{_SELECT}", "{{code}} " + _NODE),)),
    )),
    ("Marks of the log", (
        Panel("Behind the end of the log", (
            (f"rocketmq_storage_flush_behind_bytes{_SELECT}", "not flushed " + _NODE),
            (f"rocketmq_storage_dispatch_behind_bytes{_SELECT}", "not dispatched " + _NODE),
        ), "bytes"),
        Panel("Not confirmed", ((
            'twinlog_log_offset_bytes{cluster=~"$cluster", mark="appended"} - ignoring(mark) '
            'twinlog_log_offset_bytes{cluster=~"$cluster", mark="confirmed"}', _NODE),), "bytes"),
        Panel("Metadata behind", ((f"twinlog_metadata_behind_records{_SELECT}", _NODE),)),
    )),
    ("Traffic", (
        Panel("Messages in per second", ((_rate("rocketmq_messages_in_total", "node_id"),
                                          "{{node_id}}"),), "ops"),
        Panel("Messages out per second", ((_rate("rocketmq_messages_out_total", "node_id"),
                                           "{{node_id}}"),), "ops"),
        Panel("Bytes in and out per second", (
            (_rate("rocketmq_throughput_in_total", "node_id"), "in {{node_id}}"),
            (_rate("rocketmq_throughput_out_total", "node_id"), "out {{node_id}}")), "Bps"),
        Panel("Busiest topics", (("topk(10, " + _rate("rocketmq_messages_in_total", "topic") + ")",
                                  "{{topic}}"),), "ops"),
        Panel("Backlog of groups", ((_top("rocketmq_consumer_lag_messages",
                                          "consumer_group, topic"),
                                     "{{consumer_group}} {{topic}}"),)),
        Panel("Age of the backlog", ((_top("rocketmq_consumer_lag_latency",
                                           "consumer_group, topic"),
                                      "{{consumer_group}} {{topic}}"),), "ms"),
        Panel("In the hands of consumers", ((_top("rocketmq_consumer_inflight_messages",
                                                  "consumer_group, topic"),
                                             "{{consumer_group}} {{topic}}"),)),
        Panel("Ready and handed to nobody", ((_top("rocketmq_consumer_ready_messages",
                                                   "consumer_group, topic"),
                                              "{{consumer_group}} {{topic}}"),)),
        Panel("Age of what is ready", ((_top("rocketmq_consumer_queueing_latency",
                                             "consumer_group, topic"),
                                        "{{consumer_group}} {{topic}}"),), "ms"),
    )),
    ("Latency and refusals", (
        Panel("Put, 99th percentile", ((_quantile("twinlog_put_seconds"), _NODE),), "s"),
        Panel("Sync of the log, 99th percentile", ((_quantile("twinlog_fsync_seconds"), _NODE),),
              "s"),
        Panel("Pause of the loop", ((f"twinlog_loop_lag_max_seconds{_SELECT}", _NODE),), "s"),
        Panel("Sends that are not safe", ((_rate("twinlog_puts_not_ok_total", "status"),
                                           "{{status}}"),), "ops"),
        Panel("Refused requests", ((_rate("twinlog_requests_refused_total",
                                          "request_code, reason"),
                                    "{{request_code}} {{reason}}"),), "ops"),
        Panel("Contained errors", ((_rate("twinlog_contained_errors_total", "what"), "{{what}}"),),
              "ops"),
    )),
    ("Disk and process", (
        Panel("Disk used", ((f"twinlog_disk_used_ratio{_SELECT}", "{{directory}} " + _NODE),
                            (f"twinlog_disk_refuse_ratio{_SELECT}", "limit " + _NODE)),
              "percentunit"),
        Panel("Memory", (('process_resident_memory_bytes{job="twinlog"}', "{{instance}}"),),
              "bytes"),
        Panel("CPU", (('rate(process_cpu_seconds_total{job="twinlog"}[$__rate_interval])',
                       "{{instance}}"),)),
        Panel("Connections", ((f"sum by (node_id, port) (twinlog_connections{_SELECT})",
                               "{{node_id}} {{port}}"),)),
    )),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(_row(title, len(panels) + 1, y))
        y += 1
        for index, panel in enumerate(row):
            x, down = index * _WIDTH % _COLUMNS, index * _WIDTH // _COLUMNS
            panels.append(_panel(panel, len(panels) + 1, x, y + down * _HEIGHT))
        y += _HEIGHT * -(-len(row) * _WIDTH // _COLUMNS)
    return {
        "title": "twinlog",
        "uid": "twinlog",
        "tags": ["twinlog", "rocketmq"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _cluster()]},
        "panels": panels,
    }


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": y}
    return {"type": "row", "title": title, "id": number, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "id": number,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"expr": expression, "legendFormat": legend, "refId": chr(ord("A") + index)}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}


def _cluster() -> dict[str, Any]:
    return {
        "name": "cluster",
        "type": "query",
        "label": "Cluster",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": "label_values(twinlog_broker_role, cluster)",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }


@click.command(
    "grafana-dashboard", epilog="Example: twinlog generate grafana-dashboard > twinlog.json"
)
def grafana_dashboard() -> None:
    """Print a dashboard for Grafana: replication first, then traffic, latency, disks."""
    click.echo(json.dumps(dashboard(), indent=2))
