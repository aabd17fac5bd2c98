"""`twinlog`: one command, its subcommands imported only when they are called.

A subcommand is a row in `COMMANDS`: where it lives and one line of help. Listing them imports
nothing, so that `twinlog topic list` does not pay for the broker.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from twinlog import __version__
from twinlog.cli.lazy import LazyGroup, run_group

# name -> (module, attribute, one line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("twinlog.cli.local", "up", "Start a local cluster in the background."),
    "down": ("twinlog.cli.local", "down", "Stop the local cluster."),
    "restart": ("twinlog.cli.local", "restart", "Restart one process of the local cluster."),
    "ps": ("twinlog.cli.local", "ps", "Show the processes of the local cluster."),
    "logs": ("twinlog.cli.local", "logs", "Print or follow the logs of the local cluster."),
    "demo": (
        "twinlog.cli.demo.command",
        "demo",
        "Kill a master under load and count lost messages.",
    ),
    "topic": (
        "twinlog.cli.admin.topic",
        "topic",
        "List, create and change topics; send and read messages.",
    ),
    "group": (
        "twinlog.cli.admin.group",
        "group",
        "Show and change consumer groups; reset their offsets.",
    ),
    "message": ("twinlog.cli.admin.message", "message", "Find messages; send them again."),
    "dlq": ("twinlog.cli.admin.dlq", "dlq", "Look at and resend dead letters."),
    "cluster": ("twinlog.cli.admin.cluster", "cluster", "Brokers, name servers, health, clients."),
    "broker": ("twinlog.cli.admin.broker", "broker", "Run a broker, or manage running ones."),
    "namesrv": ("twinlog.cli.namesrv", "namesrv", "Run a name server in the foreground."),
    "controller": ("twinlog.cli.admin.controller", "controller", "Run a controller, or ask one."),
    "console": ("twinlog.cli.console", "console", "Run the web console in the foreground."),
    "ha": ("twinlog.cli.admin.ha", "ha", "Replication: its health, switches and elections."),
    "events": ("twinlog.cli.admin.events", "events", "Show what changed in the cluster, and why."),
    "top": ("twinlog.cli.admin.top", "top", "Show the cluster on one screen, live."),
    "acl": ("twinlog.cli.admin.acl", "acl", "Manage accounts and their permissions."),
    "check": (
        "twinlog.cli.check",
        "check",
        "Print one line and an exit code, for Nagios and similar tools.",
    ),
    "context": (
        "twinlog.cli.admin.context",
        "context",
        "Give names to clusters and their credentials.",
    ),
    "config": ("twinlog.cli.config", "config", "Check, print and explain configuration files."),
    "doctor": ("twinlog.cli.doctor", "doctor", "Find problems and say what to change."),
    "debug": (
        "twinlog.cli.debug",
        "debug",
        "Collect status, logs and metrics for a support request.",
    ),
    "generate": (
        "twinlog.cli.generate",
        "generate",
        "Print files for systemd, containers, Prometheus and shells.",
    ),
    "store": ("twinlog.cli.store", "store", "Check the files of a store; give up lost records."),
    "backup": ("twinlog.cli.backup", "backup", "Back up a broker's store, and restore it."),
    "migrate": ("twinlog.cli.admin.migrate", "migrate", "Move a cluster from Apache, or back."),
    "bench": ("twinlog.cli.bench", "bench", "Measure sending and consuming."),
    "version": ("twinlog.cli.version", "version", "Print the version."),
    "spark": ("twinlog.cli.spark", "spark", "Archive, audit and query topics with Spark."),
}

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings=_SETTINGS,
    epilog="First steps: twinlog up; twinlog topic create orders; twinlog ha status",
)
@click.version_option(__version__, prog_name="twinlog")
@click.option("-n", "--namesrv", help="Name servers, ADDR;ADDR, for the command that follows.")
@click.pass_context
def cli(context: click.Context, namesrv: str | None) -> None:
    """A message broker that speaks RocketMQ: servers, a local cluster, administration."""
    if namesrv is not None:
        context.obj = {"namesrv": namesrv}


def main(args: list[str] | None = None, prog_name: str = "twinlog") -> NoReturn:
    """The console script."""
    if "_TWINLOG_COMPLETE" in os.environ:
        from twinlog.cli.completion import register

        register()
    sys.exit(run_group(cli, sys.argv[1:] if args is None else args, prog_name))


def mqnamesrv() -> NoReturn:
    """`mqnamesrv`, as Apache users type it."""
    from twinlog.cli.namesrv import namesrv

    _run_server("mqnamesrv", namesrv)


def mqcontroller() -> NoReturn:
    """`mqcontroller`, as Apache users type it."""
    from twinlog.cli.admin.controller import controller

    _run_server("mqcontroller", controller)


def mqbroker() -> NoReturn:
    """`mqbroker`, as Apache users type it: the server alone, without the verbs of ours."""
    from twinlog.cli.admin.broker import broker

    _run_server("mqbroker", broker)


def _run_server(name: str, like: click.Command) -> NoReturn:
    text = (like.help or "").split("\n\n")[0]
    command = click.Command(
        name, params=like.params, callback=like.callback, help=text, context_settings=_SETTINGS
    )
    sys.exit(run_group(command, sys.argv[1:], name))


if __name__ == "__main__":
    main()
