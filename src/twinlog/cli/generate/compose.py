"""`twinlog generate compose`: a whole cluster as containers, for compose.

Clients outside reach a broker at `--host` and its published port; replicas and the controller reach
each other by the names of the services. So `brokerIP1` is the host's address and `brokerIP2` the
service: a slave asks its master at the address that replication uses.

The root file system is read-only, and compose cannot copy a text among `configs` into it. So a
server's configuration is a variable, which its start writes to memory. The server cannot change
the file: what it wrote there, for example a promotion, would be gone at the next start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from twinlog.cli.generate.cluster_keys import (
    BROKER_PORT,
    HEALTH_CHECK,
    NAME_SERVER_PORT,
    RUN,
    STATE,
    Keys,
    broker_keys,
    failover_keys,
    group_name,
    name_server_keys,
    new_secret,
)
from twinlog.cli.generate.documents import dump, properties
from twinlog.cli.generate.values import HOST, IMAGE, SECRET

BROKER_PORT_STEP = 10
_VARIABLE = "TWINLOG_CONFIGURATION"


@dataclass(frozen=True, slots=True)
class Plan:
    """What the cluster has."""

    host: str
    image: str
    groups: int
    replicas: int
    name_servers: int
    is_sync: bool
    is_failover: bool
    secret: str

    @property
    def name_server_names(self) -> list[str]:
        return [f"namesrv-{number}" for number in range(1, self.name_servers + 1)]


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of the plan."""

    name: str
    group: str
    number: int
    port: int


@click.command(epilog="Example: twinlog generate compose --host 192.0.2.10 > compose.yaml")
@click.option("--host", default="127.0.0.1", show_default=True, type=HOST,
              help="Address under which clients reach this machine.")  # fmt: skip
@click.option("--image", default="twinlog", show_default=True, type=IMAGE,
              help="The image, as built from Containerfile.")  # fmt: skip
@click.option("--groups", default=1, show_default=True, type=click.IntRange(1, 26),
              help="Number of broker groups.")  # fmt: skip
@click.option("--brokers", "replicas", default=2, show_default=True, type=click.IntRange(1, 5),
              help="Number of replicas in each group.")  # fmt: skip
@click.option("--name-servers", default=1, show_default=True, type=click.IntRange(1, 5),
              help="Number of name servers.")  # fmt: skip
@click.option("--sync", "is_sync", is_flag=True,
              help="Use SYNC_MASTER: SEND_OK means that two brokers have the message.")  # fmt: skip
@click.option("--failover", "is_failover", is_flag=True,
              help="Run a controller in the first name server; it elects masters.")  # fmt: skip
@click.option("--ha-secret", "secret", type=SECRET, default=new_secret, envvar="TWINLOG_HA_SECRET",
              help="Shared secret of the replicas; if not given, a new random one.")  # fmt: skip
def compose(**options: Any) -> None:
    """Print a compose file: name servers and broker groups, with volumes and health checks."""
    plan = Plan(**options)
    if plan.replicas < 2 and (plan.is_failover or plan.is_sync):
        option = "--failover" if plan.is_failover else "--sync"
        raise click.UsageError(f"{option} needs --brokers 2 or more: a lone broker has no slave")
    click.echo(dump([compose_document(plan)]), nl=False)


def compose_document(plan: Plan) -> dict[str, Any]:
    """The compose file as data."""
    services = {
        name: _service(plan, name, "namesrv", _name_server_keys(plan, index))
        for index, name in enumerate(plan.name_server_names)
    }
    for broker in replicas(plan):
        service = _service(plan, broker.name, "broker", _broker_keys(plan, broker))
        services[broker.name] = service | {"depends_on": plan.name_server_names}
    return {"services": services, "volumes": {f"{name}-state": {} for name in services}}


def replicas(plan: Plan) -> list[Replica]:
    """Every broker, group by group."""
    found: list[Replica] = []
    for group_index in range(plan.groups):
        group = group_name(group_index)
        for number in range(plan.replicas):
            port = BROKER_PORT + BROKER_PORT_STEP * len(found)
            found.append(Replica(f"{group}-{number}", group, number, port))
    return found


def _service(plan: Plan, name: str, kind: str, keys: Keys) -> dict[str, Any]:
    port = keys["listenPort"]
    return {
        "image": plan.image,
        "entrypoint": ["sh", "-c", _start(kind)],
        "environment": {_VARIABLE: properties(keys)},
        "ports": [f"{port}:{port}"],
        "volumes": [f"{name}-state:{STATE}"],
        "read_only": True,
        "tmpfs": ["/tmp", f"{RUN}:mode=1777"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "healthcheck": {
            "test": ["CMD", "python", "-c", HEALTH_CHECK],
            "interval": "5s",
            "timeout": "3s",
            "retries": 3,
            "start_period": "30s",
        },
        "stop_grace_period": "60s",
        "restart": "unless-stopped",
    }


def _start(kind: str) -> str:
    """Without `$`, which compose would take for a variable of its own."""
    directory = f"{RUN}/etc"
    file = f"{directory}/{kind}.conf"
    return (
        f"umask 077; test -e {file} || {{ mkdir -p {directory} && printenv {_VARIABLE} > {file} &&"
        f" chmod 0500 {directory}; }} && exec env -u {_VARIABLE} twinlog {kind} -c {file}"
    )


def _name_server_keys(plan: Plan, index: int) -> Keys:
    has_controller = plan.is_failover and index == 0
    return name_server_keys(NAME_SERVER_PORT + index, has_controller=has_controller)


def _broker_keys(plan: Plan, broker: Replica) -> Keys:
    name_servers = ";".join(
        f"{name}:{NAME_SERVER_PORT + index}" for index, name in enumerate(plan.name_server_names)
    )
    return {
        **broker_keys(broker.group, _role_keys(plan, broker), name_servers, broker.port),
        "brokerIP1": plan.host,
        "brokerIP2": broker.name,
        "twinlogHASecret": plan.secret,
    }


def _role_keys(plan: Plan, broker: Replica) -> Keys:
    if plan.is_failover:
        return failover_keys(plan.name_server_names[0], plan.replicas)
    master = "SYNC_MASTER" if plan.is_sync else "ASYNC_MASTER"
    return {"brokerId": broker.number, "brokerRole": "SLAVE" if broker.number else master}
