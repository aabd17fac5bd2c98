"""Clients of a controlled group: some refresh their route on every error, some every 30 s only."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING

from twinlog.testing.group.ledger import NOTHING_STORED, SEND_OK, Sent
from twinlog.testing.group.load import (
    COMMIT,
    FOUND,
    GROUP,
    NOT_FOUND,
    OFFSET_MOVED,
    PULL,
    QUERY_OFFSET,
    SEND,
    TOPIC,
    WRONG_NUMBER,
    send_request,
)
from twinlog.testing.group.records import messages
from twinlog.testing.group.rpc import Answer, Rpc
from twinlog.testing.history_check import Poll

if TYPE_CHECKING:
    from twinlog.testing.swarm.sim import Swarm

GET_ROUTE = 105
NAMED = "TBW102"  # The topic that every broker has from the first moment.
STALE_S = 30.0
_ADDRESSES = re.compile(rb'"brokerAddrs":\{([^}]*)\}')
_ADDRESS = re.compile(rb'"?(\d+)"?:"([^"]+)"')


class Router:
    """Who is the master, as far as a client knows."""

    def __init__(self, swarm: Swarm, rpc: Rpc, *, is_stale: bool = False) -> None:
        self._swarm = swarm
        self._rpc = rpc
        self._is_stale = is_stale
        self._asked_s = -STALE_S
        self.addresses: dict[int, str] = {}

    @property
    def master(self) -> str | None:
        return self.addresses.get(0)

    async def refresh(self) -> None:
        """After an error, or because of one's age."""
        now_s = self._swarm.loop.now_s
        if self._is_stale and self.master is not None and now_s - self._asked_s < STALE_S:
            return
        self._asked_s = now_s
        await self.ask(self._swarm.rng.choice(self._swarm.namesrv_addresses))

    async def ask(self, address: str) -> None:
        """One name server."""
        answer = await self._rpc.call(address, GET_ROUTE, {"topic": NAMED})
        found = _ADDRESSES.search(answer.body) if answer.code == 0 else None
        if found is not None:
            pairs = _ADDRESS.findall(found.group(1))
            self.addresses = {int(number): text.decode() for number, text in pairs}


class SwarmProducer:
    """Sends each message once, whatever comes back."""

    def __init__(self, swarm: Swarm, rpc: Rpc, *, is_stale: bool) -> None:
        self._swarm = swarm
        self._rpc = rpc
        self._router = Router(swarm, rpc, is_stale=is_stale)
        self._is_refused = True

    async def run(self) -> None:
        swarm = self._swarm
        while True:
            await asyncio.sleep(swarm.rng.uniform(0, 2 * swarm.world.put_pause_s))
            if self._is_refused or self._router.master is None:
                await asyncio.sleep(0.05)
                await self._router.refresh()
                self._is_refused = False
            address = self._router.master
            if address is None:
                continue
            batch = [self._new() for _ in range(swarm.rng.choice((1, 1, 2, 4)))]
            requests = [
                (SEND, send_request(sent), sent.body, partial(self._answered, sent))
                for sent in batch
            ]
            await self._rpc.send(address, requests)

    def _new(self) -> Sent:
        swarm = self._swarm
        queue_id = swarm.rng.randrange(swarm.world.queue_count)
        filler = b"." * swarm.rng.randint(0, swarm.world.body_size_max)
        return swarm.ledger.new(TOPIC, queue_id, filler, swarm.loop.now_s, is_once=False)

    def _answered(self, sent: Sent, answer: Answer) -> None:
        swarm = self._swarm
        if answer.code == SEND_OK:
            note_ok(swarm, sent, answer)
            return
        self._is_refused = True
        if answer.code in NOTHING_STORED:
            sent.status = "refused"
        if answer.code != -1:
            swarm.trace(f"{sent.text()} was answered {answer.code} {answer.remark}")


