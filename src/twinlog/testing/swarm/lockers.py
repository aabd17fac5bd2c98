"""Members of a group that consumes in order: who has locked a queue works in it alone.

Each believes in a lock for 30 s from the moment it asked, as RocketMQ's clients do; a broker keeps
it for 60 s from the last renewal. They are orderly: who gives a queue back waits for the answer,
and takes it no more when none comes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from twinlog.testing.group.load import TOPIC
from twinlog.testing.group.rpc import Rpc
from twinlog.testing.swarm.clients import Router
from twinlog.testing.swarm.node import NAME

if TYPE_CHECKING:
    from twinlog.testing.swarm.sim import Swarm

LOCK, UNLOCK = 41, 42
BELIEF_S = 30.0


class Locker:
    """`until_s`: how long it works in which queue. It lives and dies with nobody else."""

    def __init__(self, swarm: Swarm, rpc: Rpc, name: str, *, is_stale: bool) -> None:
        self._swarm = swarm
        self._rpc = rpc
        self._name = name
        self._router = Router(swarm, rpc, is_stale=is_stale)
        self._left: set[int] = set()
        self.until_s: dict[int, float] = {}

    async def run(self) -> None:
        rng = self._swarm.rng
        while True:
            await asyncio.sleep(rng.uniform(0.3, 1.5))
            if self._router.master is None:
                await self._router.refresh()
            elif rng.random() < 0.1:
                await self._give_back(self._router.master)
            else:
                await self._take(self._router.master)

    async def _take(self, address: str) -> None:
        swarm, asked_s = self._swarm, self._swarm.loop.now_s
        wanted = [n for n in range(swarm.world.queue_count) if n not in self._left]
        answer = await self._rpc.call(address, LOCK, {}, self._body(wanted))
        if answer.code != 0:
            await self._router.refresh()
            return
        granted = [queue["queueId"] for queue in json.loads(answer.body)["lockOKMQSet"]]
        for queue_id in granted:
            self.until_s[queue_id] = asked_s + BELIEF_S
            swarm.checks.locked(self, self._name, queue_id)
        for queue_id in set(wanted) - set(granted):
            self.until_s.pop(queue_id, None)

    async def _give_back(self, address: str) -> None:
        held = sorted(self.until_s)
        self.until_s.clear()
        if held and (await self._rpc.call(address, UNLOCK, {}, self._body(held))).code != 0:
            self._left.update(held)  # It may arrive at any time, and undo a later lock.
            await self._router.refresh()

    def _body(self, queues: list[int]) -> bytes:
        named = [{"topic": TOPIC, "brokerName": NAME, "queueId": n} for n in queues]
        body = {"consumerGroup": "ordered", "clientId": self._name, "mqSet": named}
        return json.dumps(body).encode()
