"""The manifest of an archive: the list of batches that count, in order.

    ARCHIVE/
      topic=orders/date=2026-11-15/*.parquet   rows, in physical order within a file
      _manifest/000000000007.json              one batch
      _manifest/000000000007.base.json         everything up to 7, merged by compaction
      _staging/                                files of batches under way
      _checkpoint/                             Spark's own log

A batch is in the archive exactly when its manifest file exists. The file is made under another
name, synced, then linked: a second writer of the same sequence fails instead of replacing it. Each
batch must begin, queue by queue, where the archive ends; a gap or an overlap is an error, so that
even a lost checkpoint can neither repeat nor drop rows silently.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from twinlog.spark.errors import ArchiveError, NotFoundError
from twinlog.spark.plan.offsets import Offsets, QueueKey

VERSION = 1
LOOKS_MAX = 20
T = TypeVar("T")
ENTRY_NAME = re.compile(r"^(\d{12})\.json$")
BASE_NAME = re.compile(r"^(\d{12})\.base\.json$")


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file of the archive."""

    name: str
    topic: str
    date: str
    rows: int
    size: int
    crc: int
    store_ms: list[int]  # first and last store time
    queues: list[list[Any]]  # broker, queue id, first queue offset, last queue offset

    def path(self, root: Path) -> Path:
        """Return where it is."""
        return root / self.name


@dataclass(frozen=True, slots=True)
class Staged:
    """A finished file that is not published yet."""

    temporary: str
    final: ArchivedFile


@dataclass(frozen=True, slots=True)
class Batch:
    """What one committed batch added."""

    sequence: int
    query: str
    batch: int
    ranges: list[list[Any]]  # topic, broker, queue id, low, high
    files: list[ArchivedFile]
    marks: dict[str, Any] = field(default_factory=dict)
    skipped: list[list[Any]] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return sum(file.rows for file in self.files)

    def skipped_ranges(self) -> list[list[Any]]:
        """Return the ranges that are knowingly not in it because nothing of them was left."""
        return [skip[:5] for skip in self.skipped if skip[5].startswith("GAP")]


def _batch(data: dict[str, Any]) -> Batch:
    files = [ArchivedFile(**file) for file in data["files"]]
    return Batch(**{**{k: v for k, v in data.items() if k != "v"}, "files": files})


def merge_ranges(ranges: Iterable[Sequence[Any]]) -> dict[QueueKey, tuple[int, int]]:
    """Join the ranges of each queue.

    Raises:
        ArchiveError: they do not touch, or they overlap.
    """
    joined: dict[QueueKey, tuple[int, int]] = {}
    for topic, broker, queue, low, high in sorted(tuple(r) for r in ranges):
        key = (topic, broker, queue)
        if key in joined:
            check_next(key, joined[key][1], low)
            low = joined[key][0]
        joined[key] = (low, high)
    return joined


def check_replay(ends: Offsets, ranges: Sequence[Sequence[Any]], remedy: str) -> None:
    """Demand that a batch which is there already was planned as it is now.

    Spark does not sync its logs: a power failure may take the plan of a batch that is archived, and
    so does whoever goes on from an older copy of the checkpoint. The batch that is planned in its
    place may be larger.

    Raises:
        ArchiveError: ARCHIVE_GAP, it goes further than what is there.
    """
    for key, (low, high) in merge_ranges(ranges).items():
        if high > ends.get(key, low):
            raise ArchiveError(
                "ARCHIVE_GAP",
                f"{key[0]} broker {key[1]} queue {key[2]}: this batch was archived up to "
                f"{ends.get(key, low)}, but now it ends at {high}; the checkpoint has lost its "
                f"newest files: {remedy}",
            )


def check_next(key: QueueKey, end: int, low: int) -> None:
    """Demand that a range begins where the rows before it end."""
    if low == end:
        return
    condition = "ARCHIVE_GAP" if low > end else "ARCHIVE_OVERLAP"
    raise ArchiveError(
        condition,
        f"{key[0]} broker {key[1]} queue {key[2]}: the archive ends at {end}, but the next rows "
        f"begin at {low}; the checkpoint and the archive do not belong together",
    )


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directories(paths: Collection[Path]) -> None:
    """Make renames in several directories durable: a journal takes them all in one write."""
    with ThreadPoolExecutor(max_workers=8) as threads:
        list(threads.map(sync_directory, paths))


class _MergedError(ArchiveError):
    """A file that was listed is gone: its content is in another one."""


