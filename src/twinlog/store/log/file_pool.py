"""Open files, a bounded number of them. Ten thousand topics have more files than descriptors."""

from __future__ import annotations

from collections import OrderedDict

from twinlog.runtime.disk import Disk, DiskFile


class FilePool:
    """Least recently used files are closed when there are more than `count_max`.

    Callers use a file at once and do not keep it: the next `get` may close it.
    """

    def __init__(self, disk: Disk, count_max: int) -> None:
        assert count_max > 0
        self._disk = disk
        self._count_max = count_max
        self._files: OrderedDict[str, DiskFile] = OrderedDict()

    @property
    def count(self) -> int:
        return len(self._files)

    def get(self, path: str) -> DiskFile:
        """The open file at `path`, which must exist."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        return self._keep(path, self._disk.open(path))

    def create(self, path: str, size: int) -> DiskFile:
        """A new sparse file of `size` zero bytes."""
        file = self._disk.open(path, create=True)
        try:
            file.truncate(size)
        except OSError:
            file.close()
            raise
        return self._keep(path, file)

    def _keep(self, path: str, file: DiskFile) -> DiskFile:
        self._files[path] = file
        if len(self._files) > self._count_max:
            self._files.popitem(last=False)[1].close()
        return file

    def forget(self, path: str) -> None:
        """Close `path` if it is open (before it is removed)."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
