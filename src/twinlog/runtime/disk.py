"""The only way to files. Everything that is written goes through here, so a test can be the disk.

Writes use pwrite, never a writable mapping: a full disk is then an error of the call (ENOSPC) and
not a signal that kills the process. Synchronising is explicit; a failed fdatasync is final, because
Linux marks the pages clean and the next call would claim success for data that is gone.

Reads use pread, or a read-only mapping where a little is wanted of much (`map`). A disk that cannot
be read any more then ends the process, as it does Apache's; a file that is shorter than it was
mapped does, too, so only files that keep their length are mapped.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from typing_extensions import Buffer

from twinlog.runtime.sync_thread import SyncThread

_T = TypeVar("_T")
FileBytes: TypeAlias = bytes | mmap.mmap  # Bytes of a file: read, or as it is mapped.


def _load_libc() -> ctypes.CDLL | None:
    """The C library, for the one call that Python lacks; None where it has no syncfs."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.syncfs.argtypes = [ctypes.c_int]
    except (OSError, AttributeError, TypeError):
        return None
    return library


_LIBC = _load_libc()
_IOV_COUNT_MAX = 1024  # IOV_MAX of Linux: a longer vector is refused by the kernel.


class DiskSyncError(OSError):
    """fsync or fdatasync failed. What was not durable before is unknown now; stop and recover."""


class DiskLockedError(OSError):
    """Another process has the lock."""


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes of the file system under a path. `used` and `usable` are those of `df`."""

    used: int
    usable: int

    @property
    def ratio(self) -> float:
        """RocketMQ's ratio: rounded up to a whole percent, -1 when it cannot be known."""
        total = self.used + self.usable
        if total <= 0:
            return -1.0
        return -(-100 * self.used // total) / 100


class DiskFile(Protocol):
    """One open file."""

    path: str

    def pread(self, size: int, offset: int) -> bytes: ...

    def map(self) -> FileBytes | None:
        """The whole file for reading, until it is closed; None where it cannot be mapped."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers or raise; a short write is continued."""
        ...

    def allocate(self, size: int) -> None:
        """Reserve the blocks of [0, size): later writes there cannot meet a full disk."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def next_data(self, offset: int) -> int | None:
        """Where data may begin at or after `offset`; None when only a hole follows.

        A file system without holes answers `offset`: the caller reads and sees zeros.
        """
        ...

    def fdatasync(self) -> None: ...

    async def fdatasync_async(self) -> None:
        """fdatasync in a thread, so that the loop goes on."""
        ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    """A held lock file."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system."""

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, mode: int | None = None
    ) -> DiskFile:
        """`mode` is given to the file, new or not; without it a new file is readable by all."""
        ...

    def mode(self, path: str) -> int:
        """Who may read and write it: the nine bits of chmod."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def make_directories(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when there is none."""
        ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def inode(self, path: str) -> object:
        """Which file this is: equal for two names of one file."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None: ...

    def fsync_directory(self, path: str) -> None: ...

    def sync_filesystem(self, path: str) -> None:
        """Make all files and names of the file system of `path` durable: for thousands of them."""
        ...

    def lock(self, path: str) -> DiskLock: ...

    def space(self, path: str) -> DiskSpace: ...

    def read_bytes(self, path: str) -> bytes: ...

    def boot_id(self) -> str:
        """Another one after each start of the machine: what was written and not synced before may
        be gone. Empty where nobody can tell."""
        ...

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call `function`, which does only disk calls, in a thread: the loop goes on."""
        ...


def make_own_directory(disk: Disk, root: str) -> str:
    """`store/twinlog`, there after a power cut too: what is written into it must not go with it."""
    path = os.path.join(root, "twinlog")
    if not disk.exists(path):
        disk.make_directories(path)
        disk.fsync_directory(root)
    return path


