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
import itertools
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec

from twinlog.message.record import scan
from twinlog.runtime.disk import Disk, copy_file, make_new_directory
from twinlog.runtime.file_copy import pieces, read_part, write_file, write_pieces
from twinlog.runtime.numbers import number_or_none
from twinlog.runtime.sealed import BrokenSealError, decode_saved
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of
from twinlog.store.integrity.files import (
    Fault,
    LogFiles,
    find_log,
    find_queues,
    log_start_of,
    walk_log,
)
from twinlog.store.integrity.format import check_format
from twinlog.store.integrity.log_end import WHOLE, Until, find_end
from twinlog.store.integrity.manifest import (
    FOLDERS,
    BackupError,
    Manifest,
    SavedFile,
    SavedSegment,
    read_manifest,
)
from twinlog.store.log.segment import segment_name
from twinlog.store.queue.queue_manifest import Ends, QueueManifest
from twinlog.store.recovery.missing_log import RESTORING

# Of our own directory: what recovery, idempotent producers, metadata of the log and groups need.
_OWN_FILES: Final = (
    "identity.json", "metadata.json", "log-start", "producers", "queues", "epochs", "format.json",
)  # fmt: skip
# Who a store is: left behind by a restored one, which is another store from then on.
_IDENTITY: Final = ("twinlog/identity.json", "twinlog/identity.json.bak")
# How often a backup begins again because the log has changed meanwhile.
_ATTEMPTS: Final = 5
_TEMPORARY: Final = ".tmp"
_PREFIX: Final = "backup-"
_MOUNT_POINT: Final = "lost+found"  # In the root of a new file system.
_AGAIN: Final = "is damaged; if it is deleted, the next backup of a store that has it copies it"
Progress = Callable[[int, int], None]


class _Identity(msgspec.Struct):
    """Of the identity of a store, what is asked here."""

    store_id: str = ""


