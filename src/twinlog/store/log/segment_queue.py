"""A row of segments, one after the other without a gap. Corresponds to RocketMQ's MappedFileQueue.

Used by the commit log. Consume queues keep two numbers instead (there may be a hundred thousand
of them) and share `list_segments`.
"""

from __future__ import annotations

import itertools
import logging
import posixpath
from collections.abc import Mapping, Sequence

from twinlog.runtime.disk import Disk
from twinlog.store.errors import StoreLayoutError
from twinlog.store.log.segment import Segment, create_segment, parse_segment_name, segment_name

_LOG = logging.getLogger("twinlog.store")
_PAGE_SIZE = 4096  # Of which sizes in configurations are multiples.


def list_segments(disk: Disk, directory: str, size: int, *, key: str) -> list[int]:
    """Starts of the segments in `directory`, ascending.

    A foreign entry is left alone with a warning, an empty file (a crash between creating and
    extending) is removed; another length means a configuration that does not fit the files.
    """
    starts: list[int] = []
    for name in disk.list(directory):
        path = posixpath.join(directory, name)
        start = parse_segment_name(name)
        if start is None or disk.is_directory(path):
            _LOG.warning("foreign entry ignored path=%s", path)
            continue
        actual = disk.file_size(path)
        if actual == 0:
            _LOG.warning("empty file removed path=%s", path)
            disk.unlink(path)
            continue
        if actual != size:
            raise StoreLayoutError(
                f"{path} has {actual} bytes, but {key} is {size}: set {key} to the size with which "
                f"the store was written. If the other files have {size} bytes, {_remedy(key)}"
            )
        if start % size:
            raise StoreLayoutError(f"{path}: the name is not a multiple of {key} {size}")
        starts.append(start)
    return starts


def _remedy(key: str) -> str:
    if key == "mappedFileSizeCommitLog":
        return "copy this one from a replica, where it is the same, or from a backup"
    return "move this one away: it is made again from the log"


class SegmentQueue:
    """Segments in ascending order; the last is the one that is written."""

    def __init__(self, disk: Disk, directories: Sequence[str], size: int) -> None:
        assert directories
        self._disk = disk
        self._directories = sorted(directories)
        self._size = size
        self.segments: list[Segment] = []

    def load(self, *, key: str, read_only: Sequence[str] = ()) -> None:
        """Open every file. Raises StoreLayoutError when one is missing in the middle."""
        if len(self._directories) == 1 and not read_only:
            self._extend_last(self._directories[0])
        found: dict[int, str] = {}
        for directory in (*self._directories, *read_only):
            for start in list_segments(self._disk, directory, self._size, key=key):
                path = posixpath.join(directory, segment_name(start))
                if start in found:
                    raise StoreLayoutError(f"{path} and {found[start]} are the same segment")
                found[start] = path
        self._check_are_files_of_their_own(found)
        starts = sorted(found)
        for before, after in itertools.pairwise(starts):
            if after - before != self._size:
                raise StoreLayoutError(
                    f"the log has a hole: {found[after]} does not follow {found[before]}; "
                    "copy the missing file from a replica, where it is the same, or from a backup, "
                    "or move the older files away"
                )
        self.segments = [
            Segment(found[start], start, self._size, self._disk.open(found[start]))
            for start in starts
        ]

    def _check_are_files_of_their_own(self, found: Mapping[int, str]) -> None:
        """A link between two segments: what is written to one, by whoever heals it, is lost to the
        other. A link to another disk is not ours to judge."""
        owners: dict[object, str] = {}
        for start in sorted(found):
            path = found[start]
            owner = owners.setdefault(self._disk.inode(path), path)
            if owner != path:
                raise StoreLayoutError(
                    f"{path} and {owner} are one file, by a link: remove the link and copy the "
                    "missing file from a replica, where it is the same, or from a backup"
                )

    def _extend_last(self, directory: str) -> None:
        """A last file that is too short (a copy that left zeros out, a reservation that was cut
        off) gets its length back; recovery says then whether something is missing.

        A file that is alone and has a round length is another thing: a configuration that does not
        fit the store.
        """
        sizes = {
            start: self._disk.file_size(posixpath.join(directory, name))
            for name in self._disk.list(directory)
            if (start := parse_segment_name(name)) is not None
        }
        size = sizes.get(max(sizes, default=-1), 0)
        is_alone = len(sizes) == 1 and size % _PAGE_SIZE == 0
        if not 0 < size < self._size or is_alone:
            return
        path = posixpath.join(directory, segment_name(max(sizes)))
        _LOG.warning("last file is short, extended path=%s from=%d to=%d", path, size, self._size)
        file = self._disk.open(path)
        try:
            file.allocate(self._size)
            file.fdatasync()
        finally:
            file.close()

    def path_of(self, start: int) -> str:
        """Where a new segment goes: several directories are used in turn."""
        directory = self._directories[start // self._size % len(self._directories)]
        return posixpath.join(directory, segment_name(start))

    def create(self, start: int) -> Segment:
        """Make the file that begins at `start`; the caller appends it. Runs in a thread, too."""
        return create_segment(self._disk, self.path_of(start), start, self._size)

    def append(self, segment: Segment) -> None:
        assert not self.segments or self.segments[-1].end == segment.start
        self.segments.append(segment)

    def find(self, offset: int) -> Segment | None:
        """The segment that holds `offset`."""
        if not self.segments:
            return None
        index = (offset - self.segments[0].start) // self._size
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def close(self) -> None:
        for segment in self.segments:
            segment.file.close()
        self.segments = []
