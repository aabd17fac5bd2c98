"""The hash index of a store, read without its broker: where the messages of a key are.

Corresponds to RocketMQ's IndexService.queryOffset. A broker of ours keeps the slots of the newest
file in memory until the file is full, so of that file the entries themselves are searched; older
files are followed by their chains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from twinlog.message.hashing import index_key_hash
from twinlog.message.layout import INDEX_COUNT_AT, INDEX_HEADER_SIZE, INDEX_SLOT_SIZE
from twinlog.runtime.numbers import is_number
from twinlog.spark.decode.records import lay_out, topics
from twinlog.spark.errors import DataLossError, RecordCorruptError
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.store_view import StoreView

ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRIES_PER_SLOT = 4  # RocketMQ's default ratio, also when both numbers are changed together
HITS_MAX = 10_000  # of a hot key: beyond it, reading in order is cheaper than jumping


def index_offsets(directory: Path, topic: str, key: str) -> Iterator[int]:
    """Yield the physical offsets of a key's messages (and of keys with its hash), newest first."""
    wanted = index_key_hash(topic, key)
    for number, path in enumerate(reversed(_files(directory))):
        yield from _newest(path, wanted) if number == 0 else _chain(path, wanted)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*") if is_number(path.name))


def _slots(path: Path) -> int:
    return (path.stat().st_size - INDEX_HEADER_SIZE) // (
        INDEX_SLOT_SIZE + ENTRIES_PER_SLOT * ENTRY.itemsize
    )


def _newest(path: Path, wanted: int) -> list[int]:
    with path.open("rb") as file:
        count = int.from_bytes(file.read(INDEX_HEADER_SIZE)[INDEX_COUNT_AT:], "big")
        file.seek(INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * _slots(path))
        entries = np.frombuffer(file.read(ENTRY.itemsize * count), ENTRY)
    hits = entries["offset"][entries["hash"] == wanted]
    return [int(offset) for offset in hits[::-1]]


def _chain(path: Path, wanted: int) -> Iterator[int]:
    slots = _slots(path)
    with path.open("rb") as file:
        count = int.from_bytes(file.read(INDEX_HEADER_SIZE)[INDEX_COUNT_AT:], "big")
        file.seek(INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * (wanted % max(1, slots)))
        number = int.from_bytes(file.read(4), "big", signed=True)
        steps = 0
        while 0 < number <= count and steps <= count:
            file.seek(INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots + ENTRY.itemsize * number)
            entry = np.frombuffer(file.read(ENTRY.itemsize), ENTRY)[0]
            if int(entry["hash"]) == wanted:
                yield int(entry["offset"])
            number, steps = int(entry["previous"]), steps + 1


def covered(directory: Path) -> tuple[int, int]:
    """Return the physical offsets of the first and the last record that the index knows."""
    files = _files(directory)
    if not files:
        return 0, -1
    heads = []
    for path in (files[0], files[-1]):
        with path.open("rb") as file:
            heads.append(file.read(INDEX_HEADER_SIZE))
    return int.from_bytes(heads[0][16:24], "big"), int.from_bytes(heads[1][24:32], "big")


def narrow(store: StoreView, ranges: Sequence[Range], keys: Collection[str]) -> list[Range]:
    """Keep of the ranges what may hold a key: its messages, and all that the index does not cover.

    `keys` are values of the columns `keys` or `msg_id`; the index has their words one by one.
    """
    directory = store.root / "index"
    first, last = covered(directory)
    words = {key.split(" ")[0] for key in keys if key.split(" ")[0]}
    if last < first or not all(key.split(" ")[0] for key in keys):
        return list(ranges)
    places = _places(store, directory, {r.topic for r in ranges}, words)
    if places is None:
        return list(ranges)
    found: list[Range] = []
    for r in ranges:
        queue = store.queue(r.topic, r.queue_id)
        low = queue.first_at_or_after(first, r.low, r.high)
        high = queue.first_at_or_after(last + 1, low, r.high)
        inside = sorted(n for n in places.get((r.topic, r.queue_id), ()) if low <= n < high)
        parts = [(r.low, low), *((n, n + 1) for n in inside), (high, r.high)]
        found += [r._replace(low=a, high=b) for a, b in parts if b > a]
    return found


def _places(
    store: StoreView, directory: Path, names: Collection[str], words: Collection[str]
) -> dict[tuple[str, int], set[int]] | None:
    """Return the queue offsets of the hits of the index; None when there are too many."""
    found: dict[tuple[str, int], set[int]] = {}
    hits = {
        offset
        for topic in names
        for word in words
        for offset in index_offsets(directory, topic, word)
    }
    if len(hits) > HITS_MAX:
        return None
    for offset in hits:
        home = store.log.segment_of(offset)
        if home < 0:
            continue  # retention has removed it
        try:
            log = store.log.segment(home)
            layout = lay_out(log, np.array([offset - log.base], np.int64))
        except DataLossError:
            continue
        except RecordCorruptError:
            return None  # an index that does not fit its log decides nothing
        head = layout.heads[0]
        key = (topics(layout)[0].as_py(), int(head["queue_id"]))
        found.setdefault(key, set()).add(int(head["queue_offset"]))
    return found
