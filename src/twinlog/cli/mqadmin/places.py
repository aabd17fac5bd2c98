"""`-b` and `-c`: which brokers a verb is about. `-b` wins, as with Apache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.cli.exit_codes import UNHEALTHY, USAGE, CommandError
from twinlog.cli.mqadmin.java import hash_order

if TYPE_CHECKING:
    from twinlog.admin.client import ClusterInfo
    from twinlog.cli.mqadmin.startup import Call


def one_of_places(call: Call) -> None:
    if "b" not in call.options and "c" not in call.options:
        raise CommandError("give -b (brokerAddr) or -c (clusterName)", USAGE)


async def masters(call: Call, cluster: str | None = None) -> list[str]:
    """The broker of -b, else the masters of the cluster, in the order of Java's sets."""
    if cluster is None:
        address = call.options.get("b")
        if address is not None:
            return [address]
        cluster = call.options.text("c")
    info = await call.admin.cluster()
    found = info.masters(cluster)
    if not found:
        raise CommandError(f"cluster {cluster!r} has no master now", UNHEALTHY)
    return hash_order(found)


async def all_addresses(call: Call) -> list[str]:
    """The broker of -b, else masters and slaves of the cluster."""
    address = call.options.get("b")
    if address is not None:
        return [address]
    info = await call.admin.cluster()
    return hash_order(info.addresses(call.options.text("c")))


def cluster_names(info: ClusterInfo) -> dict[str, str]:
    """The cluster of each broker name."""
    return {name: cluster for cluster, names in info.clusters.items() for name in names}
