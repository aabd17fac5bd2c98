"""A disk that can lose power, fill up, fail and stall. Stands in for `PosixDisk`.

What it does to a program is what POSIX allows, and no more:

- Data is safe after fdatasync returned, for what was written before it was called. Before that
  any part of it may be there after a power cut, in pieces of 512 bytes, in any order.
- A name is safe after fsync of its directory. Before that each creation, rename and removal may
  or may not have happened, whatever happened to the data. A rename is atomic. A directory that
  is lost takes with it what is in it.
- A write to a full disk fails with ENOSPC, perhaps after a part of it was written.
- After a failed fdatasync nothing that was not safe before it ever is promised again.
- A killed process loses nothing that it wrote: `kill`. A power cut does: `crash`.

Faults are set up by the name of a call (`pwritev`, `fdatasync`, `rename` ...). Every call that
changes something is counted; `crash_after` cuts the power behind the n-th: the call raises
SimCrash, and so does every later one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from typing_extensions import Buffer

from twinlog.runtime.disk import DiskLockedError, DiskSpace, DiskSyncError
from twinlog.testing.siminode import BLOCK_SIZE, SimInode
from twinlog.testing.simtree import DIRECTORY, NameTree, name_of, parent_of

_T = TypeVar("_T")
_QUOTA_DEFAULT = 1 << 40


class SimCrash(BaseException):
    """The power is off. No `except Exception` of the program under test may catch it."""


@dataclass(slots=True)
class _NameChange:
    """One step of a directory: all of its removals and settings happen together or not at all."""

    removed: tuple[str, ...]
    added: tuple[tuple[str, SimInode | None], ...]
    directories: tuple[str, ...]  # Whose fsync makes it safe.

    def moved(self, source: str, target: str) -> _NameChange:
        """The same change after the directory `source` around it became `target`."""

        def new(name: str) -> str:
            is_inside = name == source or name.startswith(source + "/")
            return target + name[len(source) :] if is_inside else name

        return _NameChange(
            tuple(map(new, self.removed)),
            tuple((new(name), inode) for name, inode in self.added),
            tuple(map(new, self.directories)),
        )

    def apply(self, tree: NameTree) -> None:
        for name in self.removed:
            tree.remove(name)
        for name, inode in self.added:
            tree.set(name, inode)


@dataclass(slots=True)
class _Fault:
    call: str
    countdown: int
    number: int
    path: str = ""


@dataclass(slots=True)
class SimStats:
    """What was asked of the disk."""

    calls: Counter[str] = field(default_factory=Counter)


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: SimDisk, path: str, inode: SimInode, *, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._read_only = read_only
        self._is_closed = False

    def pread(self, size: int, offset: int) -> bytes:
        self._begin("pread")
        return bytes(self._inode.live[offset : offset + size])

    def map(self) -> None:
        """Not mapped: every read is a call that can be made to fail."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> int:
        self._begin("pwritev", is_change=True)
        data = b"".join(bytes(buffer) for buffer in buffers)
        room = self._disk.room_for(self._inode, offset, len(data))
        if room:
            self._inode.write(offset, data[:room])
            self._inode.modified_ms = self._disk.now_ms()
        if room < len(data):
            raise self._error(errno.ENOSPC)
        self._disk.changed()
        return len(data)

    def allocate(self, size: int) -> None:
        self._begin("allocate", is_change=True)
        if self._disk.room_for(self._inode, 0, size) < size:
            raise self._error(errno.ENOSPC)
        self._inode.allocate(size)
        self._disk.changed()

    def truncate(self, size: int) -> None:
        self._begin("truncate", is_change=True)
        self._inode.resize(size)
        self._inode.modified_ms = self._disk.now_ms()
        self._disk.changed()

    def size(self) -> int:
        self._begin("size")
        return len(self._inode.live)

    def next_data(self, offset: int) -> int | None:
        self._begin("next_data")
        for block in sorted(self._inode.blocks):
            if (block + 1) * BLOCK_SIZE > offset and block * BLOCK_SIZE < len(self._inode.live):
                return max(offset, block * BLOCK_SIZE)
        return None

    def fdatasync(self) -> None:
        self._sync(len(self._inode.pending))

    async def fdatasync_async(self) -> None:
        # What is written while the call runs is not covered by its promise.
        count = len(self._inode.pending)
        await self._disk.stalled()
        self._sync(count)

    def _sync(self, count: int) -> None:
        try:
            self._begin("fdatasync", is_change=True)
        except OSError as error:
            self._inode.fail_sync()
            raise DiskSyncError(error.errno, f"fdatasync failed: {error}", self.path) from error
        self._inode.sync(count)
        self._disk.changed()

    def close(self) -> None:
        self._is_closed = True

    def _begin(self, call: str, *, is_change: bool = False) -> None:
        if self._is_closed or (is_change and self._read_only and call != "fdatasync"):
            raise self._error(errno.EBADF)
        self._disk.begin(call, self.path)

    def _error(self, number: int) -> OSError:
        return OSError(number, os.strerror(number), self.path)


