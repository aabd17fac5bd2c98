"""A read-only view of a store directory: a live broker's, a stopped one's, or a copy.

Corresponds to what RocketMQ keeps in MappedFileQueue, ConsumeQueue and the files under `config/`.
Nothing here writes, locks or loads the broker. Facts that shape it:

- Files are created at full length, so a file's size says nothing about its content: the end of a
  queue is found by bisection for the first empty entry, then checked against the record it points
  to, because an Apache broker leaves stale entries behind when it truncates.
- A queue that was built on a slave begins with pre-blank entries (offset 0, size 2**31 - 1).
- Mapped segments stay mapped in the worker process from task to task, a few at a time; a mapping
  of a deleted file holds its disk space, so a mapping is dropped when its file is gone or another
  one.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinlog.message.crc import crc32
from twinlog.message.layout import (
    BLANK_SIZE_MIN,
    BODY_CRC_AT,
    BORN_TIMESTAMP_AT,
    ENTRY_SIZE,
    HOST_V6_EXTRA,
    MAGIC_AT,
    MAGIC_BLANK,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_AT,
    PLACE_SIZE,
    PRE_BLANK_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_AT,
    SIZE_MAGIC,
    STORE_HOST_AT,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    picked,
)
from twinlog.message.names import LMQ_PREFIX
from twinlog.message.perm import PERM_READ
from twinlog.message.sysflag import BORNHOST_V6_FLAG
from twinlog.runtime.numbers import is_number
from twinlog.spark.decode.records import LogSlice
from twinlog.spark.errors import DataLossError, NotFoundError, RecordCorruptError
from twinlog.spark.places import local_path

ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tag", ">i8")])
NAME_LENGTH = 20
MAPPED_SEGMENTS_MAX = 4
STALE_STEPS_MAX = 1 << 20  # entries looked back over at the end of a queue before giving up
HEADER_BYTES = STORE_TIMESTAMP_AT  # of a record: with IPv4 hosts, all up to the store time
DEFAULT_BROKER_NAME = "DEFAULT_BROKER"

_PLACE = picked(
    (SIZE_AT, "i"), (MAGIC_AT, "I"), (QUEUE_ID_AT, "i"), (QUEUE_OFFSET_AT, "q"),
    (PHYSICAL_OFFSET_AT, "q"),
).unpack_from  # fmt: skip
_maps: OrderedDict[str, tuple[tuple[int, int], LogSlice]] = OrderedDict()


def _numbered(directory: Path) -> list[tuple[int, Path]]:
    """List files named by their start offset, ascending."""
    try:
        names = [n for n in os.listdir(directory) if len(n) == NAME_LENGTH and is_number(n)]
    except FileNotFoundError:
        return []
    return [(int(name), directory / name) for name in sorted(names)]


def _map(path: Path, base: int) -> LogSlice:
    """Map a segment, or return the mapping that this process has kept of it."""
    status = os.stat(path)
    identity = (status.st_ino, status.st_size)
    key = str(path)
    kept = _maps.get(key)
    if kept is not None and kept[0] == identity:
        _maps.move_to_end(key)
        return kept[1]
    for other in [name for name in _maps if name == key or not os.path.exists(name)]:
        del _maps[other]
    with open(path, "rb") as file:
        log = LogSlice.over(mmap.mmap(file.fileno(), identity[1], prot=mmap.PROT_READ), base)
    _maps[key] = (identity, log)
    while len(_maps) > MAPPED_SEGMENTS_MAX:
        _maps.popitem(last=False)
    return log


class LogView:
    """The commit log of a store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.refresh()

    def refresh(self) -> None:
        """Look at the directory again: segments come and go under a live broker."""
        found = _numbered(self.directory)
        self.paths = [path for _, path in found]
        self.bases = np.array([base for base, _ in found], np.int64)

    @property
    def min_offset(self) -> int:
        """Physical offset at which the log begins; 0 when it is empty."""
        return int(self.bases[0]) if len(self.bases) else 0

    def segment_of(self, physical_offset: int) -> int:
        """Return the index of the segment that holds an offset, -1 if none does."""
        index = int(np.searchsorted(self.bases, physical_offset, "right")) - 1
        return index if index >= 0 else -1

    def segment(self, index: int) -> LogSlice:
        """Map a segment.

        Raises:
            DataLossError: retention has removed it since the directory was read.
        """
        path = self.paths[index]
        try:
            return _map(path, int(self.bases[index]))
        except FileNotFoundError as error:
            raise DataLossError(
                "OFFSET_EXPIRED", f"segment {path.name} of the log was removed by retention"
            ) from error
        except PermissionError as error:
            raise NotFoundError("STORE_NOT_FOUND", f"{path} cannot be read: {error}") from error

    def read(self, physical_offset: int, size: int) -> bytes:
        """Read bytes of one segment; fewer than asked when there are no more in it."""
        index = self.segment_of(physical_offset)
        if index < 0:
            return b""
        log = self.segment(index)
        at = physical_offset - log.base
        return bytes(log.view[at : at + size])

    def header_crc(self, physical_offset: int) -> int:
        """Return a checksum of a record's numbers: the fingerprint that marks keep of it."""
        return crc32(self.read(physical_offset, HEADER_BYTES))

    def store_time(self, physical_offset: int) -> int:
        """Return a record's store time in ms.

        Raises:
            RecordCorruptError: no record begins there.
        """
        head = self.read(physical_offset, STORE_TIMESTAMP_AT + HOST_V6_EXTRA + 8)
        if len(head) < STORE_HOST_AT or SIZE_MAGIC.unpack_from(head)[1] not in MESSAGE_MAGICS:
            raise RecordCorruptError(
                "RECORD_CORRUPT",
                f"there is no record at physical offset {physical_offset}; bytes there: "
                f"{head.hex()}",
            )
        flag = int.from_bytes(head[SYS_FLAG_AT:BORN_TIMESTAMP_AT], "big")
        at = STORE_TIMESTAMP_AT + (HOST_V6_EXTRA if flag & BORNHOST_V6_FLAG else 0)
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def holds(self, entry: Any, *, queue_id: int | None, queue_offset: int) -> bool:
        """Say whether a consume-queue entry points to the record it must point to."""
        offset, size = int(entry["offset"]), int(entry["size"])
        head = self.read(offset, PLACE_SIZE)
        if len(head) < PLACE_SIZE:
            return False
        own_size, magic, own_queue_id, own_queue_offset, own_offset = _PLACE(head)
        return (
            own_size == size
            and magic in MESSAGE_MAGICS
            and queue_id in (None, own_queue_id)
            and (own_queue_offset, own_offset) == (queue_offset, offset)
        )


