"""Who is connected: producers and consumers of all brokers."""

from __future__ import annotations

import msgspec

from twinlog.admin.brokers import producers
from twinlog.admin.client import Admin, Gathered, gather
from twinlog.admin.groups import list_groups, members_of_many
from twinlog.remoting.codes import version_description


class Connection(msgspec.Struct, frozen=True):
    """One client in one group."""

    kind: str  # producer or consumer
    group: str
    client_id: str
    address: str
    language: str
    version: str


async def connections(admin: Admin) -> Gathered[list[Connection]]:
    """Everybody who is connected now. `failures` are brokers that did not answer."""
    addresses = (await admin.cluster()).readable_addresses()
    asked = await gather(addresses, lambda address: producers(admin, address))
    found = {
        ("producer", entry.group, entry.client_id): Connection(
            "producer", entry.group, entry.client_id, entry.address, entry.language,
            version_description(entry.version),
        )
        for answer in asked.values.values()
        for entry in answer
    }  # fmt: skip
    configs = await list_groups(admin)
    names = sorted({name for table in configs.values.values() for name in table})
    for name, members in (await members_of_many(admin, names)).items():
        for member in members.members:
            found["consumer", name, member.client_id] = Connection(
                "consumer", name, member.client_id, member.address, member.language,
                version_description(member.version),
            )  # fmt: skip
    ordered = [found[key] for key in sorted(found)]
    return Gathered({"": ordered}, {**asked.failures, **configs.failures})
