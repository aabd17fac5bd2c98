"""`twinlog generate prometheus`: what to scrape, and which rules to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from twinlog.cli.generate.documents import dump
from twinlog.cli.generate.values import DURATION, PATH, TARGET
from twinlog.cli.local import default_directory

DEFAULT_TARGET = "127.0.0.1:5557"
RULE_FILES = ("twinlog.rules.yml", "exporter.rules.yml")


def configuration(targets: list[str], interval: str, rule_files: list[str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": rule_files,
        "scrape_configs": [{"job_name": "twinlog", "static_configs": [{"targets": targets}]}],
    }


def local_targets(directory: Path) -> list[str]:
    """The processes of a cluster that `twinlog up` started."""
    from twinlog.cli.local_cluster import load_cluster

    cluster = load_cluster(directory)
    if cluster is None:
        return []
    return [f"127.0.0.1:{node.http_port}" for node in cluster.nodes if node.http_port]


@click.command(
    epilog="Example: twinlog generate prometheus --target broker-1:5557 > prometheus.yml"
)
@click.option("--target", "targets", multiple=True, type=TARGET,
              help="HTTP address of a server; may be given several times.")  # fmt: skip
@click.option("--dir", "directory", type=click.Path(path_type=Path), default=default_directory,
              help="Without --target: the cluster of `twinlog up` in this directory.")  # fmt: skip
@click.option("--interval", type=DURATION, default="15s", show_default=True,
              help="Time between two scrapes.")  # fmt: skip
@click.option("--rules", "rule_files", multiple=True, type=PATH, default=RULE_FILES,
              show_default=True, help="Rule files, next to the configuration.")  # fmt: skip
def prometheus(
    targets: tuple[str, ...], directory: Path, interval: str, rule_files: tuple[str, ...]
) -> None:
    """Print a configuration for Prometheus: scrapes brokers, name servers and controllers."""
    found = list(targets) or local_targets(directory) or [DEFAULT_TARGET]
    click.echo(dump([configuration(found, interval, list(rule_files))]), nl=False)