class QueueView:
    """One consume queue: 20-byte entries in files of a fixed length."""

    def __init__(self, directory: Path, topic: str, queue_id: int) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.directory = directory
        self._prefix = f"{directory}{os.sep}"
        self.files = _numbered(directory)
        self.file_size = os.stat(self.files[0][1]).st_size if self.files else 0

    @property
    def first(self) -> int:
        """Queue offset of the first entry that has a file."""
        return self.files[0][0] // ENTRY_SIZE if self.files else 0

    @property
    def limit(self) -> int:
        """Queue offset after the last entry that has a file."""
        return (self.files[-1][0] + self.file_size) // ENTRY_SIZE if self.files else 0

    def entries(self, low: int, high: int) -> npt.NDArray[Any]:
        """Read entries [low, high).

        Raises:
            DataLossError: a file of the range is gone.
        """
        parts = []
        position, end = low * ENTRY_SIZE, high * ENTRY_SIZE
        while position < end:
            base = position // self.file_size * self.file_size if self.file_size else 0
            count = (min(end, base + self.file_size) - position) // ENTRY_SIZE
            try:
                part = np.fromfile(
                    self.directory / f"{base:020d}", ENTRY, count, offset=position - base
                )
            except (FileNotFoundError, ZeroDivisionError) as error:
                raise self._gone(low, high) from error
            parts.append(part)
            if len(part) < count:
                break
            position += count * ENTRY_SIZE
        return np.concatenate(parts) if parts else np.empty(0, ENTRY)

    def entry(self, queue_offset: int) -> Any:
        """Read one entry; one that its file does not reach is zeros.

        Raises:
            DataLossError: its file is gone.
        """
        position = queue_offset * ENTRY_SIZE
        base = position // self.file_size * self.file_size if self.file_size else 0
        try:  # A plan looks at hundreds of entries: no more calls than it takes.
            file = os.open(f"{self._prefix}{base:020d}", os.O_RDONLY)
        except FileNotFoundError as error:
            raise self._gone(queue_offset, queue_offset + 1) from error
        try:
            data = os.pread(file, ENTRY_SIZE, position - base)
        finally:
            os.close(file)
        return np.frombuffer(data.ljust(ENTRY_SIZE, b"\0"), ENTRY)[0]

    def _gone(self, low: int, high: int) -> DataLossError:
        return DataLossError(
            "OFFSET_EXPIRED",
            f"{self.topic} queue {self.queue_id}: entries {low} to {high} are not in the consume "
            "queue any more",
        )

    def begin(self, log_min: int) -> int:
        """Queue offset of the first entry whose record the log still has."""
        low, high = self.first, self.limit
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            size = int(entry["size"])
            gone = size == PRE_BLANK_SIZE or (size > 0 and int(entry["offset"]) < log_min)
            low, high = (middle + 1, high) if gone else (low, middle)
        return low

    def end(self, log: LogView, *, confirmed: int | None = None) -> int:
        """Queue offset after the last entry that may be read.

        Args:
            log: the log that entries must point into.
            confirmed: physical offset that replicas have confirmed; entries past it are not read.
        """
        low, high = self.first, self.limit
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if int(self.entry(middle)["size"]) > 0 else (low, middle)
        head = self._without_stale(low, log)
        if confirmed is not None:
            head = self.first_at_or_after(confirmed, self.first, head, by_end=True)
        return head

    def _without_stale(self, end: int, log: LogView) -> int:
        # Apache truncates a queue in memory only; what it wrote before is still in the file.
        owner = None if self.topic.startswith(LMQ_PREFIX) else self.queue_id
        floor = max(self.first, end - STALE_STEPS_MAX)
        while end > floor:
            entry = self.entry(end - 1)
            if int(entry["size"]) == PRE_BLANK_SIZE or owner is None:
                break
            if int(entry["offset"]) < log.min_offset:
                break
            if log.holds(entry, queue_id=owner, queue_offset=end - 1):
                break
            end -= 1
        return end

    def first_at_or_after(self, physical: int, low: int, high: int, *, by_end: bool = False) -> int:
        """Bisect [low, high) for the first entry whose record begins (or ends) after `physical`."""
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            at = int(entry["offset"])
            if int(entry["size"]) == PRE_BLANK_SIZE:
                before = True
            else:
                before = at + int(entry["size"]) <= physical if by_end else at < physical
            low, high = (middle + 1, high) if before else (low, middle)
        return low

    def first_at_time(self, log: LogView, timestamp_ms: int, low: int, high: int) -> int:
        """Bisect [low, high) for the first record stored at or after a time."""
        while low < high:
            middle = (low + high) // 2
            before = log.store_time(int(self.entry(middle)["offset"])) < timestamp_ms
            low, high = (middle + 1, high) if before else (low, middle)
        return low


