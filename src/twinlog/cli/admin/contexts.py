"""Clusters by name, in one file of the user: address, credentials, TLS.

~/.config/twinlog/contexts.json (or $TWINLOG_CONFIG), readable by its owner only.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from twinlog.cli.admin.tls import Tls
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, CommandError
from twinlog.cli.lazy import nearest


class Context(msgspec.Struct, omit_defaults=True):
    """How to reach one cluster."""

    namesrv: str
    access_key: str = ""
    secret_key: str = ""
    tls: bool = False
    tls_files: Tls = Tls()

    @property
    def encryption(self) -> Tls | None:
        return self.tls_files if self.tls or self.tls_files != Tls() else None


class Contexts(msgspec.Struct, omit_defaults=True):
    """All of them, and the one that is used when nothing else is said."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            hint = nearest(name, list(self.contexts)) or "see: twinlog context list"
            raise CommandError(f"no context {name!r}", NOT_FOUND, hint=hint)
        return found


def chosen(known: Contexts) -> str:
    """The name of the context that holds: TWINLOG_CONTEXT, else the current one; may be empty."""
    return os.environ.get("TWINLOG_CONTEXT") or known.current


def path() -> Path:
    given = os.environ.get("TWINLOG_CONFIG")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "twinlog" / "contexts.json"


def load() -> Contexts:
    file = path()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}", FAILED) from error
    except msgspec.DecodeError as error:
        raise CommandError(f"{file} cannot be read: {error}", FAILED) from error


def save(contexts: Contexts) -> None:
    file = path()
    try:
        _write(file, contexts)
    except OSError as error:
        text = f"{file} cannot be written: {error.strerror}"
        hint = "choose another file with TWINLOG_CONFIG"
        raise CommandError(text, FAILED, hint=hint) from error


def _write(file: Path, contexts: Contexts) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if "TWINLOG_CONFIG" not in os.environ:
        file.parent.chmod(0o700)  # Ours alone; a place that somebody named may be shared.
    temporary = file.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)  # Secrets are in it, from the first byte on.
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
    temporary.replace(file)
