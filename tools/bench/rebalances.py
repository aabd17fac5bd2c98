"""What the members of consumer groups cost one broker; a part of `make bench-routes`.

MEMBERS connections to a real broker process are the members of one consumer group. Measured are the
heartbeat of a member, the answer that lists all members (each member asks for it, per topic, every
20 s), and a change: one member leaves and comes back, the broker tells the others, and each of them
asks for the list. From this follows what CLIENTS consumers in groups of that size ask of a broker
that has its share of them.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from typing import Any

import clusters

from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand

GROUP = "rebalanced"
HEARTBEAT_S = 30
REBALANCE_S = 20  # So often a client looks for itself whether its group has changed.
_HEAD = struct.Struct(">i")
_DEADLINE_S = 120


class Member:
    """One consumer: what it is told is counted, and answered with a question for the list."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told = 0
        self.is_following = False
        self._answers: asyncio.Queue[int] = asyncio.Queue()

    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            (size,) = _HEAD.unpack(await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
            header = json.loads(frame[4 : 4 + (_HEAD.unpack(frame[:4])[0] & 0xFFFFFF)])
            if header["flag"] & 1:
                self._answers.put_nowait(header["code"])
            elif header["code"] == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                self.told += 1
                if self.is_following:
                    self._writer.write(_list())

    async def answers(self, count: int) -> None:
        for _ in range(count):
            code = await asyncio.wait_for(self._answers.get(), _DEADLINE_S)
            assert code == 0, f"member {self.number} was refused: {code}"

    async def ask(self, request: bytes) -> None:
        self._writer.write(request)
        await self.answers(1)

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()
        await asyncio.gather(self._task, return_exceptions=True)


def _list() -> bytes:
    header = {"consumerGroup": GROUP}
    return encode_command(RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header))


def _heartbeat(number: int) -> bytes:
    subscription = {
        "topic": "orders", "subString": "*", "subVersion": 1, "expressionType": "TAG",
        "classFilterMode": False, "tagsSet": [], "codeSet": [],
    }  # fmt: skip
    consumer = {
        "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
        "unitMode": False,
    }  # fmt: skip
    body = {
        "clientID": f"10.1.{number // 250}.{number % 250}@{number}",
        "consumerDataSet": [consumer], "producerDataSet": [],
    }  # fmt: skip
    request = RemotingCommand.request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
    return encode_command(request)


async def measure(address: str, pid: int, count: int) -> dict[str, Any]:
    """CPU of the broker in microseconds, and the seconds that a change takes for all."""

    def used() -> float:
        seconds: float = clusters.usages([pid])[pid].cpu_s
        return seconds * 1e6

    members = [Member(number) for number in range(count)]
    for member in members:
        await member.open(address)
        await member.ask(_heartbeat(member.number))
    figures: dict[str, Any] = {"members": count}
    rounds = max(1, 2_000 // count)
    for name, request in (("heartbeat", _heartbeat), ("list", lambda _: _list())):
        before = used()
        for _ in range(rounds):
            await asyncio.gather(*(member.ask(request(member.number)) for member in members))
        figures[f"{name}_us"] = (used() - before) / rounds / count
    figures |= await _change(address, members, used)
    for member in members:
        await member.close()
    return figures


async def _change(address: str, members: list[Member], used: Any) -> dict[str, float]:
    """The last one leaves and comes back: two changes, and each of the others asks twice."""
    *others, last = members
    for member in others:
        member.told, member.is_following = 0, True
    before, began = used(), time.monotonic()
    await last.close()
    await asyncio.gather(*(member.answers(1) for member in others))
    await last.open(address)
    await last.ask(_heartbeat(last.number))
    await asyncio.gather(*(member.answers(1) for member in others))
    return {"change_us": (used() - before) / 2, "change_s": (time.monotonic() - began) / 2}


def whole(figures: dict[str, Any], clients: int, topics_each: int, groups: int) -> dict[str, float]:
    """What one broker of `groups` has to do for its share of the clients."""
    share = clients * topics_each / groups
    return {
        "clients_a_broker": share,
        "cores_for_members": share * figures["heartbeat_us"] / HEARTBEAT_S / 1e6
        + share * figures["list_us"] / REBALANCE_S / 1e6,
    }
