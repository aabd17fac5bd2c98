"""Writes docs/COMMANDS.md from the commands themselves; a test compares the two.

python tools/command_reference.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from twinlog.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "COMMANDS.md"
HEAD = """\
# Commands

Every command of `twinlog`, with its arguments and options. `twinlog COMMAND --help` prints the same
text. Exit codes are listed in [ERRORS](ERRORS.md#exit-codes). How to use the commands together is
described in [OPERATIONS](OPERATIONS.md).

`mqadmin`, `mqnamesrv`, `mqbroker` and `mqcontroller` are also installed. They accept the options of
Apache's programs with the same names; `mqadmin help` lists the verbs.

This page is written by `python tools/command_reference.py`.
"""
# Options that every command of a group shares; the page lists them once.
SHARED = {"--help"}


def page() -> str:
    return HEAD + "\n" + "\n".join(_sections(cli, ["twinlog"]))


def _sections(group: click.Group, path: list[str]) -> Iterator[str]:
    context = click.Context(group, info_name=path[-1])
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        words = [*path, name]
        if len(path) == 1:
            yield f"## {' '.join(words)}\n"
        else:
            yield f"### {' '.join(words)}\n"
        yield from _command(command, words)
        if isinstance(command, click.Group):
            yield from _sections(command, words)


def _command(command: click.Command, words: list[str]) -> Iterator[str]:
    usage = " ".join(piece for piece in command.collect_usage_pieces(click.Context(command)))
    yield f"```\n{' '.join(words)} {usage}\n```\n"
    yield _text(command.help or command.short_help or "") + "\n"
    rows = [row for each in command.params if (row := _row(command, each))]
    if rows:
        yield "| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _text(text: str) -> str:
    """Paragraphs of a help text. Angle brackets would be taken for HTML."""
    cleaned = inspect.cleandoc(text).replace("\b\n", "")
    paragraphs = (" ".join(part.split()) for part in cleaned.split("\n\n"))
    return "\n\n".join(paragraphs).replace("<", "&lt;")


def _row(command: click.Command, parameter: click.Parameter) -> str:
    if not isinstance(parameter, click.Option) or parameter.hidden:
        return ""
    record = parameter.get_help_record(click.Context(command))
    if record is None or SHARED & set(parameter.opts):
        return ""
    names, text = (" ".join(part.split()) for part in record)
    return f"| `{names.replace('|', chr(92) + '|')}` | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