class _SimLock:
    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


class SimDisk:
    """A file system in memory. Paths are absolute or relative, in one tree."""

    def __init__(
        self, *, quota: int = _QUOTA_DEFAULT, now_ms: Callable[[], int] | None = None
    ) -> None:
        self.quota = quota
        self.now_ms = now_ms or (lambda: 0)
        self.stats = SimStats()
        self.locked: set[str] = set()
        self.change_count = 0
        self.crash_after: int | None = None
        self.is_off = False
        self.boot_count = 0
        self._tree = NameTree()
        self._durable = NameTree()
        self._pending: list[_NameChange] = []
        self._faults: list[_Fault] = []
        self._gate: asyncio.Event | None = None

    # What a program calls: the Disk protocol.

    def open(
        self, path: str, *, create: bool = False, read_only: bool = False, mode: int | None = None
    ) -> SimFile:
        name = self._begin("open", path)
        if name not in self._tree:
            if not create:
                raise self._error(errno.ENOENT, path)
            self._need_directory(parent_of(name), path)
            inode = SimInode()
            inode.modified_ms = self.now_ms()
            self._change(_NameChange((), ((name, inode),), (parent_of(name),)))
        inode = self._file(name, path)
        inode.mode = inode.mode if mode is None else mode
        return SimFile(self, path, inode, read_only=read_only)

    def mode(self, path: str) -> int:
        return self._file(self._begin("mode", path), path).mode

    def exists(self, path: str) -> bool:
        return self._begin("exists", path) in self._tree

    def is_directory(self, path: str) -> bool:
        name = self._begin("is_directory", path)
        return name in self._tree and self._tree[name] is DIRECTORY

    def make_directories(self, path: str) -> None:
        name = self._begin("make_directories", path)
        missing = []
        while name not in self._tree:
            missing.append(name)
            name = parent_of(name)
        self._need_directory(name, path)
        for directory in reversed(missing):
            added = ((directory, DIRECTORY),)
            self._change(_NameChange((), added, (parent_of(directory),)))

    def list(self, path: str) -> list[str]:
        name = self._begin("list", path)
        return list(self._tree.names(name))

    def file_size(self, path: str) -> int:
        return len(self._file(self._begin("file_size", path), path).live)

    def modified_ms(self, path: str) -> int:
        name = self._begin("modified_ms", path)
        return self._file(name, path).modified_ms

    def inode(self, path: str) -> int:
        return id(self._file(self._begin("inode", path), path))

    def rename(self, source: str, target: str) -> None:
        name = self._begin("rename", source)
        new_name = name_of(target)
        if name not in self._tree:
            raise self._error(errno.ENOENT, source)
        self._need_directory(parent_of(new_name), target)
        if self._tree[name] is DIRECTORY and self._tree.names(new_name):
            raise self._error(errno.ENOTEMPTY, target)
        moved = self._tree.below(name)
        added = tuple((new_name + old[len(name) :], self._tree[old]) for old in moved)
        if self._tree[name] is DIRECTORY:
            # What is not safe yet inside a moved directory is made safe under its new name.
            self._pending = [change.moved(name, new_name) for change in self._pending]
        directories = (parent_of(name), parent_of(new_name))
        self._change(_NameChange(tuple(moved), added, directories))

    def unlink(self, path: str) -> None:
        name = self._begin("unlink", path)
        self._file(name, path)
        self._change(_NameChange((name,), (), (parent_of(name),)))

    def remove_directory(self, path: str) -> None:
        name = self._begin("remove_directory", path)
        self._need_directory(name, path)
        if self._tree.names(name):
            raise self._error(errno.ENOTEMPTY, path)
        self._change(_NameChange((name,), (), (parent_of(name),)))

    def fsync_directory(self, path: str) -> None:
        try:
            name = self._begin("fsync_directory", path)
        except OSError as error:
            raise DiskSyncError(error.errno, f"fsync failed: {error}", path) from error
        self._need_directory(name, path)
        kept = []
        for change in self._pending:
            if name in change.directories:
                change.apply(self._durable)
            else:
                kept.append(change)
        self._pending = kept
        self.changed()

    def sync_filesystem(self, path: str) -> None:
        try:
            self._begin("sync_filesystem", path)
        except OSError as error:
            raise DiskSyncError(error.errno, f"syncfs failed: {error}", path) from error
        for change in self._pending:
            change.apply(self._durable)
        self._pending = []
        for inode in self._tree.values():
            if inode is not None:
                inode.sync(len(inode.pending))
        self.changed()

    def lock(self, path: str) -> _SimLock:
        name = self._begin("lock", path)
        if name in self.locked:
            raise DiskLockedError(errno.EAGAIN, "another process holds the lock", path)
        file = self.open(path, create=True)
        file.pwritev([b"lock"], 0)
        file.fdatasync()
        file.close()
        self.locked.add(name)
        return _SimLock(self, name)

    def space(self, path: str) -> DiskSpace:
        self._begin("space", path)
        used = self._used()
        return DiskSpace(used=used, usable=max(0, self.quota - used))

    def read_bytes(self, path: str) -> bytes:
        return bytes(self._file(self._begin("read_bytes", path), path).live)

    async def run(self, function: Callable[..., _T], *arguments: Any) -> _T:
        await self.stalled()
        return function(*arguments)

    def close(self) -> None:
        """Nothing to give back."""

    # What a test calls: time, faults, power.

    def fail(self, call: str, *, nth: int = 1, number: int = errno.EIO, path: str = "") -> None:
        """Let the `nth` coming `call` (on a path that contains `path`) fail with `number`."""
        self._faults.append(_Fault(call, nth, number, path))

    def stall(self) -> None:
        """Hold every fdatasync_async and `run` until `resume`."""
        if self._gate is None:  # Whoever waits already is not forgotten.
            self._gate = asyncio.Event()

    def resume(self) -> None:
        if self._gate is not None:
            self._gate.set()
        self._gate = None

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Rot: one bit of a file is another, on the platter and in memory."""
        inode = self._file(name_of(path), path)
        for image in (inode.live, inode.durable):
            if offset < len(image):
                image[offset] ^= 1 << bit

    def kill(self) -> SimDisk:
        """SIGKILL: the process is gone, the kernel goes on. Locks are free, nothing is lost."""
        self.is_off = True
        disk = SimDisk(quota=self.quota, now_ms=self.now_ms)
        disk._tree, disk._durable, disk._pending = self._tree, self._durable, self._pending
        disk.boot_count = self.boot_count
        return disk

    def crash(self, rng: random.Random | None) -> SimDisk:
        """A power cut: the disk as it is found afterwards.

        Without `rng` everything is gone that may be.
        """
        self.is_off = True
        disk = SimDisk(quota=self.quota, now_ms=self.now_ms)
        disk.boot_count = self.boot_count + 1
        tree = self._durable.copy()
        for change in self._pending:
            if rng is not None and rng.random() < 0.5:
                change.apply(tree)
        disk._tree = tree.without_orphans()
        inodes: dict[int, SimInode] = {}

        def choose(count: int) -> int:
            return 0 if rng is None else rng.randint(0, count)

        for name, inode in disk._tree.items():
            if inode is not None:
                if id(inode) not in inodes:
                    inodes[id(inode)] = inode.survivor(choose)
                disk._tree.set(name, inodes[id(inode)])
        disk._durable = disk._tree.copy()
        return disk

    def peek(self, path: str, offset: int, size: int, *, durable: bool = False) -> bytes:
        """What is in a file, or on the platter, also when the power is off; nothing is counted."""
        name = name_of(path)
        inode = (self._durable if durable else self._tree).get(name)
        if inode is None:
            return b""
        return bytes((inode.durable if durable else inode.live)[offset : offset + size])

    def names(self, directory: str, *, durable: bool = False) -> Sequence[str]:
        """What is in a directory, for whoever judges the disk from outside."""
        tree = self._durable if durable else self._tree
        return tree.names(name_of(directory))

    def remove_tree(self, directory: str) -> None:
        """Somebody deletes a directory and all that is in it, for good."""
        start = name_of(directory)
        for tree in (self._tree, self._durable):
            for name in tree.below(start):
                tree.remove(name)

    def boot_id(self) -> str:
        return f"boot-{self.boot_count}"

    def snapshot(self) -> dict[str, bytes]:
        """Every file and its content, as programs see them."""
        return {name: bytes(inode.live) for name, inode in self._tree.items() if inode is not None}

    # What files call.

    def begin(self, call: str, path: str) -> None:
        if self.is_off:
            raise SimCrash(f"{call} {path}: the power is off")
        self.stats.calls[call] += 1
        for fault in self._faults:
            if fault.call == call and fault.path in path:
                fault.countdown -= 1
                if fault.countdown == 0:
                    self._faults.remove(fault)
                    raise self._error(fault.number, path)

    def changed(self) -> None:
        """A call that changes something was carried out: the moment at which power may go."""
        self.change_count += 1
        if self.crash_after is not None and self.change_count >= self.crash_after:
            self.is_off = True
            raise SimCrash(f"power cut after change {self.change_count}")

    def room_for(self, inode: SimInode, offset: int, size: int) -> int:
        """How many bytes at `offset` the quota allows."""
        if self.quota >= _QUOTA_DEFAULT:
            return size
        free = (self.quota - self._used()) // BLOCK_SIZE
        for block in inode.blocks_of(offset, size):
            if block not in inode.blocks:
                if free <= 0:
                    return max(0, block * BLOCK_SIZE - offset)
                free -= 1
        return size

    async def stalled(self) -> None:
        """A moment in a thread: others go on; held while the disk is stalled."""
        gate = self._gate
        if gate is not None:
            await gate.wait()
        else:
            await asyncio.sleep(0)

    def _used(self) -> int:
        inodes = {id(inode): inode for inode in self._tree.values() if inode is not None}
        return sum(len(inode.blocks) for inode in inodes.values()) * BLOCK_SIZE

    def _begin(self, call: str, path: str) -> str:
        self.begin(call, path)
        return name_of(path)

    def _change(self, change: _NameChange) -> None:
        change.apply(self._tree)
        self._pending.append(change)
        self.changed()

    def _file(self, name: str, path: str) -> SimInode:
        if name not in self._tree:
            raise self._error(errno.ENOENT, path)
        inode = self._tree[name]
        if inode is None:
            raise self._error(errno.EISDIR, path)
        return inode

    def _need_directory(self, name: str, path: str) -> None:
        if name not in self._tree:
            raise self._error(errno.ENOENT, path)
        if self._tree[name] is not DIRECTORY:
            raise self._error(errno.ENOTDIR, path)

    @staticmethod
    def _error(number: int, path: str) -> OSError:
        return OSError(number, os.strerror(number), path)
