"""What happens to a group under load, one function for each row of the table.

A fault gets the trial, does what its name says, and returns what it saw: `gap_s`, the longest time
without an acknowledgement; `in_sync_s`, from the restart of a replica until all are in sync again;
and what is particular to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from failover_groups import READY, TOPIC, Group, Host, ask
from failover_load import Acknowledged

from support.ha_load import Connection, send_command
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode

Seen = dict[str, Any]
_PAUSE_S = 8.0


@dataclass
class Trial:
    """One group under one load."""

    group: Group
    load: Acknowledged
    hosts: Sequence[Host] = ()
    notes: dict[str, Any] = field(default_factory=dict)

    async def master(self) -> Any:
        return await asyncio.to_thread(lambda: self.group.master)

    async def slave(self) -> Any:
        return await asyncio.to_thread(lambda: self.group.slaves[0])

    async def back_in_sync(self, *brokers: Any) -> float:
        """Seconds from the restart of these until everybody is in sync."""
        for broker in brokers:
            self.group.restart(broker)
        return await asyncio.to_thread(self.group.wait_in_sync)

    async def healed(self, *brokers: Any) -> Seen:
        """The gap so far, then the time until everybody is in sync again."""
        return {"gap_s": self.load.gap_s, "in_sync_s": await self.back_in_sync(*brokers)}


Fault = Callable[[Trial], Awaitable[Seen]]


async def kill(trial: Trial) -> Seen:
    master = await trial.master()
    trial.load.mark()
    master.kill()
    await trial.load.more()
    return await trial.healed(master)


async def kill_and_restart(trial: Trial) -> Seen:
    """A supervisor starts the killed broker again at once; clients keep their old route."""
    master = await trial.master()
    trial.load.mark()
    master.kill()
    trial.group.restart(master)
    await trial.load.more(20)
    return await trial.healed()


async def pause(trial: Trial) -> Seen:
    master = await trial.master()
    trial.load.mark()
    master.suspend()
    await asyncio.sleep(_PAUSE_S)
    master.resume()
    await trial.load.more()
    return await trial.healed()


async def cut(trial: Trial) -> Seen:
    master = await trial.master()
    host = trial.hosts[master.number]
    trial.load.mark()
    host.cut()
    await asyncio.sleep(_PAUSE_S)
    host.mend()
    await trial.load.more()
    return await trial.healed()


async def kill_all(trial: Trial) -> Seen:
    """The gap counts from the moment when the second process serves again; besides, from its
    start."""
    brokers = list(trial.group.brokers)
    for broker in brokers:
        broker.kill()
    started = time.monotonic()
    again = [trial.group.restart(broker) for broker in brokers]
    ready = READY[trial.group.make]
    for broker in again:
        await asyncio.to_thread(broker.wait_for_text, ready, deadline_s=90)
    trial.load.restart_clock()
    ready_s = time.monotonic() - started
    await trial.load.more(1)
    gap_s = trial.load.gap_s
    whole_s = time.monotonic() - started
    in_sync_s = await trial.back_in_sync()
    return {
        "gap_s": gap_s, "ready_s": ready_s, "from_start_s": whole_s, "in_sync_s": in_sync_s,
    }  # fmt: skip


async def kill_with_controller(trial: Trial) -> Seen:
    master = await trial.master()
    trial.load.mark()
    trial.group.controller.kill()
    master.kill()
    await asyncio.sleep(3)
    await asyncio.to_thread(trial.group.restart_controller)
    await trial.load.more()
    return await trial.healed(master)


async def kill_with_namesrv(trial: Trial) -> Seen:
    """Back after four seconds; the gap counts from the start of its process."""
    master = await trial.master()
    trial.group.namesrv.kill()
    master.kill()
    await asyncio.sleep(4)
    trial.load.restart_clock()
    await asyncio.to_thread(trial.group.restart_namesrv)
    await trial.load.more(1)
    gap_s = trial.load.gap_s
    await trial.load.more()
    return {"gap_s": gap_s, "in_sync_s": await trial.back_in_sync(master)}


async def switch(trial: Trial) -> Seen:
    refused = len(trial.load.refused)
    trial.load.mark()
    await asyncio.to_thread(trial.group.switch)
    await trial.load.more()
    gap_s = trial.load.gap_s
    in_sync_s = await trial.back_in_sync()
    return {
        "gap_s": gap_s, "in_sync_s": in_sync_s, "refused": len(trial.load.refused) - refused,
    }  # fmt: skip


async def lose_two(trial: Trial) -> Seen:
    """`minInSyncReplicas=2` and one of three left: what a send is told, and whether it is kept."""
    slaves = await asyncio.to_thread(lambda: trial.group.slaves)
    address = (await trial.master()).address
    for slave in slaves:
        slave.kill()
    code, remark, grown = await asyncio.to_thread(_refusal, address)
    return {
        "code": code, "remark": remark, "stored_bytes": grown,
        "in_sync_s": await trial.back_in_sync(*slaves),
    }  # fmt: skip


def _refusal(address: str) -> tuple[int, str, int]:
    """The first answer that says that nothing was stored, and by how much the log grew for it."""
    connection = Connection(address, timeout_s=20)
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            before = _log_end(connection)
            answer = _call(connection, send_command(b"0", topic=TOPIC))
            if answer.code not in (0, 10, 11, 12):
                return answer.code, answer.remark or "", _log_end(connection) - before
    finally:
        connection.close()
    return 0, "taken", 0


def _call(connection: Connection, command: Any) -> Any:
    opaque = connection.send(command)
    while True:
        answer = connection.receive()
        if answer.opaque == opaque:
            return answer


def _log_end(connection: Connection) -> int:
    body = connection.call(RequestCode.GET_BROKER_RUNTIME_INFO).body
    return int(fastjson.loads(body)["table"]["commitLogMaxOffset"])


async def offsets(trial: Trial) -> Seen:
    """A consumer commits its place twenty times per second; how old is what the next master has."""
    master = await trial.master()
    committed: list[tuple[float, int]] = []
    await asyncio.to_thread(_commit_for, master.address, 3.0, committed)
    trial.load.mark()
    master.kill()
    await trial.load.more()
    gap_s = trial.load.gap_s
    address = (await trial.master()).address
    found = await asyncio.to_thread(_committed, address)
    last_s, last = committed[-1]
    when = max((at for at, value in committed if value <= found), default=committed[0][0])
    return {
        "gap_s": gap_s, "back_s": last_s - when, "forward": max(0, found - last),
        "in_sync_s": await trial.back_in_sync(master),
    }  # fmt: skip


_PLACE = {"consumerGroup": "offsets", "topic": TOPIC, "queueId": "0"}


def _commit_for(address: str, seconds: float, committed: list[tuple[float, int]]) -> None:
    connection = Connection(address)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            header = {"topic": TOPIC, "queueId": "0"}
            value = int(connection.call(RequestCode.GET_MAX_OFFSET, header).ext()["offset"])
            header = {**_PLACE, "commitOffset": str(value)}
            connection.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)
            committed.append((time.monotonic(), value))
            time.sleep(0.05)
    finally:
        connection.close()


def _committed(address: str) -> int:
    answer = ask(address, RequestCode.QUERY_CONSUMER_OFFSET, _PLACE)
    return int(answer.ext()["offset"]) if answer.code == 0 else 0


async def kill_slave(trial: Trial) -> Seen:
    slave = await trial.slave()
    unknown = trial.load.unknown
    trial.load.mark()
    slave.kill()
    await trial.load.more(200)
    gap_s = trial.load.gap_s
    unknown = trial.load.unknown - unknown
    return {"gap_s": gap_s, "unknown": unknown, "in_sync_s": await trial.back_in_sync(slave)}


async def pause_slave(trial: Trial) -> Seen:
    slave = await trial.slave()
    unknown = trial.load.unknown
    trial.load.mark()
    slave.suspend()
    await asyncio.sleep(5)
    slave.resume()
    await trial.load.more()
    gap_s = trial.load.gap_s
    unknown = trial.load.unknown - unknown
    return {"gap_s": gap_s, "unknown": unknown, "in_sync_s": await trial.back_in_sync()}


async def old_route(trial: Trial) -> Seen:
    """Twenty sends to the master of before, while another one leads."""
    master = await trial.master()
    await asyncio.to_thread(trial.group.switch)
    await trial.load.more(1)
    codes = await asyncio.to_thread(_sends, master.address, 20, trial)
    return {"codes": codes, "in_sync_s": await trial.back_in_sync()}


def _sends(address: str, count: int, trial: Trial) -> list[int]:
    connection = Connection(address, timeout_s=20)
    codes = []
    base = len(trial.notes.setdefault("relayed", []))
    try:
        for number in range(count):
            body = b"old-%d" % (base + number)
            answer = _call(connection, send_command(body, topic=TOPIC))
            codes.append(answer.code)
            trial.notes["relayed"].append(body)
            if answer.code == ResponseCode.SUCCESS:
                trial.load.note(body)
    finally:
        connection.close()
    return codes


def controller_away(seconds: float) -> Fault:
    async def run(trial: Trial) -> Seen:
        refused, unknown = len(trial.load.refused), trial.load.unknown
        trial.group.controller.kill()
        trial.load.mark()
        await asyncio.sleep(seconds)
        gap_s = trial.load.gap_s
        await asyncio.to_thread(trial.group.restart_controller)
        return {
            "gap_s": gap_s, "refused": len(trial.load.refused) - refused,
            "unknown": trial.load.unknown - unknown, "in_sync_s": await trial.back_in_sync(),
        }  # fmt: skip

    return run


async def rejoin_with_tail(trial: Trial) -> Seen:
    """An ASYNC_MASTER answers for half a second while its slave stands still. Both are killed, and
    the slave comes back first: what it never got is the tail of the old master."""
    master, slave = await trial.master(), await trial.slave()
    slave.suspend()
    await trial.load.more(100)
    trial.load.mark()
    master.kill()
    slave.kill()
    trial.group.restart(slave)
    await trial.load.more(200)
    gap_s = trial.load.gap_s
    in_sync_s = await trial.back_in_sync(master)
    cuts = sorted((master.store / "twinlog").glob("cut-*"))
    return {"gap_s": gap_s, "in_sync_s": in_sync_s, "files": len(cuts)}
