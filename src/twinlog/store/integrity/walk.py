"""The records of a piece of the log, one behind the other, and the entries that queues must have.

Used by the scrub and by `twinlog store verify`. Pure: bytes in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from twinlog.message.crc import crc32
from twinlog.message.layout import ENTRY, ENTRY_SIZE
from twinlog.message.names import SCHEDULE_TOPIC
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import ScanEntry, ScanStop, scan
from twinlog.message.sysflag import UNQUEUED_FLAG
from twinlog.runtime.compiled import load
from twinlog.store.recovery.dispatch import deliver_time

_compiled = load("twinlog.store.recovery._scan")
_ONE_BY_ONE: Final = 16 if _compiled is not None else 1 << 62


class Run(NamedTuple):
    """Entries that follow each other in one queue. In the schedule topic the times may differ."""

    topic: str
    queue_id: int
    first_number: int
    entries: bytes


class Walked(NamedTuple):
    """What was found from `start` on."""

    end: int  # Behind the last sound record.
    record_count: int
    runs: list[Run]
    stop: ScanStop
    reason: str
    size: int  # What the record at `end` says of its size.


def walk(data: bytes, offset: int, levels: Mapping[int, int]) -> Walked:
    """Check the records from the first byte of `data` on, which is `offset` of the log."""
    position, count = 0, 0
    runs: list[Run] = []
    while True:
        if _compiled is not None:
            plain = _compiled.scan_plain(data, position, offset + position, crc32, b"")
            if plain is not None:
                runs += [
                    Run(group.topic, group.queue_id, group.first_number, bytes(group.entries))
                    for group in plain.groups
                ]
                count += plain.count
                position = plain.end - offset
                continue
        found = scan(data, position, offset + position, count_max=_ONE_BY_ONE)
        runs += [_run(entry, levels) for entry in found.entries if not entry[4] & UNQUEUED_FLAG]
        count += len(found.entries)
        position = found.position
        if found.stop is not ScanStop.COUNT:
            return Walked(offset + position, count, runs, found.stop, found.reason, found.size)


def _run(entry: ScanEntry, levels: Mapping[int, int]) -> Run:
    offset, size, queue_id, queue_offset, _, stored_at, topic, properties = entry
    tags_code, _ = tags_and_keys(properties)
    if topic == SCHEDULE_TOPIC:
        due = deliver_time(properties, stored_at, levels)
        tags_code = tags_code if due is None else due
    return Run(topic, queue_id, queue_offset, ENTRY.pack(offset, size, tags_code))


def differing(run: Run, found: bytes) -> list[int]:
    """Numbers of the entries that are not as they must be; those behind `found` are not known."""
    if found == run.entries[: len(found)]:
        return []
    # What a delay level meant when the message was stored is not in the log: its time may differ.
    size = ENTRY_SIZE - 8 if run.topic == SCHEDULE_TOPIC else ENTRY_SIZE
    return [
        run.first_number + at // ENTRY_SIZE
        for at in range(0, len(found), ENTRY_SIZE)
        if found[at : at + size] != run.entries[at : at + size]
    ]