def _lenient_json(text: str) -> Any:
    """Parse JSON whose integer keys have no quotes (fastjson writes it so)."""
    return json.loads(re.sub(r"([{,]\s*)(-?\d+)\s*:", r'\1"\2":', text))


@dataclass
class StoreView:
    """A store directory."""

    root: Path
    log: LogView = field(init=False)

    def __post_init__(self) -> None:
        self.root = local_path(self.root, "the store")
        if not (self.root / "commitlog").is_dir():
            inner = self.root / "store"
            hint = f"; {inner} has one" if (inner / "commitlog").is_dir() else ""
            raise NotFoundError(
                "STORE_NOT_FOUND",
                f"{self.root} is not a store: it has no commitlog{hint}",
            )
        try:
            self.log = LogView(self.root / "commitlog")
        except PermissionError as error:
            raise NotFoundError(
                "STORE_NOT_FOUND", f"{self.root} cannot be read: {error}"
            ) from error

    def queues(self) -> dict[str, list[int]]:
        """Return all topics that have a consume queue, with their queue ids."""
        top = self.root / "consumequeue"
        if not top.is_dir():
            return {}
        found = {}
        for topic in sorted(os.listdir(top)):
            if (top / topic).is_dir():
                found[topic] = sorted(int(q) for q in os.listdir(top / topic) if is_number(q))
        return found

    def readable_queues(self) -> dict[str, list[int]]:
        """Return the queues that a consumer may read, as a broker's route names them.

        Queues of the topic table that have no message yet are among them.
        """
        found = {topic: set(ids) for topic, ids in self.queues().items()}
        for topic, config in self.topics().items():
            if isinstance(config, dict) and int(config.get("perm", 0)) & PERM_READ:
                known = found.setdefault(topic, set())
                known.update(range(int(config.get("readQueueNums", 0))))
        return {topic: sorted(ids) for topic, ids in found.items()}

    def queue(self, topic: str, queue_id: int) -> QueueView:
        """Open one consume queue (it may be empty)."""
        directory = self.root / "consumequeue" / topic / str(queue_id)
        return QueueView(directory, topic, queue_id)

    def config(self, name: str) -> Any:
        """Read a file of `config/`, its backup if it is damaged, {} if there is none."""
        for candidate in (name, name + ".bak"):
            try:
                return _lenient_json((self.root / "config" / candidate).read_text("utf-8"))
            except (FileNotFoundError, ValueError):
                continue
        return {}

    def topics(self) -> dict[str, Any]:
        """Return the topic table."""
        table = self.config("topics.json").get("topicConfigTable", {})
        return table if isinstance(table, dict) else {}

    def consumer_offsets(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return group -> topic -> queue -> next offset."""
        found: dict[str, dict[str, dict[int, int]]] = {}
        table = self.config("consumerOffset.json").get("offsetTable", {})
        for name, offsets in table.items():
            topic, _, group = name.rpartition("@")
            found.setdefault(group, {})[topic] = {int(q): int(n) for q, n in offsets.items()}
        return found

    def broker_name(self) -> str:
        """Return the broker's name: its own system topic has one queue and the inherit bit."""
        own = [
            name
            for name, topic in self.topics().items()
            if topic.get("perm") in (1, 7) and topic.get("writeQueueNums") == 1
        ]
        return own[0] if len(own) == 1 else DEFAULT_BROKER_NAME

    def epochs(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of the replication epochs, oldest first; usually none."""
        try:
            lines = (self.root / "epochFileCheckpoint").read_text("utf-8").split()
        except FileNotFoundError:
            return []
        pairs = [line.partition("-") for line in lines[2:]]
        return [(int(epoch), int(start)) for epoch, _, start in pairs]

    def epoch_at(self, physical_offset: int) -> int:
        """Return the epoch that an offset belongs to; 0 where none is recorded."""
        found = [epoch for epoch, start in self.epochs() if start < physical_offset]
        return found[-1] if found else 0

    def confirmed(self) -> int | None:
        """Return how far replicas have confirmed the log; None where nobody publishes it.

        Only a SYNC_MASTER of ours does. What a slave has is on two machines already.
        """
        try:
            data = (self.root / "twinlog" / "confirmed").read_bytes()
        except FileNotFoundError:
            return None
        return int.from_bytes(data[:8], "big") if len(data) >= 8 else None

    def log_end(self) -> int:
        """Return the end of the last whole record of the log, dispatched or not."""
        self.log.refresh()
        start = self.log.min_offset
        for topic, ids in self.queues().items():
            for queue_id in ids:
                queue = self.queue(topic, queue_id)
                end = queue.end(self.log)
                entry = queue.entry(end - 1) if end > queue.first else None
                if entry is not None and int(entry["size"]) != PRE_BLANK_SIZE:
                    start = max(start, int(entry["offset"]) + int(entry["size"]))
        return log_end_from(self.log, start)


def log_end_from(log: LogView, start: int) -> int:
    """Walk whole records from `start` (the begin or end of one) to the end of the log."""
    end = start
    while (index := log.segment_of(end)) >= 0:
        part = log.segment(index)
        position = end - part.base
        while position + PLACE_SIZE <= len(part.view):
            size, magic, _, _, own = _PLACE(part.data, position)
            if magic not in MESSAGE_MAGICS or own != part.base + position or size <= 0:
                break
            if position + size > len(part.view):
                break
            position += size
        end = part.base + position
        following = index + 1 < len(log.paths)
        if not following or not _is_closed(part, position):
            return end
        after = log.segment(index + 1)
        if int.from_bytes(after.view[MAGIC_AT:BODY_CRC_AT].tobytes(), "big") not in MESSAGE_MAGICS:
            return end
        end = after.base
    return end


def _is_closed(part: LogSlice, position: int) -> bool:
    """Say whether the segment ends here: nothing left, or a blank record."""
    rest = part.view[position : position + BLANK_SIZE_MIN].tobytes()
    return len(rest) < BLANK_SIZE_MIN or SIZE_MAGIC.unpack(rest)[1] == MAGIC_BLANK
