"""What keys of a controlled group's files do: each in a group of brokers that run."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.local_brokers import until
from support.local_group import LocalGroup, local_group
from twinlog.remoting.codes import ResponseCode


@pytest.mark.parametrize(("priorities", "elected"), [((5, 1), "third"), ((1, 5), "second")])
async def test_of_equal_logs_that_of_the_smaller_priority_is_elected(
    tmp_path: Path, priorities: tuple[int, int], elected: str
) -> None:
    """A master that is stopped asks for its heir by name: as an election would choose it."""
    async with local_group(tmp_path) as group:
        first = await group.start("first")
        await until(lambda: first.role.is_master)
        others = {
            name: await group.start(name, broker_election_priority=priority)
            for name, priority in zip(("second", "third"), priorities, strict=True)
        }
        await group.in_sync(3)
        await until(lambda: len({end_at_controller(group, n) for n in (1, 2, 3)}) == 1)
        await group.brokers.end(first)
        await until(lambda: any(broker.role.is_master for broker in others.values()))
        assert [name for name, broker in others.items() if broker.role.is_master] == [elected]


def end_at_controller(group: LocalGroup, n: int) -> int | None:
    """How long a replica's log is, as the controller knows it."""
    assert group.controller.core is not None
    report = group.controller.core.groups["broker-a"].liveness.get(n)
    return None if report is None else report.heartbeat.end


async def test_a_slave_that_relays_nothing_refuses_sends(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(twinlog_relay_ms=0)
        before = first.store.commit_log.max_offset
        answer = await group.brokers.send(second, b"by an old route")
        assert answer.code != ResponseCode.SUCCESS
        assert "slave" in answer.remark
        assert first.store.commit_log.max_offset == before
