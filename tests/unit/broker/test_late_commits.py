"""Commits that a slave passes on to its master, and a master that does not take them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from support.local_brokers import until
from twinlog.broker.pair.late_commits import CommitRelay
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.runtime.clock import SystemClock


class Answer(NamedTuple):
    code: int
    remark: str


class Master:
    """Refuses the first `refusals` tables, then takes what comes."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.taken: list[dict[str, Any]] = []

    async def invoke(self, _: str, command: RemotingCommand, __: int) -> Answer:
        assert command.code == RequestCode.TWINLOG_OFFSETS
        if self.refusals:
            self.refusals -= 1
            return Answer(ResponseCode.SYSTEM_ERROR, "AclException: who?")
        self.taken.append(fastjson.loads(bytes(command.body))["offsetTable"])
        return Answer(ResponseCode.SUCCESS, "")


async def test_commits_that_a_master_refuses_are_kept_for_it() -> None:
    master = Master(refusals=2)
    answers: list[str] = []
    relay = CommitRelay(
        client=master,  # type: ignore[arg-type]
        clock=SystemClock(),
        identity=dict,
        master_address=lambda: "m:1",
        takes_none=lambda: False,
        not_taken=lambda: None,
    )
    task = asyncio.get_running_loop().create_task(relay.run())
    try:
        relay.add("g", "t", 0, 7, lambda: answers.append("first"))
        await until(lambda: relay.problem)
        assert "AclException" in relay.problem
        relay.add("g", "t", 1, 9, lambda: answers.append("second"))
        await until(lambda: master.taken and not relay.problem)
    finally:
        task.cancel()
    assert master.taken == [{"t@g": {"0": 7, "1": 9}}]
    assert answers == ["first", "second"]
