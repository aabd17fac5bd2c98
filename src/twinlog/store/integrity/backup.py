"""Backups of a store whose broker may be serving, and stores made from them.

    DIR/segments/START-DIGEST      full segments, shared by all backups: each is copied once
    DIR/ID/manifest.json           what belongs to this backup, with digests
    DIR/ID/manifest.b2             the digest of the manifest
    DIR/ID/tail                    the segment that was being filled, up to the mark
    DIR/ID/files/...               tables, offsets, identity

The tables are copied first and the end of the log, the *mark*, is found then: everything that was
acknowledged before is in the log below the mark, and the tables know nothing that the log lacks.
Queues and index are not copied; they follow from the log, and the first start makes them again.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable
from typing import Final

import msgspec

from twinlog.message.record import scan
from twinlog.runtime.disk import Disk, copy_file
from twinlog.runtime.file_copy import read_part, write_file
from twinlog.runtime.numbers import number_or_none
from twinlog.store.errors import StoreError
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of
from twinlog.store.integrity.files import Fault, LogFiles, find_log, find_queues, walk_log
from twinlog.store.log.segment import segment_name

VERSION: Final = 1
# Of our own directory: what recovery, idempotent producers and metadata of the log need.
_OWN_FILES: Final = ("identity.json", "metadata.json", "log-start", "producers", "queues")
# Who a store is: left behind by a restored one, which is another store from then on.
_IDENTITY: Final = ("twinlog/identity.json", "twinlog/identity.json.bak")
Progress = Callable[[int, int], None]


class BackupError(StoreError):
    """A backup cannot be made, read or restored; the text says why."""


class SavedFile(msgspec.Struct, rename="camel"):
    """A file of a backup: its name there, and what it must hold."""

    path: str
    size: int
    digest: str


class SavedSegment(msgspec.Struct, rename="camel"):
    """A full segment in the shared directory."""

    start: int
    digest: str

    @property
    def name(self) -> str:
        return f"{segment_name(self.start)}-{self.digest}"


class Manifest(msgspec.Struct, rename="camel"):
    """What a backup is."""

    id: str
    created_ms: int
    source: str
    segment_size: int
    log_start: int
    mark: int  # The end of the log in this backup.
    newest_ms: int  # Store time of the last record.
    segments: list[SavedSegment]
    tail: SavedFile | None
    files: list[SavedFile]
    queue_ends: dict[str, int]
    version: int = VERSION

    @property
    def size(self) -> int:
        return self.mark - self.log_start


def digest_text(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Backups:
    """The backups in one directory."""

    def __init__(self, disk: Disk, directory: str, progress: Progress = lambda done, total: None):
        self._disk = disk
        self._directory = directory
        self._pool = posixpath.join(directory, "segments")
        self._progress = progress

    # Making one

    def create(self, root: str, now_ms: int, log_directory: str | None = None) -> Manifest:
        """Of the store below `root`, at this moment. Nothing of it is changed or locked."""
        directory = log_directory or posixpath.join(root, "commitlog")
        name = f"backup-{now_ms}"
        target = posixpath.join(self._directory, name)
        self._disk.make_directories(self._pool)
        self._disk.make_directories(posixpath.join(target, "files", "config"))
        self._disk.make_directories(posixpath.join(target, "files", "twinlog"))
        files = self._copy_tables(root, target)
        queue_ends = {f"{q.topic}-{q.queue_id}": q.end for q in find_queues(self._disk, root)}
        log = find_log(self._disk, directory)
        log_start = _log_start(self._disk, root, log)
        mark, newest_ms = self._find_end(log)
        manifest = Manifest(
            name, now_ms, root, log.size, log_start, mark,
            newest_ms, self._copy_segments(root, log, mark), self._copy_tail(log, mark, target),
            files, queue_ends,
        )  # fmt: skip
        self._write_manifest(target, manifest)
        return manifest

    def _copy_tables(self, root: str, target: str) -> list[SavedFile]:
        saved = []
        names = [f"config/{name}" for name in self._disk.list(posixpath.join(root, "config"))]
        names += [f"twinlog/{name}" for name in _OWN_FILES]
        for name in names:
            path = posixpath.join(root, name)
            if name.endswith(".tmp") or not self._disk.exists(path):
                continue
            data = self._disk.read_bytes(path)  # Replaced as a whole by who writes it.
            copy = posixpath.join(target, "files", name)
            write_file(self._disk, copy, data, self._disk.mode(path))
            saved.append(SavedFile(name, len(data), digest_text(data)))
        return saved

    def _find_end(self, log: LogFiles) -> tuple[int, int]:
        """Behind the last whole record, and when that was stored."""
        end, newest_ms = log.starts[0], 0
        for start in reversed(log.starts):
            faults: list[Fault] = []
            only = LogFiles(log.directory, log.size, (start,))
            for _, found in walk_log(self._disk, only, start, faults):
                end = found.end
            if end > start or start == log.starts[0]:
                break
        if end > log.starts[0]:
            newest_ms = _newest_ms(self._disk, log, end)
        return end, newest_ms

    def _copy_segments(self, root: str, log: LogFiles, mark: int) -> list[SavedSegment]:
        """Those that are full. One that an earlier backup has is not copied again."""
        digests = RangeDigests(self._disk, posixpath.join(root, "twinlog"), log.size)
        full = [start for start in log.starts if start < mark - mark % log.size]
        saved = []
        for done, start in enumerate(full):
            path = log.path(start)
            known = digests.of(start)
            is_known = len(known) == -(-log.size // RANGE_SIZE) and bytes(16) not in known
            segment = SavedSegment(start, segment_digest(known)) if is_known else None
            if segment is None or not self._disk.exists(posixpath.join(self._pool, segment.name)):
                segment = self._copy_segment(path, start)
            saved.append(segment)
            self._progress(done + 1, len(full) + 1)
        return saved

    def _copy_segment(self, path: str, start: int) -> SavedSegment:
        temporary = posixpath.join(self._pool, f"{segment_name(start)}.tmp")
        try:
            copy_file(path, temporary)
        except FileNotFoundError:
            raise BackupError(f"{path} expired while the backup was made: make it again") from None
        digest = digest_file(self._disk, temporary)
        segment = SavedSegment(start, digest)
        self._disk.rename(temporary, posixpath.join(self._pool, segment.name))
        self._disk.fsync_directory(self._pool)
        return segment

    def _copy_tail(self, log: LogFiles, mark: int, target: str) -> SavedFile | None:
        start = mark - mark % log.size
        if start == mark:
            return None
        data = read_part(self._disk, log.path(start), 0, mark - start)
        write_file(self._disk, posixpath.join(target, "tail"), data)
        return SavedFile("tail", len(data), digest_text(data))

    def _write_manifest(self, target: str, manifest: Manifest) -> None:
        """Last: without it there is no backup."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        write_file(self._disk, posixpath.join(target, "manifest.b2"), digest_text(data).encode())
        write_file(self._disk, posixpath.join(target, "manifest.json"), data)
        self._disk.fsync_directory(target)
        self._disk.fsync_directory(self._directory)

    # Reading them

    def all(self) -> list[Manifest]:
        """Oldest first; without those that were never finished."""
        names = self._disk.list(self._directory)
        found = [self.read(name) for name in names if self._has_manifest(name)]
        return sorted(found, key=lambda manifest: manifest.created_ms)

    def _has_manifest(self, name: str) -> bool:
        return self._disk.exists(posixpath.join(self._directory, name, "manifest.json"))

    def read(self, name: str) -> Manifest:
        path = posixpath.join(self._directory, name, "manifest.json")
        try:
            data = self._disk.read_bytes(path)
            digest = self._disk.read_bytes(posixpath.join(self._directory, name, "manifest.b2"))
        except OSError as error:
            raise BackupError(f"no backup {name} in {self._directory}: {error}") from error
        if digest_text(data).encode() != digest.strip():
            raise BackupError(f"{path} is damaged: it is not what manifest.b2 says")
        manifest = msgspec.json.decode(data, type=Manifest)
        if manifest.version > VERSION:
            raise BackupError(f"{path} was made by a newer twinlog (version {manifest.version})")
        return manifest

    def verify(self, manifest: Manifest) -> list[str]:
        """What of a backup is missing or damaged, without restoring it."""
        faults = []
        for saved in [*manifest.files, *([manifest.tail] if manifest.tail else [])]:
            path = self._path(manifest, saved)
            try:
                data = self._disk.read_bytes(path)
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
                continue
            if len(data) != saved.size or digest_text(data) != saved.digest:
                faults.append(f"{path} is damaged")
        for done, segment in enumerate(manifest.segments):
            path = posixpath.join(self._pool, segment.name)
            try:
                if digest_file(self._disk, path) != segment.digest:
                    faults.append(f"{path} is damaged")
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
            self._progress(done + 1, len(manifest.segments))
        return faults

    def _path(self, manifest: Manifest, saved: SavedFile) -> str:
        part = ("tail",) if saved is manifest.tail else ("files", saved.path)
        return posixpath.join(self._directory, manifest.id, *part)

    # Restoring

    def restore(
        self,
        manifest: Manifest,
        root: str,
        *,
        keeps_identity: bool = False,
        until_ms: int | None = None,
    ) -> int:
        """Make a store below `root`, which must be empty; where its log ends.

        With `until_ms` the log ends before the first record that was stored later. Without
        `keeps_identity` the store gets ids of its own at its first start: no replica of the old one
        takes it for a copy.
        """
        if self._disk.list(root):
            raise BackupError(f"{root} is not empty: a restore never writes over a store")
        faults = self.verify(manifest)
        if faults:
            raise BackupError(f"the backup {manifest.id} is damaged: {'; '.join(faults[:5])}")
        log_directory = posixpath.join(root, "commitlog")
        self._disk.make_directories(log_directory)
        for segment in manifest.segments:
            target = posixpath.join(log_directory, segment_name(segment.start))
            copy_file(posixpath.join(self._pool, segment.name), target)
        self._restore_tail(manifest, log_directory)
        for saved in manifest.files:
            if saved.path in _IDENTITY and not keeps_identity:
                continue
            target = posixpath.join(root, saved.path)
            self._disk.make_directories(posixpath.dirname(target))
            source = self._path(manifest, saved)
            write_file(self._disk, target, self._disk.read_bytes(source), self._disk.mode(source))
        end = manifest.mark
        if until_ms is not None and until_ms < manifest.newest_ms:
            end = self._cut(log_directory, manifest, until_ms)
            _forget_queues(self._disk, root)
        self._disk.fsync_directory(log_directory)
        self._disk.fsync_directory(root)
        return end

    def _restore_tail(self, manifest: Manifest, log_directory: str) -> None:
        if manifest.tail is None:
            return
        start = manifest.mark - manifest.mark % manifest.segment_size
        path = posixpath.join(log_directory, segment_name(start))
        data = self._disk.read_bytes(self._path(manifest, manifest.tail))
        write_file(self._disk, path, data, size=manifest.segment_size)

    def _cut(self, log_directory: str, manifest: Manifest, until_ms: int) -> int:
        """End the log before the first record that is younger."""
        log = find_log(self._disk, log_directory)
        end = end_at_time(self._disk, log, manifest.log_start, until_ms)
        for start in log.starts:
            path = log.path(start)
            if start >= end and start != log.starts[0]:
                self._disk.unlink(path)
            elif start + log.size > end:
                file = self._disk.open(path)
                file.truncate(end - start)
                file.truncate(log.size)
                file.fdatasync()
                file.close()
        return end


