"""`twinlog`: one command, its subcommands imported only when they are called.

A subcommand is a row in `COMMANDS`: where it lives and one line of help. Listing them imports
nothing, so that `twinlog topic list` does not pay for the broker.
"""

from __future__ import annotations

import importlib
import sys

import click

# name -> (module, attribute, one line)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "namesrv": ("twinlog.cli.namesrv", "namesrv", "Run a name server in the foreground."),
    "broker": ("twinlog.cli.broker", "broker", "Run a broker in the foreground."),
    "demo": ("twinlog.cli.demo.command", "demo", "Kill a master under load; see what is lost."),
    "spark": ("twinlog.cli.spark", "spark", "Archive, audit and query topics with Spark."),
    "up": ("twinlog.cli.local", "up", "Start a local cluster in the background."),
    "down": ("twinlog.cli.local", "down", "Stop the local cluster."),
    "ps": ("twinlog.cli.local", "ps", "Show the processes of the local cluster."),
    "logs": ("twinlog.cli.local", "logs", "Print or follow the logs of the local cluster."),
}


class LazyGroup(click.Group):
    """Finds its commands in a table of names."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        module, attribute, _ = entry
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twinlog")
def main() -> None:
    """A message broker that speaks RocketMQ: servers, a local cluster, administration."""


def mqnamesrv() -> None:
    """`mqnamesrv`, as Apache users type it."""
    main(["namesrv", *sys.argv[1:]], prog_name="mqnamesrv")


def mqbroker() -> None:
    """`mqbroker`, as Apache users type it."""
    main(["broker", *sys.argv[1:]], prog_name="mqbroker")


if __name__ == "__main__":
    main()
