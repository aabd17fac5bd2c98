"""`twinlog generate`: files for other tools, on standard output."""

from __future__ import annotations

import click

from twinlog.cli.lazy import LazyGroup

_ROOM = "twinlog.cli.generate"
_TABLE = {
    "systemd": (f"{_ROOM}.systemd", "systemd", "Print a unit file for systemd."),
    "compose": (f"{_ROOM}.compose", "compose", "Print a compose file for a cluster of containers."),
    "kubernetes": (f"{_ROOM}.kubernetes", "kubernetes", "Print manifests for Kubernetes."),
    "prometheus": (
        f"{_ROOM}.prometheus",
        "prometheus",
        "Print a scrape configuration for Prometheus.",
    ),
    "alert-rules": (f"{_ROOM}.alerts", "alert_rules", "Print alert rules for Prometheus."),
    "recording-rules": (
        f"{_ROOM}.recording",
        "recording_rules",
        "Print rules with the metric names of rocketmq-exporter.",
    ),
    "grafana-dashboard": (
        f"{_ROOM}.grafana",
        "grafana_dashboard",
        "Print a dashboard for Grafana.",
    ),
    "completion": (f"{_ROOM}.completion", "completion", "Print a completion script for a shell."),
}


@click.group(cls=LazyGroup, table=_TABLE, short_help="Files for other tools.")
def generate() -> None:
    """Print files for systemd, containers, Kubernetes, Prometheus, Grafana and shells."""