def make_durable_directories(disk: Disk, path: str) -> None:
    """A directory that is there after a power cut, whoever made it just now and how many above it:
    each entry is durable with the directory that holds it."""
    disk.make_directories(path)
    directory, parent = "", path.rstrip("/")
    while parent != directory:
        directory, parent = parent, os.path.dirname(parent) or "."
        with suppress(OSError):  # One that is not ours to open was there before.
            disk.fsync_directory(parent)


_FICLONE = 0x40049409  # ioctl of Linux: the copy shares its blocks until one is written.
_COPY_SIZE = 4 << 20


def copy_file(source: str, target: str) -> None:
    """A durable copy. Never a hard link: whoever has the source open may still write into it."""
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        except OSError:
            shutil.copyfileobj(reader, writer, _COPY_SIZE)
        writer.flush()
        os.fsync(writer.fileno())


def make_new_directory(path: str) -> bool:
    """False: somebody else has made it. Its parents are made too."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


_SECRET_MODE = 0o600


def write_atomically(
    disk: Disk, path: str, data: bytes, *, keep_backup: bool = False, is_secret: bool = False
) -> None:
    """Replace `path` so that a crash leaves the old content or the new, never a part.

    With `keep_backup` the old content stays as `path.bak`. Temp, fsync, rename, fsync of the
    directory: without the last step the rename itself may be lost. The mode of the old file is the
    new one's and the backup's; what `is_secret` is for its owner alone.
    """
    directory = os.path.dirname(path)
    is_there = disk.exists(path)
    mode = disk.mode(path) if is_there else None
    if is_secret:
        mode = _SECRET_MODE if mode is None else mode & _SECRET_MODE
    _write_new(disk, path + ".tmp", data, mode)
    if keep_backup and is_there:
        _write_new(disk, path + ".bak.tmp", disk.read_bytes(path), mode)
        disk.rename(path + ".bak.tmp", path + ".bak")
    disk.rename(path + ".tmp", path)
    disk.fsync_directory(directory)


def write_with_directory(disk: Disk, path: str, data: bytes, keep_backup: bool = False) -> None:
    """`write_atomically`, into a directory that is made if it is not there."""
    directory = os.path.dirname(path)
    if directory:
        disk.make_directories(directory)
    write_atomically(disk, path, data, keep_backup=keep_backup)


def _write_new(disk: Disk, path: str, data: bytes, mode: int | None) -> None:
    file = disk.open(path, create=True, mode=mode)
    try:
        file.truncate(0)
        if data:
            file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()


# struct fiemap and struct fiemap_extent of <linux/fiemap.h>.
_FIEMAP = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQ16xI12x")
_FS_IOC_FIEMAP = 0xC020660B
_FIEMAP_FLAG_SYNC = 0x1
_EXTENT_LAST = 0x1
_EXTENT_UNWRITTEN = 0x800
_EXTENT_COUNT = 64


def _next_written(fd: int, offset: int) -> int | None:
    """Where written blocks begin at or after `offset`; None when only reserved ones follow.

    ext4 counts blocks that are reserved and not written as data: reading a gigabyte of zeros of
    a fresh segment takes a second, asking takes none.
    """
    while True:
        head = _FIEMAP.pack(offset, (1 << 63) - 1, _FIEMAP_FLAG_SYNC, 0, _EXTENT_COUNT, 0)
        buffer = bytearray(head + bytes(_EXTENT.size * _EXTENT_COUNT))
        try:
            fcntl.ioctl(fd, _FS_IOC_FIEMAP, buffer)
        except OSError:
            return offset  # A file system that cannot say: the caller reads and sees zeros.
        count = _FIEMAP.unpack_from(buffer)[3]
        for number in range(count):
            at = _FIEMAP.size + _EXTENT.size * number
            extent: tuple[int, int, int, int] = _EXTENT.unpack_from(buffer, at)
            start, _, size, flags = extent
            if not flags & _EXTENT_UNWRITTEN:
                return max(offset, start)
            if flags & _EXTENT_LAST:
                return None
        if count == 0:
            return None
        offset = start + size


class PosixFile:
    """A file descriptor."""

    __slots__ = ("_fd", "_map", "_syncs", "path")

    def __init__(self, path: str, fd: int, syncs: SyncThread) -> None:
        self.path = path
        self._fd = fd
        self._syncs = syncs
        self._map: mmap.mmap | None = None

    def map(self) -> mmap.mmap | None:
        if self._map is None:
            try:
                self._map = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
            except (OSError, ValueError):  # No room for it, or an empty file.
                return None
        return self._map

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing:
            data = os.pread(self._fd, missing, offset + size - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        if len(buffers) == 1:
            # A turn of the loop, and a frame of the master: the common case.
            data = buffers[0]
            size = len(data) if type(data) is bytes else memoryview(data).nbytes
            if os.pwrite(self._fd, data, offset) == size:
                return size
        total = 0
        for start in range(0, len(buffers), _IOV_COUNT_MAX):
            total += self._pwritev_some(buffers[start : start + _IOV_COUNT_MAX], offset + total)
        return total

    def _pwritev_some(self, buffers: Sequence[Buffer], offset: int) -> int:
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        written = os.pwritev(self._fd, buffers, offset)
        if written < size:
            rest = memoryview(b"".join(buffers))
            while written < size:
                written += os.pwrite(self._fd, rest[written:], offset + written)
        return size

    def allocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            # A file system without reservation: sparse, as Apache's files are.
            os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def next_data(self, offset: int) -> int | None:
        try:
            found = os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return offset
        return _next_written(self._fd, found)

    def fdatasync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._sync_error(error.errno or 0) from error

    async def fdatasync_async(self) -> None:
        number = await self._syncs.sync(self)
        if number:
            raise self._sync_error(number)

    def _sync_error(self, number: int) -> DiskSyncError:
        return DiskSyncError(number, f"fdatasync failed: {os.strerror(number)}", self.path)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PosixLock:
    """An fcntl record lock on the first byte, the kind that a Java broker takes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class PosixDisk:
    """The real file system."""

    def __init__(self) -> None:
        # The commit log has a thread of its own, so that it never waits for the rest.
        self._syncs = SyncThread()
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="twinlog-sync")

    def close(self) -> None:
        self._syncs.close()
        self._executor.shutdown(wait=True)

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, mode: int | None = None
    ) -> PosixFile:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644 if mode is None else mode)
        if mode is not None:
            os.fchmod(fd, mode)  # One that a crash left behind has another, and there is umask.
        return PosixFile(path, fd, self._syncs)

    def mode(self, path: str) -> int:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o777

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def inode(self, path: str) -> tuple[int, int]:
        status = os.stat(path)
        return status.st_dev, status.st_ino

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def fsync_directory(self, path: str) -> None:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise DiskSyncError(error.errno, f"fsync failed: {error.strerror}", path) from error
        finally:
            os.close(fd)

    def sync_filesystem(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _LIBC is None:
                os.sync()
            elif _LIBC.syncfs(fd) != 0:
                number = ctypes.get_errno()
                text = f"syncfs failed: {os.strerror(number)}"
                raise DiskSyncError(number, text, path)
        finally:
            os.close(fd)

    def lock(self, path: str) -> PosixLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(fd)
            raise DiskLockedError(error.errno, "another process holds the lock", path) from error
        # The four bytes that Apache's broker writes.
        os.pwrite(fd, b"lock", 0)
        os.fsync(fd)
        return PosixLock(fd)

    def space(self, path: str) -> DiskSpace:
        facts = os.statvfs(path)
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        return DiskSpace(used=used, usable=facts.f_bavail * facts.f_frsize)

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def boot_id(self) -> str:
        try:
            return self.read_bytes(_BOOT_ID_PATH).decode("ascii", "replace").strip()
        except OSError:
            return ""  # Not Linux: a start that was not clean is then never one in doubt.
