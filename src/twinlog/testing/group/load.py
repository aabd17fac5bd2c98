"""Producers and consumers of a simulated group. They know what a client may know, and note it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from twinlog.testing.group.ledger import NOTHING_STORED, SEND_OK, Committed, Sent
from twinlog.testing.group.records import messages
from twinlog.testing.group.rpc import Answer, Rpc

if TYPE_CHECKING:
    from twinlog.testing.group.sim import GroupSimulation

TOPIC = "T"
GROUP = "g"
SEND, PULL, QUERY_OFFSET, COMMIT, MAX_OFFSET = 310, 11, 14, 15, 30
FOUND, OFFSET_MOVED, NOT_FOUND = 0, 21, 22
SYSTEM_ERROR = 1
FULL_DISK = ("No space left", "disk full")  # RocketMQ's code for it is that of a fault, too.
FLUSH_SLAVE_TIMEOUT = 12
GAP = 10_010
WRONG_NUMBER = (10_010, 10_011, 10_012, 10_013)
IN_FLIGHT_MAX = 4


def send_request(sent: Sent, properties: str = "") -> dict[str, str]:
    return {
        "a": "p", "b": sent.topic, "c": "TBW102", "d": "2", "e": str(sent.queue_id), "f": "0",
        "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


class Producer:
    """Sends without waiting, several in one packet, and never again."""

    def __init__(self, sim: GroupSimulation, rpc: Rpc) -> None:
        self.sim = sim
        self.rpc = rpc

    async def run(self) -> None:
        sim = self.sim
        while True:
            await asyncio.sleep(sim.rng.uniform(0, 2 * sim.world.put_pause_s))
            count = sim.rng.choice((1, 1, 2, 4))
            batch = [self.new_message() for _ in range(count)]
            requests = [
                (SEND, send_request(sent), sent.body, partial(self.answered, sent))
                for sent in batch
            ]
            await self.rpc.send(sim.master.address, requests)

    def new_message(self, *, is_once: bool = False, queue_id: int | None = None) -> Sent:
        sim = self.sim
        queue_id = sim.rng.randrange(sim.world.queue_count) if queue_id is None else queue_id
        filler = b"." * sim.rng.randint(0, sim.world.body_size_max)
        return sim.ledger.new(TOPIC, queue_id, filler, sim.loop.now_s, is_once)

    def answered(self, sent: Sent, answer: Answer) -> None:
        if answer.code not in (SEND_OK, -1):
            self.sim.trace(f"{sent.text()} was answered {answer.code} {answer.remark}")
        if answer.code == SEND_OK:
            self.sim.answered_ok(sent, answer.ext)
        elif answer.code == SYSTEM_ERROR and not any(w in answer.remark for w in FULL_DISK):
            self.sim.fail(f"{sent.text()} was answered with an internal error: {answer.remark}")
        elif answer.code in NOTHING_STORED and not sent.is_once and sent.status == "unknown":
            sent.status = "refused"


class OnceProducer(Producer):
    """Numbers its messages and sends each again until it is SEND_OK, sometimes after that too."""

    def __init__(self, sim: GroupSimulation, rpc: Rpc, name: str, queue_id: int) -> None:
        super().__init__(sim, rpc)
        self._name = name
        self._queue_id = queue_id
        self._epoch = 0
        self._sent: list[Sent] = []
        self._open = 0
        self._is_confused = False
        self._uncopied: set[int] = set()
        self.is_ending = False

    async def run(self) -> None:
        sim = self.sim
        while not (self.is_ending and not self._unknown()):
            await asyncio.sleep(sim.rng.uniform(0, 4 * sim.world.put_pause_s))
            if sim.are_producers_silent:
                continue
            if self._is_confused:
                self._begin_again()
            numbers = self._unknown()[:IN_FLIGHT_MAX]
            while len(numbers) < IN_FLIGHT_MAX and sim.rng.random() < 0.5 and not self.is_ending:
                numbers.append(len(self._sent))
                self._sent.append(self.new_message(is_once=True, queue_id=self._queue_id))
            if self._sent and sim.world.has_repeats and sim.rng.random() < 0.3:
                numbers.insert(0, sim.rng.randrange(len(self._sent)))
                sim.ledger.repeat_count += 1
            await self._send(sorted(set(numbers)))

    def _unknown(self) -> list[int]:
        return [n for n, sent in enumerate(self._sent) if not self._is_answered(sent)]

    def _is_answered(self, sent: Sent) -> bool:
        """Whether a repeat would bring nothing more."""
        return sent.status == "ok" or sent.number in self._uncopied

    def _begin_again(self) -> None:
        """What a producer does that is told that its numbers are not known."""
        self._is_confused = False
        self._epoch += 1
        self._sent = []

    async def _send(self, numbers: list[int]) -> None:
        done = asyncio.Event()
        self._open = len(numbers)
        requests = []
        for number in numbers:
            sent = self._sent[number]
            mark = f"{self._name},{self._epoch},{number},{self._queue_id},{TOPIC}"
            ext = send_request(sent, f"TWINLOG_ONCE\x01{mark}\x02")
            requests.append((SEND, ext, sent.body, partial(self._one_answered, sent, done)))
        if requests:
            await self.rpc.send(self.sim.master.address, requests)
            await done.wait()

    def _is_first(self, sent: Sent) -> bool:
        """Whether all before it were answered for good: then the broker has lost one of them."""
        before = self._sent[: self._sent.index(sent)] if sent in self._sent else []
        if not before or any(not self._is_answered(other) for other in before):
            return False
        # A master that was started with an empty disk takes a repeat of number 0 for the first, and
        # says the truth about the others: it has lost them. So does a classic copy that began with
        # its master's last file.
        master = self.sim.master
        excused = [
            o for o in before if o.is_excused or (master.is_classic and master.began_later(o))
        ]
        if not self.sim.is_wiped and not excused:
            self.sim.fail(f"{sent.text()} is told that one before it is missing; all were OK (I1)")
        return True

    def _stays_unconfirmed(self, sent: Sent) -> bool:
        """Whether 12 is the truth and stays so. No repeat brings a copy that begins behind it; and
        of one whose place is forgotten, as others follow in more runs than are kept, a master
        knows only that it may be in what the copies lack."""
        sim = self.sim
        place = sim.master.place_of(sent)
        is_old = len(self._sent) - self._sent.index(sent) > sim.world.runs_max
        return sim.lacks_copies(place) or (is_old and place >= 0 and sim.lacks_copies(0))

    def _one_answered(self, sent: Sent, done: asyncio.Event, answer: Answer) -> None:
        if answer.code in WRONG_NUMBER[1:] or (answer.code == GAP and self._is_first(sent)):
            self._is_confused = True
        if self.is_ending and answer.code == FLUSH_SLAVE_TIMEOUT and self._stays_unconfirmed(sent):
            self._uncopied.add(sent.number)
        self.answered(sent, answer)
        self._open -= 1
        if not self._open:
            done.set()


class Consumer:
    """One group with one member: pulls every queue of the topic from the master, commits."""

    def __init__(self, sim: GroupSimulation, rpc: Rpc) -> None:
        self.sim = sim
        self.rpc = rpc
        self.delivered: set[bytes] = set()
        self.committed: dict[int, Committed] = {}
        self._positions: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            if not self.sim.is_consumer_silent:
                await self.turn()

    def restart(self) -> None:
        """Another process goes on for the group: it knows what was committed, no more."""
        self._positions.clear()

    async def turn(self) -> bool:
        """Pull each queue once and commit; whether all of them were at their end."""
        if self.sim.is_wiped:
            return False  # What that master has is not what the group read on in.
        is_at_end = True
        for queue_id in range(self.sim.world.queue_count):
            position = self._positions.get(queue_id)
            if position is None:
                position = await self._ask(queue_id)
            if position is None:
                is_at_end = False
                continue
            is_at_end &= await self._pull(queue_id, position)
        return is_at_end

    def _queue(self, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}

    async def _ask(self, queue_id: int) -> int | None:
        answer = await self.rpc.call(self.sim.master.address, QUERY_OFFSET, self._queue(queue_id))
        known = self.committed.get(queue_id)
        if answer.code == FOUND:
            position = int(answer.ext["offset"])
            if known is not None:
                self._check_told(queue_id, position, known)
        elif answer.code == NOT_FOUND:
            self.committed.pop(queue_id, None)
            if known is not None and self.sim.is_saved(known.first_s):
                self.sim.fail(f"group {GROUP} starts again on queue {queue_id} (I12)")
            position = 0
        else:
            return None
        self.sim.trace(f"consumer begins at {position} of queue {queue_id}")
        self._positions.setdefault(queue_id, position)
        return self._positions[queue_id]

    def _check_told(self, queue_id: int, position: int, known: Committed) -> None:
        """What was committed long enough ago to be saved is known, or what was committed after it,
        which is less where the group was sent back; a log that lost its end, and with it the
        queue's, takes offsets along."""
        sim = self.sim
        later = [offset for told_s, offset in known.history if not sim.is_saved(told_s)]
        saved = [
            offset
            for told_s, offset in known.history
            if sim.is_saved(told_s) and sim.master.lost_s < told_s
        ]
        if saved and position < min([saved[-1], *later]):
            sim.fail(f"group {GROUP} committed {saved[-1]} of queue {queue_id}, {position} is known"
                     " (I12)")  # fmt: skip

    async def _pull(self, queue_id: int, position: int) -> bool:
        ext = {
            **self._queue(queue_id), "queueOffset": str(position), "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        answer = await self.rpc.call(self.sim.master.address, PULL, ext)
        if self._positions.get(queue_id) != position:
            return False  # Restarted meanwhile.
        if answer.code == FOUND:
            for record in messages(answer.body):
                self.delivered.add(record.body)
                self.sim.delivered(record)
        elif answer.code != OFFSET_MOVED:
            return answer.code in (19, 20)
        position = int(answer.ext["nextBeginOffset"])
        self._positions[queue_id] = position
        self.sim.trace(f"consumer at {position} of queue {queue_id} code {answer.code}")
        if self.sim.rng.random() < 0.7:
            await self._commit(queue_id, position)
        return False

    async def _commit(self, queue_id: int, position: int) -> None:
        ext = {**self._queue(queue_id), "commitOffset": str(position)}
        answer = await self.rpc.call(self.sim.master.address, COMMIT, ext)
        if answer.code == 0:
            now_s = self.sim.loop.now_s
            known = self.committed.get(queue_id)
            if known is None:
                known = self.committed[queue_id] = Committed(position, now_s)
            known.offset = position
            known.history.append((now_s, position))
