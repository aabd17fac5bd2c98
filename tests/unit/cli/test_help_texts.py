"""What `--help` prints: every command and option says what it does, and no line is cut."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from twinlog.cli.main import cli


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ("twinlog",)
) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


EVERY = dict(commands())


def test_there_are_commands() -> None:
    assert len(EVERY) > 100


@pytest.mark.parametrize("path", EVERY)
def test_a_command_and_its_options_say_what_they_do(path: str) -> None:
    command = EVERY[path]
    assert (command.help or "").split("\n\n")[0].rstrip().endswith(".")
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert [one.opts for one in options if not one.help] == []


@pytest.mark.parametrize(
    "path", [name for name, one in EVERY.items() if isinstance(one, click.Group)]
)
def test_a_group_lists_its_commands_in_whole_sentences(path: str) -> None:
    context = click.Context(EVERY[path], info_name=path, max_content_width=200, terminal_width=200)
    listed = EVERY[path].get_help(context).splitlines()
    assert [line for line in listed if line.endswith("...") and "Usage:" not in line] == []
