"""The keys of a `controller.conf`, typed. Corresponds to RocketMQ 5's ControllerConfig."""

from __future__ import annotations

import os
from typing import Annotated

from msgspec import Meta

from twinlog.runtime.config_key import Finding, Port, Positive, live, no_effect, refused, used
from twinlog.runtime.server_config import NO_THREADS, ServerConfig

CONTROLLER_PORT = 9878
LEASE_MS_MIN = 500
_OWN_LEASES = "brokers hold leases here, see twinlogLeaseMs"
_OWN_STORE = "twinlog's controller keeps its records in one small file"


class ControllerConfig(ServerConfig, kw_only=True):
    """Everything a controller can be told. Made from a file by `load_controller_config`."""

    listen_port: Annotated[Port, used("Port on which brokers and operators are served.")] = (
        CONTROLLER_PORT
    )
    controller_store_path: Annotated[
        str, used("Directory in which the controller keeps its records of groups and elections.")
    ] = os.path.join(os.path.expanduser("~"), "DledgerController")
    controller_d_leger_group: Annotated[
        str, used("Name of the group of controllers, shown to operators.")
    ] = "default-group"
    controller_d_leger_peers: Annotated[
        str | None,
        used("The controllers, n0-host:port. At most one: several cannot share a log here."),
    ] = None
    controller_d_leger_self_id: Annotated[
        str, used("Which of the controllers this one is, shown to operators.")
    ] = "n0"
    enable_elect_unclean_master: Annotated[
        bool,
        refused(
            "Elect a replica that is not in sync when no other is left.",
            "such an election may lose messages that were answered: here an operator asks for it,"
            " for one group by its name. Remove the key",
        ),
    ] = False
    notify_broker_role_changed: Annotated[
        bool,
        live("Tell brokers of an election at once, rather than with their next sign of life."),
    ] = True
    twinlog_lease_ms: Annotated[
        Annotated[int, Meta(ge=LEASE_MS_MIN, le=60_000)],
        used(
            "How long a master may go on without word from the controller, in ms. No other master"
            " is elected before that time is over."
        ),
    ] = 2_000
    twinlog_controller_etcd: Annotated[
        str,
        refused(
            "Address of an etcd in which several controllers share their state.",
            "several controllers on etcd are not there yet; remove the key to start",
        ),
    ] = ""

    # Of Apache's implementation.
    controller_type: Annotated[
        str, no_effect("Which library of Apache's replicates the controllers' log.", _OWN_STORE)
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
        int, no_effect("Size of one file of the controllers' log, in bytes.", _OWN_STORE)
    ] = 1024 * 1024 * 1024
    is_process_read_event: Annotated[
        bool, no_effect("Put reads into the controllers' log.", _OWN_STORE)
    ] = False

    def check(self) -> list[Finding]:
        """What no single value can show."""
        peers = [peer for peer in (self.controller_d_leger_peers or "").split(";") if peer]
        if len(peers) < 2:
            return []
        reason = "controllers do not share their state here; name one peer at most"
        return [Finding("controllerDLegerPeers", reason)]