def digest_text(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Digest:
    """Of what passes through, piece by piece."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def through(self, data: Iterable[bytes]) -> Iterator[bytes]:
        for piece in data:
            self._hash.update(piece)
            yield piece

    @property
    def text(self) -> str:
        return self._hash.hexdigest()


class Backups:
    """The backups in one directory."""

    def __init__(self, disk: Disk, directory: str, progress: Progress = lambda done, total: None):
        self._disk = disk
        self._directory = directory
        self._pool = posixpath.join(directory, "segments")
        self._progress = progress
        self.damaged: list[str] = []  # Segments that were not what their digest says when copied.

    # Making one

    def create(self, root: str, now_ms: int, log_directory: str | None = None) -> Manifest:
        """Of the store below `root`, at this moment. Nothing of it is changed or locked."""
        check_format(self._disk, root)
        directory = log_directory or posixpath.join(root, "commitlog")
        target = self._make_folder(now_ms)
        gone = ""
        try:
            for _ in range(_ATTEMPTS):
                try:
                    manifest = self._create(root, now_ms, directory, target)
                except FileNotFoundError as error:
                    gone = f" ({error})"
                    continue
                if manifest is not None:
                    self._write_manifest(target, manifest)
                    return manifest
        except BaseException:
            _remove_tree(self._disk, target)  # Segments in the pool stay: they are whole.
            raise
        _remove_tree(self._disk, target)
        text = f"{directory} changes faster than it is copied: make the backup again{gone}"
        raise BackupError(text)

    def _create(self, root: str, now_ms: int, directory: str, target: str) -> Manifest | None:
        """None: the log was cut back, or replaced, which a slave's may be. Raises FileNotFoundError
        where a segment or a queue expired meanwhile."""
        self._disk.make_directories(self._pool)
        for folder in FOLDERS:
            self._disk.make_directories(posixpath.join(target, "files", folder))
        self.damaged = []
        before = _LogFacts.of(self._disk, root, directory)
        files = self._copy_tables(root, target)
        queue_ends = {f"{q.topic}-{q.queue_id}": q.end for q in find_queues(self._disk, root)}
        log = find_log(self._disk, directory)
        _check_is_whole(log)
        log_start = log_start_of(self._disk, root, log)
        mark, newest_ms = self._find_end(log, log_start)
        segments = self._copy_segments(root, log, mark)
        tail = self._copy_tail(log, mark, target)
        if not before.is_that_of(_LogFacts.of(self._disk, root, directory)):
            return None
        return Manifest(
            posixpath.basename(target), now_ms, root, log.size, log_start, mark, newest_ms,
            segments, tail, files, queue_ends,
        )  # fmt: skip

    def _make_folder(self, now_ms: int) -> str:
        """Named by the time, or behind all others: the newest backup is the last one made, whatever
        the clock says, and two that begin at once have folders of their own."""
        while True:
            names = [name.removeprefix(_PREFIX) for name in self._disk.list(self._directory)]
            numbers = filter(None, map(number_or_none, names))
            number = max([now_ms, *(1 + number for number in numbers)])
            target = posixpath.join(self._directory, f"{_PREFIX}{number}")
            if make_new_directory(target):
                return target

    def remove_unfinished(self) -> None:
        """What killed backups left. Only while nobody else makes one here."""
        for name in self._disk.list(self._pool):
            if name.endswith(_TEMPORARY):
                self._disk.unlink(posixpath.join(self._pool, name))
        for name in self._disk.list(self._directory):
            if name.startswith(_PREFIX) and not self._has_manifest(name):
                _remove_tree(self._disk, posixpath.join(self._directory, name))

    def remove(self, names: list[str]) -> int:
        """Backups, and the segments that no other one needs; how many of these. Only while nobody
        else is at work here."""
        kept = [name for name in self._names() if name not in names]
        needed = {segment.name for name in kept for segment in self.read(name).segments}
        for name in names:
            folder = posixpath.join(self._directory, name)
            self._disk.unlink(posixpath.join(folder, "manifest.json"))  # It is none from here on.
            self._disk.fsync_directory(folder)
            _remove_tree(self._disk, folder)
        unused = [name for name in self._disk.list(self._pool) if name not in needed]
        for name in unused:
            self._disk.unlink(posixpath.join(self._pool, name))
        return len(unused)

    def _copy_tables(self, root: str, target: str) -> list[SavedFile]:
        saved = []
        names = [f"config/{name}" for name in self._disk.list(posixpath.join(root, "config"))]
        names += [f"twinlog/{name}" for name in _OWN_FILES]
        for name in names:
            path = posixpath.join(root, name)
            if name.endswith(_TEMPORARY) or not self._disk.exists(path):
                continue
            if self._disk.is_directory(path):
                continue
            data = self._disk.read_bytes(path)  # Replaced as a whole by who writes it.
            copy = posixpath.join(target, "files", name)
            write_file(self._disk, copy, data, self._disk.mode(path))
            saved.append(SavedFile(name, len(data), digest_text(data)))
        return saved

    def _find_end(self, log: LogFiles, log_start: int) -> tuple[int, int]:
        """Behind the last whole record, and when that was stored."""
        end, newest_ms = log_start, 0
        for start in reversed(log.starts):
            faults: list[Fault] = []
            only = LogFiles(log.directory, log.size, (start,))
            for _, found in walk_log(self._disk, only, max(start, log_start), faults):
                end = found.end
            if end > start or start == log.starts[0]:
                break
        if end > log_start:
            newest_ms = _newest_ms(self._disk, log, end)
        return end, newest_ms

    def _copy_segments(self, root: str, log: LogFiles, mark: int) -> list[SavedSegment]:
        """Those that are full. One that an earlier backup has is not copied again."""
        digests = RangeDigests(self._disk, posixpath.join(root, "twinlog"), log.size)
        full = [start for start in log.starts if start < mark - mark % log.size]
        saved: list[SavedSegment] = []
        for done, start in enumerate(full):
            path = log.path(start)
            known = digests.of(start)
            is_known = len(known) == -(-log.size // RANGE_SIZE) and bytes(16) not in known
            wanted = SavedSegment(start, segment_digest(known)) if is_known else None
            if wanted and self._has_segment(wanted.name, log.size):
                saved.append(wanted)
            else:
                saved.append(self._copy_segment(path, start))
                is_whole = self._disk.file_size(self._pool_path(saved[-1])) == log.size
                if wanted not in (None, saved[-1]) or not is_whole:
                    self.damaged.append(path)
            self._progress(done + 1, len(full) + 1)
        return saved

    def _has_segment(self, name: str, size: int) -> bool:
        """Whether the pool has it; one that was cut short is copied again."""
        path = posixpath.join(self._pool, name)
        return self._disk.exists(path) and self._disk.file_size(path) == size

    def _pool_path(self, segment: SavedSegment) -> str:
        return posixpath.join(self._pool, segment.name)

    def _copy_segment(self, path: str, start: int) -> SavedSegment:
        # A name of its own: another backup may be copying the same segment.
        temporary = posixpath.join(self._pool, f"{segment_name(start)}-{uuid4().hex}{_TEMPORARY}")
        try:
            copy_file(path, temporary)
            segment = SavedSegment(start, digest_file(self._disk, temporary))
        except BaseException:
            if self._disk.exists(temporary):
                self._disk.unlink(temporary)
            raise
        self._disk.rename(temporary, self._pool_path(segment))
        self._disk.fsync_directory(self._pool)
        return segment

    def _copy_tail(self, log: LogFiles, mark: int, target: str) -> SavedFile | None:
        start = mark - mark % log.size
        if start == mark:
            return None
        # In pieces, as everywhere: a segment may be as large as the memory that is left.
        digest = Digest()
        data = digest.through(pieces(self._disk, log.path(start), mark - start))
        write_pieces(self._disk, posixpath.join(target, "tail"), data)
        return SavedFile("tail", mark - start, digest.text)

    def _write_manifest(self, target: str, manifest: Manifest) -> None:
        """Last: without it there is no backup."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        path = posixpath.join(target, "manifest.json")
        write_file(self._disk, posixpath.join(target, "manifest.b2"), digest_text(data).encode())
        write_file(self._disk, path + _TEMPORARY, data)
        self._disk.rename(path + _TEMPORARY, path)  # A kill leaves no half of it.
        self._disk.fsync_directory(target)
        self._disk.fsync_directory(self._directory)

    # Reading them

    def all(self) -> list[Manifest]:
        """Oldest first; without those that were never finished, or that cannot be read."""
        return self.find()[0]

    def find(self) -> tuple[list[Manifest], dict[str, str]]:
        """Oldest first, and why others cannot be read: they must not hide those that can."""
        found, broken = [], {}
        for name in self._names():
            try:
                found.append(self.read(name))
            except BackupError as error:
                broken[name] = str(error)
        return found, broken

    def newest(self) -> Manifest | None:
        """One that cannot be read is not passed over in silence: what it had would be missing. Nor
        is it a guess whose backup it is, if several brokers use the directory."""
        names = self._names()
        try:
            found = self.read(names[-1]) if names else None
        except BackupError as error:
            raise BackupError(f"{error}; `list` shows the others, --id chooses one") from error
        stores = {self.store_of(manifest) for manifest in self.all()}
        if len(stores) > 1:
            raise BackupError(
                f"{self._directory} holds backups of {len(stores)} stores: `list -o wide` shows "
                "them, --id chooses one"
            )
        return found

    def all_but(self, keep: int) -> list[Manifest]:
        """Those that are not among the newest `keep` of their store."""
        found, seen = self.all(), Counter[str]()
        old = []
        for manifest in reversed(found):
            store = self.store_of(manifest)
            seen[store] += 1
            if seen[store] > keep:
                old.append(manifest)
        return old[::-1]

    def store_of(self, manifest: Manifest) -> str:
        """Whose log it is: the id that a master shares with its slaves, or else the path."""
        path = posixpath.join(self._directory, manifest.id, "files", _IDENTITY[0])
        try:
            found = decode_saved(self._disk.read_bytes(path), _Identity)
        except (OSError, BrokenSealError):
            return manifest.source
        return found.store_id or manifest.source

    def _names(self) -> list[str]:
        """Of finished backups, oldest first: the time is in the name."""
        names = filter(self._has_manifest, self._disk.list(self._directory))
        return sorted(names, key=lambda name: (len(name), name))

    def _has_manifest(self, name: str) -> bool:
        try:
            return "manifest.json" in self._disk.list(posixpath.join(self._directory, name))
        except PermissionError:
            return name.startswith(_PREFIX)  # It is named, instead of "no backup".
        except OSError:
            return False

    def read(self, name: str) -> Manifest:
        path = posixpath.join(self._directory, name, "manifest.json")
        try:
            data = self._disk.read_bytes(path)
            digest = self._disk.read_bytes(posixpath.join(self._directory, name, "manifest.b2"))
        except PermissionError as error:
            raise BackupError(f"{name} cannot be read: {error}") from error
        except OSError as error:
            raise BackupError(f"no backup {name} in {self._directory}: {error}") from error
        if digest_text(data).encode() != digest.strip():
            raise BackupError(f"{path} is damaged: it does not match manifest.b2")
        return read_manifest(data, name)

    def verify(self, manifest: Manifest) -> list[str]:
        """What of a backup is missing or damaged, without restoring it."""
        faults = []
        for saved in [*manifest.files, *([manifest.tail] if manifest.tail else [])]:
            path = self._path(manifest, saved)
            try:
                is_sound = self._disk.file_size(path) == saved.size
                digest = Digest()
                for _ in digest.through(pieces(self._disk, path, saved.size)):
                    pass
            except OSError as error:
                faults.append(f"{path}: {error.strerror}")
                continue
            if not is_sound or digest.text != saved.digest:
                faults.append(f"{path} is damaged")
        for done, segment in enumerate(manifest.segments):
            path = self._pool_path(segment)
            try:
                if digest_file(self._disk, path) != segment.digest:
                    faults.append(f"{path} {_AGAIN}")
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
        until: Until = WHOLE,
    ) -> int:
        """Make a store below `root`, which must be empty; where its log ends.

        The log ends before the first record that `until` leaves out. Without `keeps_identity` the
        store gets ids of its own at its first start: no replica of the old one takes it for a copy.
        """
        if RESTORING in self._disk.list(root):
            raise BackupError(
                f"{root} holds a restore that was interrupted: delete everything there and call "
                "it again"
            )
        if set(self._disk.list(root)) - {_MOUNT_POINT}:
            raise BackupError(f"{root} is not empty: a restore never writes over a store")
        faults = self.verify(manifest)
        if faults:
            raise BackupError(f"the backup {manifest.id} is damaged: {'; '.join(faults[:5])}")
        part = posixpath.join(root, RESTORING)
        try:
            end = self._restore(manifest, part, keeps_identity, until)
        except OSError as error:
            _remove_tree(self._disk, part)
            raise BackupError(f"not restored, {root} is empty again: {error}") from error
        # The log comes last: without it nobody takes the rest for a store.
        for name in sorted(self._disk.list(part), key="commitlog".__eq__):
            self._disk.fsync_directory(root)
            self._disk.rename(posixpath.join(part, name), posixpath.join(root, name))
        self._disk.remove_directory(part)
        self._disk.fsync_directory(root)
        return end

    def _restore(self, manifest: Manifest, root: str, keeps_identity: bool, until: Until) -> int:
        log_directory = posixpath.join(root, "commitlog")
        self._disk.make_directories(log_directory)
        for segment in manifest.segments:
            target = posixpath.join(log_directory, segment_name(segment.start))
            copy_file(self._pool_path(segment), target)
        self._restore_tail(manifest, log_directory)
        for saved in manifest.files:
            if saved.path in _IDENTITY and not keeps_identity:
                continue
            target = posixpath.join(root, saved.path)
            self._disk.make_directories(posixpath.dirname(target))
            source = self._path(manifest, saved)
            write_file(self._disk, target, self._disk.read_bytes(source), self._disk.mode(source))
        end, later = manifest.mark, Ends()
        if until.is_bound:
            end, later = self._cut(log_directory, manifest, until)
        self._write_queue_ends(root, manifest.ends, later)
        self._disk.fsync_directory(log_directory)
        self._disk.fsync_directory(root)
        return end

    def _restore_tail(self, manifest: Manifest, log_directory: str) -> None:
        if manifest.tail is None:
            return
        path = posixpath.join(log_directory, segment_name(manifest.tail_start))
        data = pieces(self._disk, self._path(manifest, manifest.tail), manifest.tail.size)
        write_pieces(self._disk, path, data, size=manifest.segment_size)

    def _write_queue_ends(self, root: str, ends: Ends, later: Ends) -> None:
        """The log does not say how far a queue went whose messages have all expired. `later` are
        the first numbers of what was cut off."""
        own = posixpath.join(root, "twinlog")
        queues = QueueManifest(self._disk, own)
        queues.load()
        found = {key: max(end, ends.get(key, 0)) for key, end in {**ends, **queues.ends}.items()}
        found = {key: min(end, later.get(key, end)) for key, end in found.items()}
        if found:
            self._disk.make_directories(own)
            queues.write(found, queues.file_size)

    def _cut(self, log_directory: str, manifest: Manifest, until: Until) -> tuple[int, Ends]:
        """End the log before the first record that is left out."""
        log = find_log(self._disk, log_directory)
        end, later = find_end(self._disk, log, manifest.log_start, until)
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
        return end, later


