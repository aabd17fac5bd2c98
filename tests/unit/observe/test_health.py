"""The one function that decides health: a row for each fact that matters."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from twinlog.observe.health import (
    SILENT_MS_MAX,
    Code,
    DecidedFacts,
    DiskFacts,
    Facts,
    GroupFacts,
    Level,
    MissingFacts,
    ReplicaFacts,
    RivalFacts,
    ServerFacts,
    SlaveFacts,
    SyncLimits,
    judge,
    judge_group,
    judge_server,
    sync_limits,
    why_not_in_sync,
)


def group(**changes: Any) -> GroupFacts:
    facts: dict[str, Any] = {
        "name": "broker-a",
        "master_address": "h:1",
        "replicas": (ReplicaFacts("h:2"),),
        "registered_slaves": 1,
    }
    return GroupFacts(**{**facts, **changes})


def server(**changes: Any) -> ServerFacts:
    return ServerFacts(**{"kind": "broker", "name": "broker-a:0", "address": "h:1", **changes})


BEHIND = ReplicaFacts("h:2", is_in_sync=False, lag_bytes=10)
PROBE = ReplicaFacts("h:9", is_slave=False, is_in_sync=False, lag_bytes=100)
REFUSED = ReplicaFacts("h:9", is_slave=False, is_in_sync=False, reason="reported too much")
FULL = DiskFacts("/store", 0.93, 0.75, 0.90)

# (facts of a group, (level, code) of each finding, a part of the worst one's text)
GROUPS: list[tuple[GroupFacts, list[tuple[Level, Code]], str]] = [
    (group(), [], ""),
    (group(replicas=(BEHIND,)), [(Level.PROBLEM, Code.SLAVE_NOT_IN_SYNC)], "h:2 is 10 bytes"),
    (group(replicas=(ReplicaFacts("h:2"), PROBE)), [], ""),
    (group(replicas=(PROBE,), registered_slaves=0),
     [(Level.WARNING, Code.NOT_REPLICATED)], "nothing is replicated"),
    (group(replicas=(PROBE,)), [(Level.PROBLEM, Code.NO_SLAVE)], "no slave is connected"),
    (group(replicas=(ReplicaFacts("h:2"), REFUSED)),
     [(Level.WARNING, Code.SLAVE_REFUSED)], "h:9 is not taken as a slave: reported too much"),
    (group(replicas=(REFUSED,)),
     [(Level.PROBLEM, Code.NO_SLAVE), (Level.WARNING, Code.SLAVE_REFUSED)],
     "no slave is connected, one is refused: reported too much"),
    (group(replicas=(), registered_slaves=0), [(Level.WARNING, Code.NOT_REPLICATED)], ""),
    (group(replicas=(), registered_slaves=0, role="SYNC_MASTER"),
     [(Level.PROBLEM, Code.NO_SLAVE)], "no slave is connected"),
    (group(replicas=(), registered_slaves=0, needed_slaves=1),
     [(Level.PROBLEM, Code.NO_SLAVE)], ""),
    (group(replicas=(), registered_slaves=0, departed_reason="reset"),
     [(Level.PROBLEM, Code.NO_SLAVE)], "the last one left: reset"),
    (group(registered_slaves=2), [(Level.PROBLEM, Code.SLAVE_MISSING)], "1 of 2 registered"),
    (group(missing=(MissingFacts("h/2", "reset", "at noon"),)),
     [(Level.PROBLEM, Code.SLAVE_MISSING)],
     "slave h/2 left at noon and has not returned: reset"),
    (group(missing=(MissingFacts("h/2"),), replicas=(), registered_slaves=0, departed_reason="x"),
     [(Level.PROBLEM, Code.NO_SLAVE)], "the last one left: x"),  # Said once.
    (group(needed_slaves=2), [(Level.PROBLEM, Code.SLAVE_MISSING)], "a send needs 2"),
    (group(replicas=(BEHIND,), needed_slaves=1),
     [(Level.PROBLEM, Code.SLAVE_NOT_IN_SYNC)], ""),  # Said once.
    (group(incomplete="lacks 5 bytes"), [(Level.PROBLEM, Code.LOG_INCOMPLETE)], "lacks 5 bytes"),
    (group(master_address=None, replicas=()),
     [(Level.PROBLEM, Code.NO_MASTER)], "no master is registered, 1 slave(s) serve reads"),
    (group(master_address=None, replicas=(), registered_slaves=0),
     [(Level.PROBLEM, Code.NO_MASTER)], "no master is registered"),
    (group(master_address=None, replicas=(), last_seen="at noon"),
     [(Level.PROBLEM, Code.NO_MASTER)], "last seen at noon"),
    (group(master_error="refused", replicas=()),
     [(Level.PROBLEM, Code.MASTER_DOWN)], "the master does not answer: refused"),
    (group(rivals=(RivalFacts(0, "h:1", "h:7"),) * 2),
     [(Level.PROBLEM, Code.TWO_MASTERS)], "two masters: h:1 is in the route, h:7 is not"),
    (group(rivals=(RivalFacts(2, "h:1", "h:7"),)),
     [(Level.PROBLEM, Code.TWO_MASTERS)], "two slaves with id 2"),
    (group(slaves=(SlaveFacts("h:2"),)), [], ""),
    (group(slaves=(SlaveFacts("h:2", damage="differs at 7"),)),
     [(Level.PROBLEM, Code.SLAVE_STOPPED)], "slave h:2 does not go on: differs at 7"),
    (group(slaves=(SlaveFacts("h:2", metadata_problems=("does not take x",)),)),
     [(Level.PROBLEM, Code.METADATA_NOT_TAKEN)], "slave h:2 does not take x"),
    (group(slaves=(SlaveFacts("h:2", is_linked=False, link_reason="refused"),)),
     [(Level.PROBLEM, Code.SLAVE_NOT_LINKED)], "h:2 has no connection to its master: refused"),
    (group(slaves=(SlaveFacts("h:2", is_linked=False, damage="differs at 7"),)),
     [(Level.PROBLEM, Code.SLAVE_STOPPED)], ""),  # It does not dial any more.
    (group(slaves=(SlaveFacts("h:2", is_linked=False, metadata_problems=("does not take x",)),)),
     [(Level.PROBLEM, Code.SLAVE_NOT_LINKED)], ""),  # The tables come over the same way.
    # Without a master nobody is linked and no table is taken: that is said once.
    (group(master_address=None, replicas=(),
           slaves=(SlaveFacts("h:2", is_linked=False, metadata_problems=("does not take x",)),)),
     [(Level.PROBLEM, Code.NO_MASTER)], "1 slave(s) serve reads"),
    (group(master_error="refused", replicas=(), slaves=(SlaveFacts("h:2", is_linked=False),)),
     [(Level.PROBLEM, Code.MASTER_DOWN)], ""),
    (group(decided="DEGRADED: replica 3 is down"), [(Level.PROBLEM, Code.CONTROLLER)], "3 is down"),
]  # fmt: skip

SERVERS: list[tuple[ServerFacts, list[tuple[Level, Code]], str]] = [
    (server(), [], ""),
    (server(error="refused"), [(Level.PROBLEM, Code.BROKER_DOWN)],
     "broker broker-a:0 at h:1 does not answer"),
    (ServerFacts(kind="name server", name="h:9", address="h:9", error="refused"),
     [(Level.PROBLEM, Code.NAME_SERVER_DOWN)], "name server h:9 does not answer"),
    (ServerFacts(kind="controller", name="h:9", error="refused"),
     [(Level.PROBLEM, Code.CONTROLLER_DOWN)], "controller h:9 does not answer"),
    (server(refusal="disk full", disks=(FULL,)),
     [(Level.PROBLEM, Code.SENDS_REFUSED)], "refuses messages: disk full"),
    (server(refusal="disk full", disks=(FULL,), is_slave=True),
     [(Level.PROBLEM, Code.SENDS_REFUSED)], "could take no messages as the master: disk full"),
    (server(refusal="the log is broken"), [(Level.PROBLEM, Code.SENDS_REFUSED)], "broken"),
    # Above the limit and not refusing: the store decides that, a ratio does not.
    (server(disks=(FULL,)), [(Level.WARNING, Code.DISK_NEARLY_FULL)], "93 % full"),
    (server(disks=(DiskFacts("/store", 0.80),)),
     [(Level.WARNING, Code.DISK_NEARLY_FULL)], "messages are refused above 90 %"),
    (server(disks=(DiskFacts("/store", 0.74),)), [], ""),
    (server(disks=(DiskFacts("/store", -1.0),)), [], ""),
    (server(unsaved=("topics: no space",)),
     [(Level.PROBLEM, Code.NOT_SAVED)], "cannot save topics: no space"),
    (server(loop_lag_ms=501), [(Level.WARNING, Code.LOOP_BLOCKED)], "for 501 ms"),
    (server(loop_lag_ms=500), [], ""),
    (server(error="refused", refusal="full", loop_lag_ms=9_999),
     [(Level.PROBLEM, Code.BROKER_DOWN)], ""),  # Old facts of a dead server are not told.
]  # fmt: skip


@pytest.mark.parametrize(("facts", "expected", "text"), GROUPS)
def test_group(facts: GroupFacts, expected: list[tuple[Level, Code]], text: str) -> None:
    health = judge_group(facts)
    assert [(finding.level, finding.code) for finding in health.findings] == expected
    assert health.is_healthy == all(level is not Level.PROBLEM for level, _ in expected)
    assert text in (health.findings[0].text if health.findings else "")
    assert all(finding.next_step for finding in health.findings)


@pytest.mark.parametrize(("facts", "expected", "text"), SERVERS)
def test_server(facts: ServerFacts, expected: list[tuple[Level, Code]], text: str) -> None:
    health = judge_server(facts)
    assert [(finding.level, finding.code) for finding in health.findings] == expected
    assert text in (health.findings[0].text if health.findings else "")
    assert all(finding.next_step for finding in health.findings)


def test_every_code_is_in_a_table() -> None:
    seen = {code for _, codes, _ in (*GROUPS, *SERVERS) for _, code in codes}
    assert seen | {Code.TOO_FEW_BROKERS} == set(Code)


def test_findings_of_parts_are_those_of_the_whole_and_the_worst_is_first() -> None:
    """The whole never hides what a part shows, whatever is joined with it."""
    for (one, of_one, _), (other, of_other, _) in itertools.product(GROUPS, SERVERS):
        health = judge(Facts(servers=(other,), groups=(one,)))
        found = sorted((f.level, f.code) for f in health.findings)
        assert found == sorted(of_one + of_other)
        levels = [finding.level for finding in health.findings]
        assert levels == sorted(levels, key=[Level.PROBLEM, Level.WARNING, Level.OK].index)
        assert health.level is (levels[0] if levels else Level.OK)


def test_a_controller_says_what_is_wrong_with_its_groups() -> None:
    decided = (DecidedFacts("a", ""), DecidedFacts("b", "DEGRADED: replica 3 is down"))
    (finding,) = judge(Facts(decided=decided)).findings
    assert (finding.code, finding.about) == (Code.CONTROLLER, "b")
    assert finding.text == "DEGRADED: replica 3 is down"


def test_what_to_do_without_a_master_depends_on_who_decides() -> None:
    steps = {
        judge_group(group(master_address=None, replicas=(), **changes)).findings[0].next_step
        for changes in ({}, {"is_controlled": True}, {"is_controlled": True, "decided": "x"})
    }
    assert len(steps) == 3
    assert sum("ha promote" in step for step in steps) == 1
    assert sum(step.startswith("start the controller") for step in steps) == 1


def test_a_frozen_group_is_not_left_to_its_controller() -> None:
    """The controller does nothing until somebody restores its state or adopts the group."""
    problem = "FROZEN: replica 1 knows epoch 4, this controller's record is of epoch 1"
    frozen = group(master_address=None, replicas=(), is_controlled=True, decided=problem)
    steps = [finding.next_step for finding in judge_group(frozen).findings]
    assert len(steps) == 2
    assert all(step.endswith("adopt the group") for step in steps), steps


def test_too_few_brokers() -> None:
    facts = Facts(servers=(server(), ServerFacts(kind="name server", name="n")), brokers_min=2)
    health = judge(facts)
    assert health.problems == ("1 broker, 2 are expected",)
    assert health.sentence("the cluster").startswith("the cluster is not healthy: 1 broker,")
    assert judge(Facts(servers=(server(),), brokers_min=1)).sentence("x") == "x is healthy"


def test_warnings_are_no_problems() -> None:
    health = judge_server(server(disks=(FULL,)))
    assert health.is_healthy
    assert health.problems == ()
    assert len(health.warnings) == 1


@pytest.mark.parametrize(
    ("lag", "silent", "expected"),
    [
        (0, 10**9, ""),  # Nothing waits for it: an idle pair is in sync.
        (1, SILENT_MS_MAX - 1, ""),
        (1, SILENT_MS_MAX, "has acknowledged nothing for 1500 ms while 1 bytes are waiting"),
        (99, 0, ""),
        (100, 0, "is 100 bytes behind, the limit is 100"),
        (100, 2000, "has acknowledged nothing for 2000 ms while 100 bytes are waiting"),
    ],
)
def test_in_sync(lag: int, silent: int, expected: str) -> None:
    assert why_not_in_sync(lag, silent, SyncLimits(100)) == expected


@pytest.mark.parametrize(
    ("unheard", "report", "is_in_sync"),
    [(10**9, 0, True), (5_999, 2_000, True), (6_000, 2_000, False), (2_800, 400, False)],
)
def test_one_that_has_everything_still_reports(unheard: int, report: int, is_in_sync: bool) -> None:
    """A stopped slave of an idle pair: nothing is waiting for it, and it says nothing."""
    why = why_not_in_sync(0, 0, SyncLimits(), unheard_ms=unheard, report_ms=report)
    assert (why == "") is is_in_sync
    if why:
        assert why == f"has said nothing for {unheard} ms, although it reports every {report} ms"


def test_the_shorter_time_counts() -> None:
    assert sync_limits(7, 15_000) == SyncLimits(7, 1_500)
    assert sync_limits(7, 300) == SyncLimits(7, 300)


def test_facts_travel_as_json() -> None:
    facts = server(disks=(FULL,), unsaved=("topics: x",), refusal="full", loop_lag_ms=3)
    data = msgspec.json.decode(msgspec.json.encode(facts))
    assert msgspec.convert(data, ServerFacts) == facts
