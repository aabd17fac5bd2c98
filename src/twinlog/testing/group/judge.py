"""The verdict over a group that is at rest: from its disks and from what clients were told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from twinlog.testing.group.load import TOPIC
from twinlog.testing.group.node import GroupNode
from twinlog.testing.group.records import Found, LogImage

if TYPE_CHECKING:
    from twinlog.testing.group.sim import GroupSimulation


class Judge:
    """Calls `sim.fail` for everything that does not hold."""

    def __init__(self, sim: GroupSimulation) -> None:
        self._sim = sim

    def logs(self) -> None:
        """I1, I2, I3, I7: the logs are one log, with all that was promised, and nothing else."""
        sim = self._sim
        image = sim.master.image()
        for slave in sim.slaves:
            self._same(slave, slave.image(), image)
        start = max([image.start] + [slave.image().start for slave in sim.slaves])
        self._promises(image, start)
        self._genuine(image)
        self._queue_offsets(image)

    def _same(self, slave: GroupNode, mine: LogImage, its: LogImage) -> None:
        if mine.end != its.end:
            self._sim.fail(f"{slave.name} ends at {mine.end}, its master at {its.end} (I7)")
        start, end = max(mine.start, its.start), min(mine.end, its.end)
        if mine.read(start, end) != its.read(start, end):
            self._sim.fail(f"{slave.name} differs from its master in [{start}, {end}) (I7)")

    def _promises(self, image: LogImage, start: int) -> None:
        there = {record.body: record.offset for record in image.records}
        for sent in self._sim.ledger.promised():
            offset = there.get(sent.body)
            if offset is None and sent.offset >= (start or -1):
                self._sim.fail(f"{sent.text()} was answered SEND_OK and is gone (I1)")
            elif offset is not None and sent.offset not in (-1, offset):
                self._sim.fail(f"{sent.text()} is at {offset} (I6)")

    def _genuine(self, image: LogImage) -> None:
        sim = self._sim
        counts = Counter(record.body for record in image.records if record.topic == TOPIC)
        for body, count in counts.items():
            sent = sim.ledger.by_body.get(body)
            if sent is None:
                sim.fail(f"nobody sent {body[:20]!r} (I2)")
            elif sent.status == "refused":
                sim.fail(f"{sent.text()} was refused and is stored (I3)")
            elif count > 1:
                sim.fail(f"{sent.text()} is stored {count} times (I4)")

    def _queue_offsets(self, image: LogImage) -> None:
        """I6: in each queue one record for each offset, without a hole."""
        next_offsets: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], Found] = {}
        for record in image.records:
            key = (record.topic, record.queue_id)
            expected = next_offsets.get(key, record.queue_offset if image.start else 0)
            starts_again = self._starts_again(record, last.get(key))
            last[key] = record
            if record.queue_offset != expected and not starts_again:
                self._sim.fail(
                    f"queue {key} goes from {expected - 1} to {record.queue_offset}"
                    f" at {record.offset} (I6)"
                )
            next_offsets[key] = record.queue_offset + 1

    def _starts_again(self, record: Found, last: Found | None) -> bool:
        """Whether the queue was begun again by a master whose own log has nothing of it: a classic
        copy starts with its master's last file."""
        return (
            last is not None
            and record.queue_offset == 0
            and any(
                last.offset < start and end <= record.offset for start, end in self._sim.promoted
            )
        )

    def queues(self) -> None:
        """I13: every entry of every consume queue of every node is what its log says."""
        for node in self._sim.nodes:
            image = node.image()
            wanted: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
            last: dict[tuple[str, int], Found] = {}
            for record in image.records:
                key = (record.topic, record.queue_id)
                if self._starts_again(record, last.get(key)):
                    wanted[key] = {}
                last[key] = record
                wanted.setdefault(key, {})[record.queue_offset] = (record.offset, record.size)
            found = {(topic, queue): entries for topic, queue, entries in node.queues()}
            for key, entries in wanted.items():
                mine = {n: e for n, e in found.get(key, {}).items() if e[0] >= image.start}
                if mine != entries:
                    wrong = sorted(set(mine.items()) ^ set(entries.items()))[:2]
                    self._sim.fail(f"{node.name} queue {key} is not its log's: {wrong} (I13)")

    def consumer(self) -> None:
        """L3: what was promised was given to the group."""
        sim = self._sim
        start = max(node.image().start for node in sim.nodes)
        for sent in sim.ledger.promised():
            is_retired = start > 0 and (sent.offset < start)
            if sent.body not in sim.consumer.delivered and not is_retired:
                sim.fail(f"{sent.text()} was answered SEND_OK and never given to the group (L3)")
