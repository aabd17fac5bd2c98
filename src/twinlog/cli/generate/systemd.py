"""`twinlog generate systemd`: a unit that is ready when the server says so, and shut in."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import click

from twinlog.cli.generate.values import DIRECTORY, PATH, USER

DEFAULT_USER = "twinlog"
ROLES = ("broker", "namesrv", "controller")

# Everything that a server of ours does not need is taken away; what it needs is its state
# directory, sockets and files. `systemd-analyze security` rates the result.
#
# The units share one user and one state directory. With a user for each unit, every start would
# give the directory to the unit that starts, and take it from those that run. Paths that a file
# leaves out are below the home directory, which a dynamic user does not have.
_UNIT = """[Unit]
Description=twinlog {role}
After=network-online.target{after}
Wants=network-online.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{user}Environment=HOME=%S/twinlog
Restart=on-failure
RestartSec=2
TimeoutStopSec=60
LimitNOFILE=655350
StateDirectory=twinlog
StateDirectoryMode=0700
ConfigurationDirectory=twinlog
UMask=0077

NoNewPrivileges=true
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
{writable}ProtectHome=read-only
PrivateTmp=true
PrivateDevices=true
PrivateUsers=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
RemoveIPC=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
MemoryDenyWriteExecute=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


@click.command(epilog="Example: twinlog generate systemd --role broker -c /etc/twinlog/a.conf")
@click.option("--role", type=click.Choice(ROLES), default="broker", show_default=True,
              help="The server that the unit runs.")  # fmt: skip
@click.option("-c", "--configFile", "path", type=PATH, help="The server's properties file.")
@click.option("--user", type=USER,
              help=f"Run as this user; if not given, as {DEFAULT_USER}, which systemd creates "
                   "if it does not exist.")  # fmt: skip
@click.option("--store", "stores", multiple=True, type=DIRECTORY,
              help="Another directory that the server may write to; repeatable.")  # fmt: skip
def systemd(role: str, path: str | None, user: str | None, stores: tuple[str, ...]) -> None:
    """Print a systemd unit that knows when the server is ready and restarts it when it fails."""
    program = _program()
    command = f"{_in_command(program)} {role}"
    if path:
        command += f" -c {_in_command(Path(path).absolute())}"
    writable = "".join(f"ReadWritePaths={_quoted(Path(store).absolute())}\n" for store in stores)
    text = _UNIT.format(
        role=role,
        after="" if role == "namesrv" else " twinlog-namesrv.service",
        command=command,
        user=f"User={user}\n" if user else f"User={DEFAULT_USER}\nDynamicUser=true\n",
        writable=writable,
    )
    click.echo(text, nl=False)
    # A script starts its interpreter, which may be elsewhere.
    for needed in (program, Path(sys.executable).resolve()):
        if reason := why_not_started(needed, user or DEFAULT_USER):
            click.echo(
                f"twinlog: warning: the service cannot start {needed}: {reason}; install twinlog "
                "in a directory that every user may read, such as /opt/twinlog",
                err=True,
            )
            break


def why_not_started(program: Path, user: str) -> str:
    """What keeps the user of the unit from the program; empty when nothing does."""
    for folder in program.parents:
        try:
            is_shut, owner = not folder.stat().st_mode & stat.S_IXOTH, folder.owner()
        except (OSError, KeyError):  # Not there, or of a user without a name.
            continue
        if is_shut and owner != user:
            return f"only {owner} may enter {folder}"
    if program.is_relative_to("/tmp") or program.is_relative_to("/var/tmp"):
        return "the service has a /tmp of its own"
    return ""


def _quoted(path: Path) -> str:
    """As one word of a unit: `%` begins a specifier there, and a space ends the word."""
    text = str(path).replace("%", "%%")
    if not any(character in text for character in " \"'\\;"):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _in_command(path: Path) -> str:
    """The same in a command, where `$` begins a variable."""
    return _quoted(path).replace("$", "$$")


def _program() -> Path:
    program = Path(sys.argv[0]).absolute()
    return program if os.access(program, os.X_OK) else Path(sys.executable).with_name("twinlog")
