"""Groups with a controller: who decides, what is known, switches and changes by an operator.

The controllers are named by the caller, by a name server that has one inside, or by the brokers'
`controllerAddr`. Questions go to the one that leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from twinlog.admin.brokers import broker_config, read_properties
from twinlog.admin.client import Admin, Gathered, gather
from twinlog.client.errors import (
    BrokerBusyError,
    ClientError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    UnreadableAnswerError,
    UsageError,
)
from twinlog.client.net.answers import body_as
from twinlog.remoting.addresses import split_address, split_addresses
from twinlog.remoting.bodies.controller import (
    ControllerGroups,
    ElectMasterResponseBody,
    Events,
    GroupFacts,
)
from twinlog.remoting.bodies.twinlog import NameServerInfo
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Header, Request
from twinlog.remoting.headers import controller as headers
from twinlog.runtime.event_journal import event_time

T = TypeVar("T")
NO_CONTROLLER = "no controller is known here"
SWITCH_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 2_000
BUSY_LIMIT_S = 2.0
BUSY_PAUSE_S = 0.1
IN_SYNC_POLL_S = 0.2
"""For all that a status asks brokers: one that hangs does not make it old."""


class ControllerMetadata(msgspec.Struct, frozen=True):
    """Answer to 1005."""

    address: str
    group: str
    leader_id: str
    leader_address: str
    is_leader: bool
    peers: tuple[str, ...]
    is_twinlog: bool


class Master(msgspec.Struct, frozen=True):
    """Who leads a group after a switch or an election."""

    broker_id: int | None
    address: str
    epoch: int
    members: tuple[int, ...]


async def find_controllers(admin: Admin, given: str | None = None) -> list[str]:
    """Addresses of controllers; empty when nobody knows one."""
    if given:
        addresses = split_addresses(given)
        for address in addresses:
            try:
                split_address(address)
            except ValueError as error:
                raise UsageError(f"--controller: {error}") from None
        return addresses
    return list(dict.fromkeys(await _of_name_servers(admin) or await _of_brokers(admin)))


async def _of_name_servers(admin: Admin) -> list[str]:
    async def ask(address: str) -> str:
        answer = await admin.ask(address, RequestCode.TWINLOG_INFO, action="name server")
        return body_as(answer, NameServerInfo).controller

    found = await gather(admin.instance.name_servers.addresses, ask)
    return [address for address in found.values.values() if address]


async def _of_brokers(admin: Admin) -> list[str]:
    """One broker of each group is asked; its file names the controllers it follows."""
    try:
        cluster = await admin.cluster()
    except ClientError:
        return []
    found = await gather(cluster.readable_addresses(), lambda a: broker_config(admin, a))
    return [
        address
        for config in found.values.values()
        if config.get("enableControllerMode") == "true"
        for address in split_addresses(config.get("controllerAddr", ""))
    ]


async def metadata(
    admin: Admin, address: str, *, timeout_ms: float | None = None
) -> ControllerMetadata:
    answer = await admin.ask(
        address, RequestCode.CONTROLLER_GET_METADATA_INFO, action="controller metadata",
        timeout_ms=timeout_ms,
    )  # fmt: skip
    header = answer.header(headers.ControllerMetadataResponseHeader)
    return ControllerMetadata(
        address=address,
        group=header.group or "",
        leader_id=header.controller_leader_id or "",
        leader_address=header.controller_leader_address or "",
        is_leader=header.is_leader,
        peers=tuple(split_addresses(header.peers or "")),
        is_twinlog=header.twinlog is not None,
    )


async def leader(admin: Admin, addresses: Sequence[str], *, timeout_ms: float | None = None) -> str:
    """The controller that decides now. All are asked side by side, within `timeout_ms`.

    Raises:
        UsageError: no controller is known.
        ClientError: none of them answers, or none leads.
    """
    if not addresses:
        raise UsageError(f"{NO_CONTROLLER}: give its address with --controller HOST:PORT")
    found = await gather(addresses, lambda a: metadata(admin, a, timeout_ms=timeout_ms))
    for answer in found.values.values():
        if answer.leader_address:
            return answer.address if answer.is_leader else answer.leader_address
    found.all_or_raise()
    text = f"none of the controllers {', '.join(addresses)} leads now: is their etcd reachable?"
    raise ClientError(text)


class Observed(msgspec.Struct, frozen=True):
    """Groups as their controller sees them once everybody has been asked."""

    groups: list[GroupFacts]
    events: list[dict[str, Any]]
    silent: frozenset[str]
    """Brokers that it hears, and that did not answer in time."""
    elsewhere: dict[str, str]
    """Addresses of replicas that it does not hear, and what lives there, in words."""


class Controllers:
    """The controllers of a cluster, with the one that leads."""

    def __init__(self, admin: Admin, addresses: Sequence[str], leading: str) -> None:
        self._admin = admin
        self.addresses = list(addresses)
        self.leader = leading

    @classmethod
    async def find(cls, admin: Admin, given: str | None = None) -> Controllers:
        addresses = await find_controllers(admin, given)
        return cls(admin, addresses, await leader(admin, addresses))

    async def ask(
        self, code: int, header: Header | None = None, *, action: str, timeout_ms: int | None = None
    ) -> Request:
        """A controller is busy while it writes another change of the group, for instance an
        admission, or hears its master for the first time: it is asked again for a moment."""
        try:
            for _ in range(int(BUSY_LIMIT_S / BUSY_PAUSE_S)):
                try:
                    return await self._ask_once(code, header, action, timeout_ms)
                except BrokerBusyError:
                    await asyncio.sleep(BUSY_PAUSE_S)
            return await self._ask_once(code, header, action, timeout_ms)
        except BrokerBusyError as error:  # A controller has no load: its remark says all.
            raise ClientError(f"{action} refused by {self.leader}: {error.remark}") from error
        except RequestCodeNotSupportedError as error:
            if code < RequestCode.TWINLOG_INFO:
                raise
            raise UsageError(f"{self.leader} is not a twinlog controller: {error}") from error

    async def _ask_once(
        self, code: int, header: Header | None, action: str, timeout_ms: int | None
    ) -> Request:
        return await self._admin.ask(
            self.leader, code, header, action=action, timeout_ms=timeout_ms
        )

    async def groups(self) -> list[GroupFacts]:
        answer = await self.ask(RequestCode.TWINLOG_GROUPS, action="groups")
        return sorted(_decoded(answer, ControllerGroups).groups, key=lambda g: g.broker_name)

    async def group(self, name: str) -> GroupFacts:
        groups = await self.groups()
        for group in groups:
            if group.broker_name == name:
                return group
        known = ", ".join(group.broker_name for group in groups) or "none"
        raise UsageError(f"the controller knows no group {name!r}; there is: {known}")

    async def switch(self, group: GroupFacts, target: int) -> Master:
        """Hand over: the master drains, then `target` is elected."""
        header = headers.ElectMasterRequestHeader(
            group.cluster, group.broker_name, target, designate_elect=True
        )
        return await self._elect(header, "switch")

    async def elect(self, group: GroupFacts) -> Master:
        header = headers.ElectMasterRequestHeader(group.cluster, group.broker_name)
        return await self._elect(header, "election")

    async def elect_unclean(self, group: GroupFacts, typed: str, target: int | None) -> Master:
        header = headers.ElectMasterRequestHeader(
            group.cluster,
            group.broker_name,
            -1 if target is None else target,
            designate_elect=target is not None,
            twinlog_unclean=typed,
        )
        return await self._elect(header, "unclean election")

    async def _elect(self, header: headers.ElectMasterRequestHeader, action: str) -> Master:
        answer = await self.ask(
            RequestCode.CONTROLLER_ELECT_MASTER,
            header,
            action=action,
            timeout_ms=SWITCH_TIMEOUT_MS,
        )
        master = answer.header(headers.MasterResponseHeader)
        members = body_as(answer, ElectMasterResponseBody).sync_state_set
        return Master(
            master.master_broker_id,
            master.master_address or "",
            master.master_epoch or 0,
            tuple(sorted(members)),
        )

    async def set_learner(self, name: str, broker_id: int, *, is_learner: bool) -> None:
        header = headers.SetLearnerRequestHeader(name, broker_id, is_learner)
        action = "drain" if is_learner else "undrain"
        await self.ask(RequestCode.TWINLOG_SET_LEARNER, header, action=action)

    async def wait_until_in_sync(self, name: str, broker_id: int, limit_s: float) -> bool:
        """Whether a replica is a member of the set before the time is over."""
        for _ in range(1 + int(limit_s / IN_SYNC_POLL_S)):
            if _is_member(await self.group(name), broker_id):
                return True
            await asyncio.sleep(IN_SYNC_POLL_S)
        return False

    async def remove(self, group: GroupFacts, broker_id: int) -> None:
        header = headers.CleanBrokerDataRequestHeader(
            group.cluster, group.broker_name, str(broker_id)
        )
        await self.ask(RequestCode.CLEAN_BROKER_DATA, header, action="removal")

    async def adopt(self, name: str, typed: str) -> None:
        header = headers.AdoptRequestHeader(name, typed)
        await self.ask(RequestCode.TWINLOG_ADOPT, header, action="adoption")

    async def events(
        self, name: str | None = None, *, since_ms: int | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The journals of all controllers and of the brokers that keep one, merged by time."""
        header = headers.EventsRequestHeader(broker_name=name, since=since_ms, limit=limit)
        found = await self._ask_journals(await self._journals(name, await self.groups()), header)
        merged = _merged(found)
        return merged if limit is None else merged[-limit:]

    async def observe(self) -> Observed:
        """All at once and within one time; the controller is asked last, so that what it says is
        not older than the answers that were waited for."""
        before = await self.groups()
        journals = await self._journals(None, before)
        found, elsewhere = await asyncio.gather(
            self._ask_journals(
                journals, headers.EventsRequestHeader(), timeout_ms=STATUS_TIMEOUT_MS
            ),
            self._elsewhere(before, journals),
        )
        silent = {a for a, e in found.failures.items() if isinstance(e, RequestTimeoutError)}
        groups = await self.groups()
        latest = await self._ask_journals([self.leader], headers.EventsRequestHeader())
        found.values.update(latest.values)  # What was decided while others were waited for.
        return Observed(groups, _merged(found), frozenset(silent), elsewhere)

    async def _elsewhere(self, groups: list[GroupFacts], ours: list[str]) -> dict[str, str]:
        """Who is not heard may live, and follow another controller or none."""
        replicas = [(group, replica) for group in groups for replica in group.replicas]
        living = {replica.address for _, replica in replicas if replica.is_alive}
        absent = {r.address: g for g, r in replicas if r.address and r.address not in living}

        async def ask(address: str) -> str:
            answer = await self._admin.ask(
                address, RequestCode.GET_BROKER_CONFIG, action="settings",
                timeout_ms=STATUS_TIMEOUT_MS,
            )  # fmt: skip
            return _what_lives(read_properties(answer.body), absent[address], ours)

        return (await gather(absent, ask)).values

    async def _ask_journals(
        self,
        addresses: list[str],
        header: headers.EventsRequestHeader,
        timeout_ms: int | None = None,
    ) -> Gathered[list[dict[str, Any]]]:
        async def ask(address: str) -> list[dict[str, Any]]:
            answer = await self._admin.ask(
                address, RequestCode.TWINLOG_EVENTS, header, action="events", timeout_ms=timeout_ms
            )
            return [{**event, "from": address} for event in _decoded(answer, Events).events]

        found = await gather(addresses, ask)
        if self.leader in found.failures:
            raise found.failures[self.leader]
        return found

    async def _journals(self, name: str | None, groups: Iterable[GroupFacts]) -> list[str]:
        peers = (await metadata(self._admin, self.leader)).peers
        controllers = [peer.partition("-")[2] for peer in peers]
        replicas = [
            replica.address
            for group in groups
            if name in (None, group.broker_name)
            for replica in group.replicas
            if replica.is_alive
        ]
        return list(dict.fromkeys([self.leader, *self.addresses, *controllers, *replicas]))


