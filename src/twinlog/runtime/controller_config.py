"""The keys of a `controller.conf`, typed. Corresponds to RocketMQ 5's ControllerConfig.

A controller runs alone or inside a name server. What both files may hold is declared here, as
types that carry their text; a struct can have one base, so the name server's keys name them again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, TypeAlias

from msgspec import Meta

from twinlog.runtime.addresses import is_host_and_port
from twinlog.runtime.config_key import Finding, Port, Positive, live, no_effect, refused, used
from twinlog.runtime.server_config import NO_THREADS, ServerConfig

CONTROLLER_PORT = 9878
LEASE_MS_MIN = 500
_OWN_LEASES = "twinlog's controller gives leases to brokers; see twinlogLeaseMs"
OWN_STORE = "twinlog's controller keeps its records in one small file, or in etcd"

StorePath: TypeAlias = Annotated[
    str, used("Directory in which the controller keeps its records of groups and elections.")
]
DLegerGroup: TypeAlias = Annotated[
    str, used("Name of the group of controllers, shown to operators.")
]
DLegerPeers: TypeAlias = Annotated[
    str | None,
    used(
        "The controllers, n0-host:port;n1-host:port. The entry of controllerDLegerSelfId is "
        "the address of this one. Several controllers need twinlogControllerEtcd."
    ),
]
DLegerSelfId: TypeAlias = Annotated[
    str, used("Name of this controller among controllerDLegerPeers.")
]
ElectUnclean: TypeAlias = Annotated[
    bool,
    refused(
        "Elect a replica that is not in sync when no other is left.",
        "such an election may lose acknowledged messages; in twinlog an operator requests it "
        "for one group by name. Remove the key",
    ),
]
_NOTIFY = (
    "Tell brokers of an election at once, rather than with the answer to their next heartbeat."
)
Notify: TypeAlias = Annotated[
    bool, used(f"{_NOTIFY} updateControllerConfig changes it at run time.")
]
LeaseMs: TypeAlias = Annotated[
    Annotated[int, Meta(ge=LEASE_MS_MIN, le=60_000)],
    used(
        "How long a master may answer sends before all replicas in sync have the message "
        "(ASYNC_MASTER) without hearing from the controller, in ms. In such a group, no other "
        "master is elected before this time is over."
    ),
]
Etcd: TypeAlias = Annotated[
    str,
    used(
        "Addresses of an etcd in which several controllers share their records,"
        " http://host:2379;http://host:2379. One of them leads at a time."
    ),
]
STORE_PATH = os.path.join(os.path.expanduser("~"), "DledgerController")
DLEGER_GROUP = "default-group"
DLEGER_SELF_ID = "n0"
LEASE_MS = 2_000


class ControllerConfig(ServerConfig, kw_only=True):
    """Everything a controller can be told. Made from a file by `load_controller_config`."""

    listen_port: Annotated[Port | None, used(
        "Port on which brokers and operators are served.",
        default="the port of this controller in controllerDLegerPeers, else 9878"
    )] = None  # fmt: skip
    controller_store_path: StorePath = STORE_PATH
    controller_d_leger_group: DLegerGroup = DLEGER_GROUP
    controller_d_leger_peers: DLegerPeers = None
    controller_d_leger_self_id: DLegerSelfId = DLEGER_SELF_ID
    enable_elect_unclean_master: ElectUnclean = False
    notify_broker_role_changed: Annotated[bool, live(_NOTIFY)] = True
    twinlog_lease_ms: LeaseMs = LEASE_MS
    twinlog_controller_etcd: Etcd = ""

    # Of Apache's implementation.
    controller_type: Annotated[
        str, no_effect("Which of Apache's libraries replicates the controllers' log.", OWN_STORE)
    ] = "DLedger"
    scan_not_active_broker_interval: Annotated[
        Positive, no_effect("How often brokers that are gone are looked for, in ms.", _OWN_LEASES)
    ] = 5_000
    scan_inactive_master_interval: Annotated[
        Positive, no_effect("How often groups without a master are looked for, in ms.", _OWN_LEASES)
    ] = 5_000
    controller_thread_pool_nums: Annotated[
        int, no_effect("Threads that handle requests.", NO_THREADS)
    ] = 16
    controller_request_thread_pool_queue_capacity: Annotated[
        int, no_effect("Requests that may wait for a thread.", NO_THREADS)
    ] = 50_000
    mapped_file_size: Annotated[
        int, no_effect("Size of one file of the controllers' log, in bytes.", OWN_STORE)
    ] = 1024 * 1024 * 1024
    is_process_read_event: Annotated[
        bool, no_effect("Put reads into the controllers' log.", OWN_STORE)
    ] = False

    @property
    def service_port(self) -> int:
        """Where it listens."""
        if self.listen_port is not None:
            return self.listen_port
        own = self.own_peer
        return int(own.rpartition(":")[2]) if own else CONTROLLER_PORT

    @property
    def own_peer(self) -> str:
        """The address by which the others know this controller; empty if no file says it."""
        return peers_by_id(self.controller_d_leger_peers).get(self.controller_d_leger_self_id, "")

    @property
    def etcd_addresses(self) -> list[str]:
        return _parts(self.twinlog_controller_etcd)

    def check(self) -> list[Finding]:
        """What no single value can show."""
        return [
            *super().check(),
            *controller_findings(
                self.controller_d_leger_peers,
                self.controller_d_leger_self_id,
                self.twinlog_controller_etcd,
            ),
        ]


def peers_by_id(peers: str | None) -> dict[str, str]:
    """`n0-host:port;n1-host:port` as addresses by id, in the order of the file."""
    return {name: address for name, _, address in (p.partition("-") for p in _parts(peers))}


def controller_findings(peers: str | None, self_id: str, etcd: str) -> Iterator[Finding]:
    """What is wrong with the peers and the etcd of a controller, alone or in a name server."""
    key = "controllerDLegerPeers"
    by_id = peers_by_id(peers)
    for name, address in by_id.items():
        if not name or not is_host_and_port(address):
            text = f"{name}-{address} is not id-host:port; semicolons go between several"
            yield Finding(key, text)
    if len(by_id) < len(_parts(peers)):
        yield Finding(key, "two controllers have the same id")
    if by_id and self_id not in by_id:
        yield Finding("controllerDLegerSelfId", f"{self_id} is none of {key}", about=(key,))
    if len(by_id) > 1 and not etcd:
        yield Finding(key, "several controllers share their records in an etcd: set"
                      " twinlogControllerEtcd, or name one controller")  # fmt: skip
    for address in _parts(etcd):
        scheme, _, rest = address.partition("://")
        if scheme not in ("http", "https") or not is_host_and_port(rest.rstrip("/")):
            yield Finding("twinlogControllerEtcd", f"{address} is not http://host:port")


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(";") if part.strip()]
