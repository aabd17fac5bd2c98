"""Finds the verb, reads its options, connects, runs it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import click

from twinlog.cli.exit_codes import FAILED, INTERRUPTED, UNHEALTHY, USAGE, CommandError
from twinlog.cli.lazy import (
    complain,
    nearest,
    nobody_reads,
    not_encoded,
    of_system,
    show_all_characters,
)
from twinlog.cli.mqadmin.options import Values, help_text, parse, wants_json
from twinlog.cli.mqadmin.rows import Document
from twinlog.cli.mqadmin.verbs import REFUSED, VERB_ALIASES, VERBS, Verb

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.cli.admin.session import Session


@dataclass(slots=True)
class Call:
    """What the function of a verb gets: the connection, the options, and where to print."""

    admin: Admin
    options: Values
    session: Session
    missing: list[str] = field(default_factory=list)
    document: Document | None = None  # With -o json: what will be printed.

    def line(self, text: str = "") -> None:
        if self.document is None:
            click.echo(text)
        else:
            self.document.add(text)

    def end_round(self) -> None:
        """All is said, or all of one round of a verb that repeats itself."""
        if self.document is not None:
            click.echo(self.document.text())
            self.document = Document(self.document.verb)

    def incomplete(self, address: str, error: Exception) -> None:
        """A broker did not answer: the rest is printed, the exit code will be 10."""
        self.missing.append(f"mqadmin: {address}: {error}")


def run(args: Sequence[str]) -> int:
    """The whole of `mqadmin`; returns the exit code."""
    show_all_characters()
    try:
        return _run(list(args))
    except CommandError as error:
        return complain(error.line, error.code, prefix="mqadmin: ")
    except UnicodeEncodeError as error:
        return complain(not_encoded(error), USAGE, prefix="mqadmin: ")
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return nobody_reads()
    except OSError as error:
        return complain(of_system(error), FAILED, prefix="mqadmin: ")


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help") or (args[0] == "help" and len(args) == 1):
        _print_verbs()
        return 0
    if args[0] == "help":
        click.echo(help_text(find_verb(args[1])))
        return 0
    verb = find_verb(args[0])
    options = parse(verb, args[1:])
    if "h" in options:
        click.echo(help_text(verb))
        return 0
    return _execute(verb, options)


def find_verb(name: str) -> Verb:
    """By name, capitals or not."""
    lowered = {known.lower(): verb for known, verb in VERBS.items()}
    lowered |= {alias.lower(): VERBS[known] for alias, known in VERB_ALIASES.items()}
    verb = lowered.get(name.lower())
    if verb is not None:
        return verb
    for refused, advice in REFUSED.items():
        if refused.lower() == name.lower():
            raise CommandError(f"mqadmin: {refused} is not supported: {advice}", USAGE)
    hint = nearest(name, list(VERBS)) or "see: mqadmin help"
    raise CommandError(f"mqadmin: no sub command {name!r}", USAGE, hint=hint)


def _print_verbs() -> None:
    click.echo("The sub commands of mqadmin:")
    for verb in VERBS.values():
        click.echo(f"   {verb.name:<24} {verb.text}")
    click.echo("\nOptions of each: mqadmin help <sub command>. Not supported:")
    click.echo(f"   {', '.join(REFUSED)}")


def _session(options: Values) -> Session:
    """The cluster of -n or of a context, with the account and the TLS of this call."""
    from twinlog.cli.admin.session import find_cluster
    from twinlog.cli.admin.tls import OPTIONS, merged, warn_of

    session = find_cluster(options.get("n"), options.get("context"))
    access_key = options.get("access-key") or session.access_key
    secret_key = options.get("secret-key") or session.secret_key
    if bool(access_key) != bool(secret_key):
        raise CommandError("--access-key and --secret-key go together", USAGE)
    tls = merged({name: options.get(name) for name in OPTIONS}, session.tls)
    warn_of(tls)
    return replace(session, access_key=access_key, secret_key=secret_key, tls=tls)


def _execute(verb: Verb, options: Values) -> int:
    from twinlog.cli.admin.session import explain, run_loop
    from twinlog.client.errors import ClientError

    session = _session(options)
    function = getattr(importlib.import_module(verb.module), verb.function)

    async def main() -> list[str]:
        async with session.admin() as admin:
            call = Call(admin, options, session)
            call.document = Document(verb.name) if wants_json(options) else None
            await function(call)
            call.end_round()
            return call.missing

    try:
        missing = run_loop(main)
    except ClientError as error:
        explained = explain(error, session)
        text = f"mqadmin {verb.name}: {explained.text}"
        raise CommandError(text, explained.code, hint=explained.hint) from error
    for line in missing:
        click.echo(line, err=True)
    return UNHEALTHY if missing else 0