def _what_lives(config: dict[str, str], group: GroupFacts, ours: list[str]) -> str:
    """At the address of a replica of `group`, by its settings."""
    name, cluster = config.get("brokerName", ""), config.get("brokerClusterName", "")
    if (name, cluster) != (group.broker_name, group.cluster):
        return f"is replaced at its address by broker {name} of cluster {cluster}"
    if config.get("enableControllerMode") != "true":
        return "is alive, but its file names no controller"
    followed = config.get("controllerAddr", "")
    if not set(split_addresses(followed)) & set(ours):
        return f"is alive, but follows the controller {followed}"
    return "is alive, but this controller does not hear it"


def _merged(found: Gathered[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    merged = [event for events in found.values.values() for event in events]
    merged.sort(key=lambda event: event_time(event))
    return merged


# What brokers and controllers write that says nothing about who has what and who leads.
_NOT_HA = frozenset(
    {
        "configuration-changed", "contained-error", "damage-found", "damage-lost", "disk-level",
        "index-differs", "index-healed", "name-server-started", "name-server-stopping",
        "queue-healed", "range-differs", "requests-refused", "store-healed",
        "table-healed", "table-lost", "table-not-saved", "table-saved",
    }
)  # fmt: skip


def about_ha(events: Iterable[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """The last `limit` of those that are about replication and its masters."""
    found = [event for event in events if event.get("event") not in _NOT_HA]
    return found if limit is None else found[-limit:]


def _is_member(group: GroupFacts, broker_id: int) -> bool:
    return any(replica.broker_id == broker_id and replica.is_member for replica in group.replicas)


def present_master(group: GroupFacts) -> Master | None:
    """Who leads, if it is heard; a master that is silent may not come back as one."""
    members = tuple(sorted(replica.broker_id for replica in group.replicas if replica.is_member))
    for replica in group.replicas:
        if replica.broker_id == group.master_broker_id and replica.is_alive:
            return Master(replica.broker_id, replica.address, group.master_epoch, members)
    return None


def choose_target(group: GroupFacts) -> int:
    """Whom to switch to unless the operator says: the member that has the most.

    Raises:
        ClientError: no other member is alive.
    """
    others = [
        replica
        for replica in group.replicas
        if replica.is_member and replica.is_alive and replica.broker_id != group.master_broker_id
    ]
    if not others:
        raise ClientError(
            f"no other replica of {group.broker_name} is in sync and alive: nothing to switch to"
        )
    best = max(others, key=lambda r: (r.is_writable, r.end or 0, -r.priority, -r.broker_id))
    return best.broker_id


def _decoded(answer: Request, wanted: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableAnswerError(f"an answer of the controller: {error}") from error
