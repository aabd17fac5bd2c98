"""Stores of two brokers side by side: what is equal and what one of them repaired."""

from __future__ import annotations

import re
import struct
from pathlib import Path

# Apache's words for a store that was not as it should be.
REPAIRS = ("truncate", "not matched", "abnormal", "Dirty", "illegal", "corrupt")


def log_bytes(store: Path) -> tuple[int, bytes]:
    """First offset and all bytes of a commit log, without the unwritten end of the last file."""
    files = sorted((store / "commitlog").glob("[0-9]*"))
    assert files, f"{store} has no commit log"
    data = b"".join(file.read_bytes() for file in files)
    return int(files[0].name), data[: record_end(data)]


def record_end(data: bytes) -> int:
    """End of the last whole record: sizes are followed, a zero ends the log."""
    position = 0
    while position + 8 <= len(data):
        size = struct.unpack_from(">i", data, position)[0]
        if size <= 0:
            break
        position += size
    return position


def common_log(one: Path, other: Path) -> tuple[bytes, bytes]:
    """The bytes of both logs over the range that both hold."""
    first, first_data = log_bytes(one)
    second, second_data = log_bytes(other)
    start = max(first, second)
    end = min(first + len(first_data), second + len(second_data))
    assert end > start, "the two logs have nothing in common"
    return first_data[start - first : end - first], second_data[start - second : end - second]


def queues(store: Path) -> dict[tuple[str, str], list[tuple[int, int, int]]]:
    """Entries (offset, size, tags code) of every consume queue, without what was never written."""
    found = {}
    for directory in sorted((store / "consumequeue").glob("*/*")):
        data = b"".join(file.read_bytes() for file in sorted(directory.glob("[0-9]*")))
        entries = list(struct.iter_unpack(">qiq", data[: len(data) // 20 * 20]))
        while entries and entries[-1][1] == 0:
            entries.pop()
        found[directory.parent.name, directory.name] = entries
    return found


def repairs_in(log: str) -> list[str]:
    """Lines of a start-up that speak of damage, without those that Apache says of every store."""
    lines = [line for line in log.splitlines() if any(word in line for word in REPAIRS)]
    return [line for line in lines if not is_said_of_every_store(line)]


def is_said_of_every_store(line: str) -> bool:
    """The zeros behind the last record, and a queue that ends exactly where the log does."""
    if "found a illegal magic code 0x0" in line:
        return True
    ends = re.search(r"maxPhyOffsetOfConsumeQueue\((\d+)\) >= processOffset\((\d+)\)", line)
    return ends is not None and ends[1] == ends[2]
