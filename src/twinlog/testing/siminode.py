"""The content of one simulated file: what programs see, what is on the platter, what is between.

Invariants: `live` is `durable` with every operation of `lost` and `pending` applied in order, and
`sync` moves a prefix of `pending` to the platter. A power cut leaves each sector as it was after
some number of the operations that touched it: the kernel writes pages back whenever it likes, in
any order, but always with the content that the page had at some moment. Sectors are written whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

SECTOR_SIZE = 512  # What a disk writes atomically.
BLOCK_SIZE = 4096  # What a file system hands out.


class _Write(NamedTuple):
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        end = self.offset + len(self.data)
        if end > len(image):
            image.extend(bytes(end - len(image)))
        image[self.offset : end] = self.data

    def size_after(self, size: int) -> int:
        return max(size, self.offset + len(self.data))

    def touches(self, start: int, end: int) -> bool:
        return self.offset < end and start < self.offset + len(self.data)


class _Resize(NamedTuple):
    """A truncation (or an extension by zeros) to exactly `size` bytes."""

    size: int

    def apply(self, image: bytearray) -> None:
        if self.size < len(image):
            del image[self.size :]
        else:
            image.extend(bytes(self.size - len(image)))

    def size_after(self, size: int) -> int:
        return self.size

    def touches(self, start: int, end: int) -> bool:
        return end > self.size


_Operation = _Write | _Resize


class SimInode:
    """A file's bytes on three levels. Names are the business of the directory."""

    def __init__(self) -> None:
        self.live = bytearray()
        self.durable = bytearray()
        self.pending: list[_Operation] = []
        self.lost: list[_Operation] = []  # Behind a failed sync: no later sync promises them.
        self.blocks: set[int] = set()
        self.modified_ms = 0
        self.mode = 0o644

    def write(self, offset: int, data: bytes) -> None:
        self._do(_Write(offset, data))
        self.blocks.update(self.blocks_of(offset, len(data)))

    def resize(self, size: int) -> None:
        if size == len(self.live):
            return
        self._do(_Resize(size))
        self.blocks = {block for block in self.blocks if block * BLOCK_SIZE < size}

    def allocate(self, size: int) -> None:
        self.blocks.update(self.blocks_of(0, size))
        if size > len(self.live):
            self._do(_Resize(size))

    def _do(self, operation: _Operation) -> None:
        operation.apply(self.live)
        self.pending.append(operation)

    @staticmethod
    def blocks_of(offset: int, size: int) -> range:
        return range(offset // BLOCK_SIZE, -(-(offset + size) // BLOCK_SIZE))

    def sync(self, count: int | None = None) -> None:
        """Make the first `count` pending operations durable (all of them unless told)."""
        count = len(self.pending) if count is None else min(count, len(self.pending))
        for operation in self.pending[:count]:
            operation.apply(self.durable)
        del self.pending[:count]

    def fail_sync(self) -> None:
        """A failed sync: the kernel marks the pages clean, and forgets that they are not."""
        self.lost += self.pending
        self.pending = []

    def survivor(self, choose: Callable[[int], int]) -> SimInode:
        """What is on the platter after a power cut.

        `choose(n)` answers a number from 0 to n: how many of n operations made it.
        """
        inode = SimInode()
        inode.durable = self._mixture(choose) if self.pending or self.lost else self.durable
        inode.live = bytearray(inode.durable)
        inode.modified_ms = self.modified_ms
        inode.mode = self.mode
        inode.blocks = set(self.blocks_of(0, len(inode.live))) & self.blocks
        return inode

    def _mixture(self, choose: Callable[[int], int]) -> bytearray:
        operations = self.lost + self.pending
        sizes = [len(self.durable)]
        for operation in operations:
            sizes.append(operation.size_after(sizes[-1]))
        size = sizes[choose(len(operations))]
        result = bytearray(size)
        for start in range(0, size, SECTOR_SIZE):
            end = start + SECTOR_SIZE
            touching = [operation for operation in operations if operation.touches(start, end)]
            sector = self._sector(start, touching[: choose(len(touching))] if touching else [])
            result[start:end] = sector[: size - start]
        return result

    def _sector(self, start: int, operations: list[_Operation]) -> bytes:
        image = bytearray(self.durable[start : start + SECTOR_SIZE])
        for operation in operations:
            if isinstance(operation, _Write):
                skip = max(0, start - operation.offset)
                data = operation.data[skip : start + SECTOR_SIZE - operation.offset]
                _Write(max(0, operation.offset - start), data).apply(image)
            else:
                _Resize(min(max(0, operation.size - start), SECTOR_SIZE)).apply(image)
        return bytes(image.ljust(SECTOR_SIZE, b"\0"))