class Manifest:
    """Reads and extends the manifest of one archive."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.directory = self.root / "_manifest"

    def exists(self) -> bool:
        """Say whether there is an archive at all."""
        return self.directory.is_dir()

    def require(self) -> Manifest:
        """Return itself, or raise NotFoundError when there is no archive."""
        if not self.exists():
            raise NotFoundError(
                "ARCHIVE_NOT_FOUND",
                f"{self.root} is not an archive: it has no directory _manifest; check the path",
            )
        return self

    def _names(self) -> tuple[str | None, list[str]]:
        """Return the newest merged file and the batches after it."""
        try:
            names = sorted(os.listdir(self.directory))
        except FileNotFoundError:
            return None, []
        bases = [name for name in names if BASE_NAME.match(name)]
        base = bases[-1] if bases else None
        after = int(base[:12]) if base else 0
        return base, [n for n in names if ENTRY_NAME.match(n) and int(n[:12]) > after]

    def _read(self, name: str) -> Any:
        try:
            data = json.loads((self.directory / name).read_text("utf-8"))
        except FileNotFoundError as error:
            raise _MergedError("ARCHIVE_DAMAGED", f"manifest {name} was removed") from error
        except (OSError, ValueError) as error:
            raise ArchiveError(
                "ARCHIVE_DAMAGED", f"manifest {name} cannot be read: {error}"
            ) from error
        if data.get("v") != VERSION:
            raise ArchiveError(
                "ARCHIVE_DAMAGED",
                f"manifest {name} was written by another version of twinlog: use that version",
            )
        return data

    @staticmethod
    def _looked(look: Callable[[], T]) -> T:
        """Look again while compaction merges files between the listing and the reading of them."""
        for _ in range(LOOKS_MAX):
            with contextlib.suppress(_MergedError):
                return look()
        return look()

    def batches(self) -> list[Batch]:
        """Return all batches in order, checked against each other."""
        return self._looked(self._batches)

    def _batches(self) -> list[Batch]:
        base, names = self._names()
        found = [_batch(b) for b in self._read(base)["batches"]] if base else []
        found += [_batch(self._read(name)) for name in names]
        self._check(found)
        return found

    @staticmethod
    def _check(batches: Sequence[Batch]) -> None:
        ends: Offsets = {}
        for batch in batches:
            for key, (low, high) in merge_ranges([*batch.ranges, *batch.skipped_ranges()]).items():
                if key in ends:
                    check_next(key, ends[key], low)
                ends[key] = high

    def files(self) -> list[ArchivedFile]:
        """Return every file that counts."""
        return [file for batch in self.batches() for file in batch.files]

    def spans(self) -> dict[QueueKey, tuple[int, int]]:
        """Return first and end offset of every archived queue."""
        spans: dict[QueueKey, tuple[int, int]] = {}
        for batch in self.batches():
            for key, (low, high) in merge_ranges([*batch.ranges, *batch.skipped_ranges()]).items():
                spans[key] = (spans[key][0] if key in spans else low, high)
        return spans

    def ends(self) -> Offsets:
        """Return where the archive ends, queue by queue."""
        return {key: high for key, (_, high) in self.spans().items()}

    def has(self, query: str, batch: int) -> bool:
        """Say whether a query's batch is published (also when compaction has merged it)."""
        return self._looked(functools.partial(self._has, query, batch))

    def _has(self, query: str, batch: int) -> bool:
        base, names = self._names()
        for name in reversed(names):  # a query's batches rise, so its newest one tells
            entry = self._read(name)
            if entry["query"] == query:
                return int(entry["batch"]) >= batch
        return self._merged(base).get(query, -1) >= batch

    def published(self) -> dict[str, int]:
        """Return, per query, the last batch that compaction has merged."""
        return self._looked(lambda: self._merged(self._names()[0]))

    def _merged(self, base: str | None) -> dict[str, int]:
        return dict(self._read(base)["published"]) if base else {}

    def next_sequence(self) -> int:
        """Return the number of the next batch."""
        base, names = self._names()
        last = names[-1] if names else base
        return int(last[:12]) + 1 if last else 1

    def publish(self, batch: Batch) -> None:
        """Write a batch: the commit point.

        Its sequence must have been read before the archive's ends were: when another writer (a
        process that outlived its driver, say) publishes in between, the link fails.

        Raises:
            ArchiveError: another writer took this sequence number.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.write(f"{batch.sequence:012d}.json", {"v": VERSION, **asdict(batch)})

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Write a file of the manifest durably; it must not exist yet."""
        temporary = self._write_temporary(name, data)
        try:
            os.link(temporary, self.directory / name)
        except FileExistsError as error:
            raise ArchiveError(
                "ARCHIVE_CONFLICT",
                f"another query wrote {name}: only one query may write to an archive",
            ) from error
        finally:
            temporary.unlink()
        sync_directory(self.directory)

    def replace(self, name: str, data: dict[str, Any]) -> None:
        """Write a file of the manifest durably in the place of the one that is there."""
        os.replace(self._write_temporary(name, data), self.directory / name)
        sync_directory(self.directory)

    def _write_temporary(self, name: str, data: dict[str, Any]) -> Path:
        temporary = self.directory / f".{name}.{os.getpid()}"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(data, file, sort_keys=True, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        return temporary
