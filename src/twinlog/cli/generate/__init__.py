"""`twinlog generate`: files for other tools, on standard output."""

from __future__ import annotations

import click

from twinlog.cli.lazy import LazyGroup

_ROOM = "twinlog.cli.generate"
_TABLE = {
    "systemd": (f"{_ROOM}.systemd", "systemd", "A unit for systemd."),
    "compose": (f"{_ROOM}.compose", "compose", "A cluster of containers for compose."),
    "kubernetes": (f"{_ROOM}.kubernetes", "kubernetes", "Manifests for Kubernetes."),
    "prometheus": (f"{_ROOM}.prometheus", "prometheus", "What Prometheus scrapes."),
    "alert-rules": (f"{_ROOM}.alerts", "alert_rules", "Alert rules for Prometheus."),
    "recording-rules": (
        f"{_ROOM}.recording",
        "recording_rules",
        "Names of the exporter for RocketMQ 4.x, for Prometheus.",
    ),
    "grafana-dashboard": (f"{_ROOM}.grafana", "grafana_dashboard", "A dashboard for Grafana."),
    "completion": (f"{_ROOM}.completion", "completion", "Completion for a shell."),
}


@click.group(cls=LazyGroup, table=_TABLE, short_help="Files for other tools.")
def generate() -> None:
    """Print files for systemd, containers, Kubernetes, Prometheus, Grafana and shells."""
