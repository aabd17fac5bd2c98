"""Health is decided once: whoever asks is told the same, whatever the facts.

A group is generated as its brokers see it; what they answer goes over the wire's bodies to the
command line and to the console, and is compared with what the brokers say of themselves.
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from twinlog.admin.ha import GroupHAStatus
from twinlog.admin.ha_groups import group_of
from twinlog.admin.replicas import ReplicaFacts, facts_of
from twinlog.broker.stats.facts import master_facts
from twinlog.console.findings import findings
from twinlog.console.replication import group_view
from twinlog.ha.status import (
    ClientStatus,
    DepartedStatus,
    HAStatus,
    ReplicaStatus,
    runtime_info,
)
from twinlog.observe.health import (
    DiskFacts,
    Facts,
    GroupFacts,
    Health,
    Level,
    ServerFacts,
    SlaveFacts,
    judge,
)
from twinlog.observe.health import ReplicaFacts as Connection
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.ha import HAMarks, HARuntimeInfo

MASTER, SLAVE = "127.0.0.1:1000", "127.0.0.1:2000"
LEFT = DepartedStatus("127.0.0.1:9/2", 1, 2, 0, "closed by peer")
FULL = DiskFacts("/store", 0.93, 0.75, 0.90)


def connection(**changes: Any) -> ReplicaStatus:
    values: dict[str, Any] = {
        "address": "127.0.0.1:40000/1", "state": "TRANSFER", "ack_offset": 100, "next_offset": 100,
        "lag_bytes": 0, "lag_ms": 0, "bytes_per_second": 0, "since_ms": 1, "is_in_sync": True,
        "reason": "",
    }  # fmt: skip
    return ReplicaStatus(**{**values, **changes})


def leading(**changes: Any) -> HAStatus:
    values: dict[str, Any] = {
        "is_master": True, "role": "ASYNC_MASTER", "max_offset": 100, "confirmed_offset": 100,
        "listen_port": 1, "replicas": (connection(),),
    }  # fmt: skip
    return HAStatus(**{**values, **changes})


def following(state: str = "TRANSFER", damage: str = "") -> HAStatus:
    client = ClientStatus(MASTER, state, 100, 100, 0, 1, 1, 1, 1, "was closed", 1, damage)
    return HAStatus(False, "SLAVE", 100, 100, 1, client=client)


MASTERS = {
    "in sync": leading(),
    "behind": leading(replicas=(connection(is_in_sync=False, lag_bytes=7, reason="is silent"),)),
    "alone": leading(replicas=(), departed=(LEFT,), missing=(LEFT,)),
    "one missing": leading(departed=(LEFT,), missing=(LEFT,)),
    "too few": leading(role="SYNC_MASTER", needed_slaves=2),
    "incomplete": leading(incomplete="lacks 5 bytes"),
    "looked at": leading(replicas=(connection(), connection(address="h:9", is_slave=False))),
}
SLAVES = {
    "linked": following(),
    "alone": following("READY"),
    "damaged": following("SHUTDOWN", "differs at 7"),
}
SERVERS: dict[str, dict[str, Any]] = {
    "well": {},
    "full": {"refusal": "disk full", "disks": (FULL,)},
    "nearly full": {"disks": (FULL,)},
    "unsaved": {"unsaved": ("topics: no space",)},
    "blocked": {"loop_lag_ms": 9_999},
}
TABLES: dict[str, dict[str, str]] = {"taken": {}, "refused": {"metadataProblem topics": "too old"}}


def server(broker_id: int, kind: str) -> ServerFacts:
    address = SLAVE if broker_id else MASTER
    return ServerFacts(kind="broker", name=f"g:{broker_id}", address=address,
                       is_slave=broker_id > 0, **SERVERS[kind])  # fmt: skip


def answer(
    status: HAStatus, own: ServerFacts, metadata: dict[str, str], *, is_controlled: bool = False
) -> ReplicaFacts:
    """What a broker says when it is asked, as its body is read."""
    info = runtime_info(status)
    info.twinlog.metadata = metadata
    info.twinlog.is_controlled = is_controlled
    info.twinlog.marks = HAMarks(0, 100, 100, 100)
    info.twinlog.server = msgspec.to_builtins(own)
    said = fastjson.loads_as(fastjson.dumps(info), HARuntimeInfo)
    return facts_of(said, "g", int(own.is_slave), own.address)


def of_itself(status: HAStatus, own: ServerFacts, metadata: dict[str, str]) -> Health:
    """As metrics and the HTTP port of a broker have it."""
    if status.client is None:
        return judge(Facts(servers=(own,), groups=(master_facts("g", MASTER, status),)))
    slave = SlaveFacts(
        SLAVE, is_linked=status.client.state == "TRANSFER", damage=status.client.damage,
        metadata_problems=tuple(f"does not take {name}" for name in metadata),
    )  # fmt: skip
    itself = (Connection(SLAVE),)
    group = GroupFacts(name="g", master_address=MASTER, slaves=(slave,), replicas=itself)
    return judge(Facts(servers=(own,), groups=(group,)))


def in_the_console(members: list[ReplicaFacts]) -> bool:
    view = group_view("g", "c", members, [])
    return not any(f.level == Level.PROBLEM.value for f in findings(view, members))


def in_the_cluster(group: GroupHAStatus) -> Health:
    """As `cluster health`, `check` and `top` have it, besides name servers and controllers."""
    return judge(Facts(servers=group.servers, groups=(group.facts,)))


@pytest.mark.parametrize("of_master", MASTERS)
@pytest.mark.parametrize("of_slave", SLAVES)
def test_everybody_is_told_the_same(of_master: str, of_slave: str) -> None:
    for master_is, slave_is, tables in itertools.product(SERVERS, SERVERS, TABLES):
        leads, follows = server(0, master_is), server(1, slave_is)
        metadata = TABLES[tables]
        members = [
            answer(MASTERS[of_master], leads, {}),
            answer(SLAVES[of_slave], follows, metadata),
        ]
        group = group_of("g", members)
        case = (of_master, of_slave, master_is, slave_is, tables)
        said = (
            of_itself(MASTERS[of_master], leads, {}).is_healthy
            and of_itself(SLAVES[of_slave], follows, metadata).is_healthy
        )
        assert group.is_healthy == said, (case, group.sentence)
        assert in_the_cluster(group).is_healthy == said, case
        assert in_the_console(members) == said, case


@pytest.mark.parametrize("silent", [0, 1])
def test_one_that_does_not_answer_is_told_everywhere(silent: int) -> None:
    both = [answer(leading(), server(0, "well"), {}), answer(following(), server(1, "well"), {})]
    gone = ReplicaFacts(
        group="g", broker_id=silent, address=both[silent].address, error="no answer"
    )
    members = [gone if facts.broker_id == silent else facts for facts in both]
    group = group_of("g", members)
    assert not group.is_healthy
    assert not in_the_cluster(group).is_healthy
    assert not in_the_console(members)


def test_apache_brokers_are_compared_everywhere() -> None:
    """They say nothing of replication: the ends of their logs do."""
    for behind in (0, 7):
        members = [
            ReplicaFacts(group="g", broker_id=number, address=address, is_twinlog=False,
                         appended=100 - number * behind)
            for number, address in ((0, MASTER), (1, SLAVE))
        ]  # fmt: skip
        group = group_of("g", members)
        assert group.is_healthy == in_the_console(members) == (behind == 0), group.sentence


def test_what_a_controller_finds_is_told_everywhere() -> None:
    members = [
        answer(leading(), server(0, "well"), {}, is_controlled=True),
        answer(following(), server(1, "well"), {}, is_controlled=True),
    ]
    group = group_of("g", members)
    assert group.is_healthy
    assert not group.with_decided("DEGRADED: replica 3 is down").is_healthy
