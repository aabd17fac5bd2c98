"""What a backup says of itself: `manifest.json`, read with distrust.

An archive may come from anywhere. What its manifest names is read and written, so a name that leads
out of the backup, or a log with a hole, is refused before anything is touched.
"""

from __future__ import annotations

import posixpath
import re
from typing import Final

import msgspec

from twinlog.message.layout import ENTRY_SIZE
from twinlog.runtime.numbers import number_or_none
from twinlog.runtime.sealed import BrokenSealError, decode_saved
from twinlog.store.errors import StoreError
from twinlog.store.log.segment import segment_name
from twinlog.store.queue.queue_manifest import Ends

VERSION: Final = 1
FOLDERS: Final = ("config", "twinlog")
_LOG_MAX: Final = 1 << 62
_NUMBER_MAX: Final = _LOG_MAX // ENTRY_SIZE
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


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

    @property
    def ends(self) -> Ends:
        """How far each queue went, without names and numbers that no queue has."""
        found: Ends = {}
        for name, end in self.queue_ends.items():
            topic, _, queue_id = name.rpartition("-")
            number = number_or_none(queue_id)
            if topic and number is not None and 0 < end < _NUMBER_MAX:
                found[topic, number] = end
        return found

    @property
    def tail_start(self) -> int:
        return self.mark - self.mark % self.segment_size


def read_manifest(data: bytes, name: str) -> Manifest:
    """Raises BackupError unless it is the manifest of the backup `name`, and makes sense."""
    try:
        manifest = decode_saved(data, Manifest)
    except BrokenSealError as error:
        raise BackupError(f"the manifest of {name} cannot be read: {error}") from error
    if manifest.version > VERSION:
        raise BackupError(f"{name} was made by a newer twinlog (version {manifest.version})")
    if fault := _fault(manifest, name):
        raise BackupError(f"the manifest of {name} is not valid: {fault}")
    return manifest


def _fault(manifest: Manifest, name: str) -> str:
    if manifest.id != name:
        return f"it is that of {manifest.id[:80]!r}"
    for saved in manifest.files:
        folder, _, file = saved.path.partition("/")
        if (
            folder not in FOLDERS
            or file != posixpath.basename(saved.path)
            or file in ("", "..")
            or "\0" in file
        ):
            return f"it names the file {saved.path[:80]!r}"
    return _log_fault(manifest)


def _log_fault(manifest: Manifest) -> str:
    if manifest.segment_size <= 0 or not 0 <= manifest.log_start <= manifest.mark < _LOG_MAX:
        return f"a log from {manifest.log_start} to {manifest.mark}"
    first = manifest.log_start - manifest.log_start % manifest.segment_size
    wanted = range(first, manifest.tail_start, manifest.segment_size)
    starts = [segment.start for segment in manifest.segments]
    if len(starts) != len(wanted) or starts != list(wanted):
        return "segments of the log are missing"
    if not all(_DIGEST.fullmatch(segment.digest) for segment in manifest.segments):
        return "a segment has no digest"
    tail_size = 0 if manifest.tail is None else manifest.tail.size
    if tail_size != manifest.mark - manifest.tail_start:
        return f"the last part of the log has {tail_size} bytes"
    return ""
