"""Commands of the operator's own that stop, start or restart one broker, whatever runs it."""

from __future__ import annotations

import subprocess
import sys

from twinlog.cli.exit_codes import FAILED, CommandError


def fill(template: str, address: str, **values: object) -> str:
    """`{host}`, `{port}` and the names in `values` are filled in; nothing else is touched."""
    host, _, port = address.rpartition(":")
    for name, value in {"host": host, "port": port, **values}.items():
        template = template.replace(f"{{{name}}}", str(value))
    return template


def run_words(words: str, *, is_quiet: bool = False) -> None:
    """In a shell, in the foreground; an exit code other than 0 ends the command.

    Quiet: what it prints goes to standard error, where the output is for a program.
    """
    stdout = sys.stderr.fileno() if is_quiet else None
    done = subprocess.run(words, shell=True, check=False, stdout=stdout)
    if done.returncode:
        raise CommandError(f"the command ended with {done.returncode}: {words}", FAILED)
