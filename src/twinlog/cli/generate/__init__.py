"""`twinlog generate`: files for other tools, on standard output."""

from __future__ import annotations

import click

from twinlog.cli.lazy import LazyGroup

_ROOM = "twinlog.cli.generate"
_TABLE = {
    "systemd": (f"{_ROOM}.systemd", "systemd", "A unit for systemd."),
    "compose": (f"{_ROOM}.compose", "compose", "A cluster of containers for compose."),
    "kubernetes": (f"{_ROOM}.kubernetes", "kubernetes", "Manifests for Kubernetes."),
    "completion": (f"{_ROOM}.completion", "completion", "Completion for a shell."),
}


@click.group(cls=LazyGroup, table=_TABLE, short_help="Files for systemd, containers and shells.")
def generate() -> None:
    """Files for systemd, containers, Kubernetes and shells, on standard output."""
