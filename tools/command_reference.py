"""The page COMMANDS of the documentation site, from the commands themselves.

`make docs` calls it; `python tools/command_reference.py` prints the page.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator

import click

from twinlog.cli.main import cli

HEAD = """\
# Commands

Every command of `twinlog`, with its arguments and options. `twinlog COMMAND --help` prints the same
text. Exit codes are listed in [ERRORS](ERRORS.md#exit-codes). How to use the commands together is
described in [OPERATIONS](OPERATIONS.md).

`mqadmin`, `mqnamesrv`, `mqbroker` and `mqcontroller` are also installed. They accept the options of
Apache's programs with the same names; `mqadmin help` lists the verbs.

## Connection options

A command that talks to a cluster has all of these options.

{connection}
## Common options

These options have the same meaning in every command that has them. Every command also has `--help`.

{common}
"""
PLAIN = "twinlog bench sub"
COMMON_FROM = 12
"""An option that at least so many commands have in the same form is listed once."""


def page() -> str:
    commands = list(_commands(cli, ["twinlog"]))
    counts = Counter(row for _, command in commands for row in _rows(command))
    common = [row for row, count in counts.items() if count >= COMMON_FROM]
    # Those of a command that only talks to a cluster: `bench sub` has no other common option.
    known = _rows({" ".join(words): command for words, command in commands}[PLAIN])
    connection = [row for row in common if row in known]
    sections = (
        part for words, command in commands for part in _section(words, command, connection, common)
    )
    head = HEAD.format(
        connection=_table(connection),
        common=_table([row for row in common if row not in connection]),
    )
    return head + "\n".join(sections)


def _commands(group: click.Group, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    context = click.Context(group, info_name=path[-1])
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield [*path, name], command
        if isinstance(command, click.Group):
            yield from _commands(command, [*path, name])


def _section(
    words: list[str], command: click.Command, connection: list[str], common: list[str]
) -> Iterator[str]:
    yield f"{'##' if len(words) == 2 else '###'} {' '.join(words)}\n"
    usage = " ".join(piece for piece in command.collect_usage_pieces(click.Context(command)))
    yield f"```\n{' '.join(words)} {usage}\n```\n"
    yield _text(command.help or command.short_help or "") + "\n"
    rows = _rows(command)
    own = [row for row in rows if row not in common]
    if own:
        yield _table(own)
    if _has_source_options(command):
        yield "Every [option of Spark's format](SPARK.md#options) is an option here too.\n"
    has_all = set(connection) <= set(rows)
    shared = [row for row in rows if row in common and not (has_all and row in connection)]
    also = ["the [connection options](#connection-options)"] if has_all else []
    if shared:
        names = ", ".join(f"`{_first_name(row)}`" for row in shared)
        also.append(f"these [common options](#common-options): {names}")
    if also:
        yield f"Also {' and '.join(also)}.\n"


def _has_source_options(command: click.Command) -> bool:
    return any(_is_source_option(each) for each in command.params)


def _is_source_option(parameter: click.Parameter) -> bool:
    """One that Spark's format has: SPARK describes it, and many jobs take it."""
    return parameter.name is not None and parameter.name.startswith("opt_")


def _first_name(row: str) -> str:
    """`-n` of the row of `-n, --namesrv ADDR`."""
    return row.removeprefix("| `").partition("`")[0].split()[0].strip(",")


def _table(rows: list[str]) -> str:
    return "| option | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _rows(command: click.Command) -> list[str]:
    return [row for each in command.params if (row := _row(command, each))]


def _text(text: str) -> str:
    """Paragraphs of a help text. Angle brackets would be taken for HTML."""
    cleaned = inspect.cleandoc(text).replace("\b\n", "")
    paragraphs = (" ".join(part.split()) for part in cleaned.split("\n\n"))
    return "\n\n".join(paragraphs).replace("<", "&lt;")


def _row(command: click.Command, parameter: click.Parameter) -> str:
    if not isinstance(parameter, click.Option) or parameter.hidden or _is_source_option(parameter):
        return ""
    record = parameter.get_help_record(click.Context(command))
    if record is None or "--help" in parameter.opts:
        return ""
    names, text = (" ".join(part.split()) for part in record)
    return f"| `{names.replace('|', chr(92) + '|')}` | {text.replace('|', chr(92) + '|')} |"


if __name__ == "__main__":
    print(page())