def end_at_time(disk: Disk, log: LogFiles, log_start: int, until_ms: int) -> int:
    """Where the first record begins that was stored after `until_ms`."""
    faults: list[Fault] = []
    end = log_start
    for at, found in walk_log(disk, log, log_start, faults):
        start = at - at % log.size
        data = read_part(disk, log.path(start), at - start, found.end - at)
        for entry in scan(data, 0, at, check_crc=False).entries:
            if entry[5] > until_ms:
                return entry[0]
            end = entry[0] + entry[1]
    return end


def _newest_ms(disk: Disk, log: LogFiles, end: int) -> int:
    """Store time of the last record before `end`."""
    newest = 0
    start = (end - 1) - (end - 1) % log.size
    faults: list[Fault] = []
    only = LogFiles(log.directory, log.size, (start,))
    for at, found in walk_log(disk, only, start, faults):
        data = read_part(disk, log.path(start), at - start, found.end - at)
        entries = scan(data, 0, at, check_crc=False).entries
        newest = entries[-1][5] if entries else newest
    return newest


def _log_start(disk: Disk, root: str, log: LogFiles) -> int:
    path = posixpath.join(root, "twinlog", "log-start")
    if disk.exists(path):
        start = number_or_none(disk.read_bytes(path))
        if start is not None and log.starts[0] <= start < log.starts[0] + log.size:
            return start
    return log.starts[0]


def _forget_queues(disk: Disk, root: str) -> None:
    """The list of queues' ends is that of the whole log, not of one that ends earlier."""
    path = posixpath.join(root, "twinlog", "queues")
    if disk.exists(path):
        disk.unlink(path)


def segment_digest(ranges: list[bytes]) -> str:
    return digest_text(b"".join(ranges))


def digest_file(disk: Disk, path: str) -> str:
    """The same as `segment_digest` of its ranges."""
    ranges: list[bytes] = []
    file = disk.open(path, read_only=True)
    try:
        while data := file.pread(RANGE_SIZE, RANGE_SIZE * len(ranges)):
            ranges.append(digest_of(data))
    finally:
        file.close()
    return segment_digest(ranges)