def _remove_tree(disk: Disk, directory: str) -> None:
    if not disk.exists(directory):
        return
    for name in disk.list(directory):
        path = posixpath.join(directory, name)
        if disk.is_directory(path):
            _remove_tree(disk, path)
        else:
            disk.unlink(path)
    disk.remove_directory(directory)


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


@dataclass(frozen=True, slots=True)
class _LogFacts:
    """Which log this is: a slave's may be cut back, or moved aside and copied again."""

    cuts: list[str]  # What was cut off so far: each cut leaves a folder of its own.
    files: dict[int, object]  # Which file each segment is.

    @classmethod
    def of(cls, disk: Disk, root: str, directory: str) -> _LogFacts:
        names = disk.list(posixpath.join(root, "twinlog"))
        log = find_log(disk, directory)
        files = {start: disk.inode(log.path(start)) for start in log.starts}
        return cls([name for name in names if name.startswith("cut")], files)

    def is_that_of(self, later: _LogFacts) -> bool:
        """Whether only first segments have gone since, and last ones have come."""
        both = self.files.keys() & later.files.keys()
        is_same = all(self.files[start] == later.files[start] for start in both)
        return bool(both) and is_same and self.cuts == later.cuts


def _check_is_whole(log: LogFiles) -> None:
    for before, after in itertools.pairwise(log.starts):
        if after - before != log.size:
            missing = log.path(before + log.size)
            raise BackupError(f"{missing} is missing; is the log in more than one directory?")


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