class SwarmRepeater:
    """Numbers its messages and sends each again until it is SEND_OK, sometimes after that, too."""

    def __init__(self, swarm: Swarm, rpc: Rpc) -> None:
        self._swarm = swarm
        self._rpc = rpc
        self._router = Router(swarm, rpc)
        self._epoch = self._number = 0
        self._sent: Sent | None = None

    async def run(self) -> None:
        swarm = self._swarm
        while True:
            await asyncio.sleep(swarm.rng.uniform(0, 2 * swarm.world.put_pause_s))
            if self._router.master is None:
                await self._router.refresh()
                continue
            sent = self._sent
            if sent is None or (sent.status == "ok" and swarm.rng.random() < 0.7):
                self._number = 0 if sent is None else self._number + 1
                filler = b"." * swarm.rng.randint(0, swarm.world.body_size_max)
                sent = swarm.ledger.new(TOPIC, 0, filler, swarm.loop.now_s, is_once=True)
                self._sent = sent
            await self._send(self._router.master, sent)

    async def _send(self, address: str, sent: Sent) -> None:
        swarm = self._swarm
        mark = f"repeater,{self._epoch},{self._number},{sent.queue_id},{TOPIC}"
        ext = send_request(sent, f"TWINLOG_ONCE\x01{mark}\x02")
        answer = await self._rpc.call(address, SEND, ext, sent.body)
        if answer.code == SEND_OK:
            note_ok(swarm, sent, answer)
            return
        swarm.trace(f"repeated {sent.text()} was answered {answer.code} {answer.remark}")
        if answer.code in WRONG_NUMBER:
            self._sent, self._epoch = None, self._epoch + 1  # One before it is lost.
        else:
            await self._router.refresh()


def note_ok(swarm: Swarm, sent: Sent, answer: Answer) -> None:
    """What a producer knows of a message that is stored."""
    sent.status, sent.ok_s = "ok", swarm.loop.now_s
    sent.offset = int(answer.ext["msgId"][16:], 16)
    swarm.places[sent.number] = int(answer.ext["queueOffset"])
    swarm.trace(f"{sent.text()} SEND_OK")


class SwarmConsumer:
    """One group on one topic; reads at the master, now and then at a slave."""

    def __init__(self, swarm: Swarm, rpc: Rpc) -> None:
        self._swarm = swarm
        self._rpc = rpc
        self._router = Router(swarm, rpc)
        self._positions: dict[int, int] = {}
        self._session = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            await self.turn()

    def restart(self) -> None:
        """Another process goes on for the group: it knows what was committed, no more."""
        self._positions.clear()
        self._session += 1

    async def turn(self) -> bool:
        """Pull each queue once and commit; whether all of them were at their end."""
        if self._router.master is None:
            await self._router.refresh()
        address = self._router.master
        if address is None:
            return False
        is_at_end = True
        for queue_id in range(self._swarm.world.queue_count):
            if queue_id not in self._positions and not await self._begin(address, queue_id):
                is_at_end = False
                continue
            is_at_end &= await self._pull(address, queue_id)
        return is_at_end

    def _queue(self, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}

    async def _begin(self, address: str, queue_id: int) -> bool:
        answer = await self._rpc.call(address, QUERY_OFFSET, self._queue(queue_id))
        if answer.code not in (FOUND, NOT_FOUND):
            await self._router.refresh()
            return False
        position = int(answer.ext["offset"]) if answer.code == FOUND else 0
        self._positions.setdefault(queue_id, position)
        self._swarm.trace(f"consumer begins at {position} of queue {queue_id}")
        self._swarm.checks.resumed(queue_id, position)
        return True

    async def _pull(self, address: str, queue_id: int) -> bool:
        position, session = self._positions[queue_id], self._session
        others = sorted(self._router.addresses.values())
        is_aside = self._swarm.rng.random() < 0.1
        asked = self._swarm.rng.choice(others) if is_aside else address
        ext = {
            **self._queue(queue_id), "queueOffset": str(position), "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = await self._rpc.call(asked, PULL, ext)
        if session != self._session:
            return False
        if answer.code == FOUND:
            await self._take(address, queue_id, position, answer)
        elif answer.code == OFFSET_MOVED and asked == address:
            # This queue alone: two whose beginnings expired would send each other back forever.
            self._session += 1  # It may go back.
            following = int(answer.ext["nextBeginOffset"])
            self._swarm.checks.moved(asked, queue_id, position, following)
            self._positions[queue_id] = following
        elif answer.code not in (19, 20, OFFSET_MOVED):
            await self._router.refresh()
        return answer.code in (19, 20) and asked == address

    async def _take(self, address: str, queue_id: int, position: int, answer: Answer) -> None:
        swarm = self._swarm
        if swarm.checks.is_beginning_anew:
            self.restart()
            return
        following = int(answer.ext["nextBeginOffset"])
        records = tuple((record.queue_offset, record.body) for record in messages(answer.body))
        session = f"c{self._session}"
        swarm.history.polls.append(Poll(session, queue_id, position, records, following))
        self._positions[queue_id] = following
        swarm.trace(f"consumer at {following} of queue {queue_id}")
        if swarm.rng.random() < 0.7:
            ext = {**self._queue(queue_id), "commitOffset": str(following)}
            swarm.checks.committed(queue_id, following)  # Taken, perhaps, also without an answer.
            if (await self._rpc.call(address, COMMIT, ext)).code == 0:
                swarm.checks.commit_answered(queue_id, following)
