"""Groups of commands that are imported when they are called, and errors in one line.

Listing a group imports nothing of it. A verb that does not exist is answered with the nearest one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from twinlog.cli.exit_codes import FAILED, INTERRUPTED, USAGE, CommandError

# name -> (module, attribute, one line)
Table = Mapping[str, tuple[str, str, str]]
# What people type from habit -> the verb of ours.
ALIASES = {
    "ls": "list",
    "describe": "show",
    "status": "show",
    "info": "show",
    "rm": "delete",
    "lag": "progress",
    "topics": "topic",
    "groups": "group",
    "brokers": "broker",
    "messages": "message",
}


class LazyGroup(click.Group):
    """Finds its commands in a table of names; also knows aliases and near misses."""

    def __init__(self, *args: Any, table: Table | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.table: Table = table or {}

    def list_commands(self, context: click.Context) -> list[str]:
        return [*self.table, *super().list_commands(context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        for candidate in (name, ALIASES.get(name, name)):
            found = super().get_command(context, candidate)
            if found is not None:
                return found
            if candidate in self.table:
                module, attribute, _ = self.table[candidate]
                command = getattr(importlib.import_module(module), attribute)
                assert isinstance(command, click.Command)
                return command
        return None

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(context, name)
        if command is None and not context.resilient_parsing:
            if name.startswith("-"):
                return super().resolve_command(context, args)
            known = self.list_commands(context)
            text = f"{context.command_path}: no command {name!r}"
            raise CommandError(text, USAGE, hint=nearest(name, known) or f"see: {_help(context)}")
        return None if command is None else command.name, command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would call it a failure.
            return nobody_reads()

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, _, text) in self.table.items()]
        for name in super().list_commands(context):
            command = super().get_command(context, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=80)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def nearest(name: str, known: Sequence[str]) -> str:
    """`did you mean ...?`, or nothing when no name is near."""
    import difflib

    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]!r}?" if near else ""


def _help(context: click.Context) -> str:
    return f"{context.command_path} --help"


def run_group(group: click.Command, args: Sequence[str], prog_name: str) -> int:
    """Call it; whatever goes wrong becomes one line on standard error and an exit code."""
    show_all_characters()
    try:
        result = group.main(list(args), prog_name=prog_name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except CommandError as error:
        return complain(error.line, error.code)
    except click.UsageError as error:
        return _usage(error, prog_name)
    except click.ClickException as error:
        return complain(error.format_message(), error.exit_code)
    except ModuleNotFoundError as error:
        return _missing_module(error)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except UnicodeEncodeError as error:
        return complain(not_encoded(error), USAGE)
    except OSError as error:
        return complain(of_system(error), FAILED)


def nobody_reads() -> int:
    """Whoever read our output has seen enough; Python would complain once more at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def of_system(error: OSError) -> str:
    """About a file or a socket that somebody named; what we expect is said where it happens."""
    where = "" if error.filename is None else f"{error.filename!s}: "
    return f"{where}{error.strerror or error}"


def not_encoded(error: UnicodeEncodeError) -> str:
    """Bytes that are no UTF-8 reach Python as halves of characters: no request can carry them."""
    return f"{error.object!r} is not valid UTF-8"


def show_all_characters() -> None:
    """What a terminal cannot show is written as an escape; Python would raise in the middle."""
    # A program that was started without them: there is nobody to tell anything.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# A package that is not always there -> the extra that brings it.
_EXTRAS = {
    "avro": ("fastavro",),
    "lakehouse": ("deltalake", "pyiceberg"),
    "lz4": ("lz4",),
    "protobuf": ("google",),
    "spark": ("pyspark", "pyarrow", "numpy"),
    "zstd": ("zstandard",),
}


def _missing_module(error: ModuleNotFoundError) -> int:
    """A package that is not installed is one sentence; a module of ours is a mistake of ours."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "twinlog", "pyspark_twinlog", "pyspark_twinlog_delta"):
        raise error
    extra = next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
    what = package if extra is None else f"twinlog[{extra}]"
    text = f"this needs {package}, which is not installed here"
    return complain(f"{text}; install it with: pip install '{what}'", FAILED)


def _usage(error: click.UsageError, prog_name: str) -> int:
    where = error.ctx.command_path if error.ctx is not None else prog_name
    if type(error).__name__ == "NoArgsIsHelpError":
        click.echo(error.format_message(), err=True)
        return USAGE
    text = error.format_message().strip().rstrip(".")
    return complain(f"{where}: {text[:1].lower()}{text[1:]}; see: {where} --help", USAGE, prefix="")


def complain(text: str, code: int, *, prefix: str = "twinlog: ") -> int:
    line = " ".join(text.split())
    known_start = line.startswith(("twinlog", "mqadmin", "mqbroker", "mqnamesrv", "mqcontroller"))
    click.echo(line if known_start else f"{prefix}{line}", err=True)
    return code
