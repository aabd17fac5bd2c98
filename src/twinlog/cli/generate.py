"""`twinlog generate systemd|compose|completion`: files for other tools, on standard output."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import click

from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.lazy import LazyGroup


@click.group(cls=LazyGroup, short_help="Files for systemd, compose and shells.")
def generate() -> None:
    """Files for systemd, compose and shells, on standard output."""


_UNIT = """[Unit]
Description=twinlog {role}
After=network-online.target{after}
Wants=network-online.target

[Service]
Type=notify
ExecStart={command}
{user}Restart=on-failure
RestartSec=2
TimeoutStopSec=60
LimitNOFILE=655350
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=full

[Install]
WantedBy=multi-user.target
"""


@generate.command(epilog="Example: twinlog generate systemd --role broker -c /etc/twinlog/a.conf")
@click.option("--role", type=click.Choice(("broker", "namesrv")), default="broker")
@click.option("-c", "--configFile", "path", help="The properties file; made absolute.")
@click.option("--user", help="Run as this user.")
def systemd(role: str, path: str | None, user: str | None) -> None:
    """A unit: ready when the server says so, stopped cleanly, started again when it fails."""
    program = Path(sys.argv[0]).absolute()
    if not os.access(program, os.X_OK):
        program = Path(sys.executable).with_name("twinlog")
    command = f"{program} {role}" + (f" -c {Path(path).absolute()}" if path else "")
    text = _UNIT.format(
        role=role,
        after=" twinlog-namesrv.service" if role == "broker" else "",
        command=command,
        user=f"User={user}\n" if user else "",
    )
    click.echo(text, nl=False)


_COMPOSE_BROKER = """  {name}:
    image: {image}
    command: ["broker", "-c", "/etc/twinlog/broker.conf"]
    depends_on: [namesrv]
    ports: ["{port}:{port}"]
    volumes:
      - {name}-store:/var/lib/twinlog
    configs:
      - source: {name}
        target: /etc/twinlog/broker.conf
    restart: unless-stopped
"""
_COMPOSE_CONFIG = """  {name}:
    content: |
      brokerClusterName=DefaultCluster
      brokerName=broker-a
      brokerId={broker_id}
      brokerRole={role}
      namesrvAddr=namesrv:9876
      listenPort={port}
      bindAddress=0.0.0.0
      brokerIP1={host}
      brokerIP2={name}
      storePathRootDir=/var/lib/twinlog/store
      slaveReadEnable=true
      twinlogHASecret={secret}
"""


@generate.command(epilog="Example: twinlog generate compose --host 192.0.2.10 > compose.yaml")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="Address under which clients reach this machine.")  # fmt: skip
@click.option("--image", default="twinlog", show_default=True, help="Built from Containerfile.")
@click.option("--sync", "is_sync", is_flag=True, help="SYNC_MASTER: SEND_OK means two copies.")
def compose(host: str, image: str, is_sync: bool) -> None:
    """A name server, a master and a slave as containers."""
    master = "SYNC_MASTER" if is_sync else "ASYNC_MASTER"
    nodes = [("master", 0, master, 10911), ("slave", 1, "SLAVE", 10921)]
    lines = ["services:\n", "  namesrv:\n", f"    image: {image}\n"]
    lines.append('    command: ["namesrv", "-c", "/etc/twinlog/namesrv.conf"]\n')
    lines.append('    ports: ["9876:9876"]\n    configs:\n      - source: namesrv\n')
    lines.append("        target: /etc/twinlog/namesrv.conf\n    restart: unless-stopped\n")
    lines += [_COMPOSE_BROKER.format(name=n, image=image, port=port) for n, _, _, port in nodes]
    lines.append("configs:\n  namesrv:\n    content: |\n")
    lines.append("      bindAddress=0.0.0.0\n      listenPort=9876\n")
    lines.append("      kvConfigPath=/var/lib/twinlog/kvConfig.json\n")
    secret = secrets.token_hex(16)
    lines += [
        _COMPOSE_CONFIG.format(
            name=name, broker_id=number, role=role, port=port, host=host, secret=secret
        )
        for name, number, role, port in nodes
    ]
    lines.append("volumes:\n  master-store:\n  slave-store:\n")
    click.echo("".join(lines), nl=False)


_WHERE = {
    "bash": 'eval "$(twinlog generate completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(twinlog generate completion zsh)"   # in ~/.zshrc',
    "fish": "twinlog generate completion fish > ~/.config/fish/completions/twinlog.fish",
}


@generate.command(epilog=f"Example: {_WHERE['bash']}")
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
def completion(shell: str) -> None:
    """Completion of commands and options for a shell."""
    from click.shell_completion import BashComplete, get_completion_class

    from twinlog.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"no completion for {shell}", USAGE)
    script = kind(cli, {}, "twinlog", "_TWINLOG_COMPLETE")
    if isinstance(script, BashComplete):
        # Click would start bash to ask for its version; whoever pastes this has a bash.
        click.echo(script.source_template % script.source_vars())
    else:
        click.echo(script.source())
