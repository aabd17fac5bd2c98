"""Records in a file of one controller: `groups.json` below `controllerStorePath`.

A few hundred bytes for a group, written whole for each change: temporary file, sync, rename, the
file before it as `.bak`. It has a checksum: a set or a master that one flipped bit made up would be
elected from. The directory is locked like a store: two controllers on one directory
would both be right.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath

import msgspec

from twinlog.controller.record import GroupRecord
from twinlog.controller.store import Leader, RecordStoreError, StoreOutcome
from twinlog.runtime.disk import (
    Disk,
    DiskLock,
    DiskLockedError,
    make_durable_directories,
    write_atomically,
)
from twinlog.runtime.sealed import decode_saved, encode_saved

_LOG = logging.getLogger("twinlog.controller")
FORMAT = 1


class _Groups(msgspec.Struct, kw_only=True):
    format: int
    groups: list[GroupRecord]


def _check(groups: _Groups) -> None:
    """Raises ValueError: a decision by such a record would end the controller."""
    for record in groups.groups:
        try:
            record.check()
        except AssertionError as error:
            raise ValueError(f"the record of {record.group} contradicts itself") from error


class FileRecordStore:
    """The only writer of its file while it holds the lock."""

    problem = ""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.me = Leader("", "")
        self._disk = disk
        self._directory = directory
        self._path = posixpath.join(directory, "groups.json")
        self._lock: DiskLock | None = None
        self._records: dict[str, GroupRecord] = {}

    @property
    def leader(self) -> Leader | None:
        return self.me if self.is_leading else None

    @property
    def is_leading(self) -> bool:
        return self._lock is not None

    async def led(self) -> str:
        """A lock is held until the process ends."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody ends this")

    async def lead(self) -> list[GroupRecord]:
        """Take the directory and read it.

        Raises:
            RecordStoreError: another controller has it, or the file is damaged.
        """
        if self._lock is None:
            make_durable_directories(self._disk, self._directory)
            try:
                self._lock = self._disk.lock(posixpath.join(self._directory, "lock"))
            except DiskLockedError as error:
                text = f"controllerStorePath {self._directory} belongs to a running controller"
                raise RecordStoreError(text) from error
        self._records = {record.group: record for record in self._read()}
        return list(self._records.values())

    def _read(self) -> list[GroupRecord]:
        if not self._disk.exists(self._path):
            return []
        try:
            groups = decode_saved(self._disk.read_bytes(self._path), _Groups)
            _check(groups)
        except ValueError as error:
            raise RecordStoreError(
                f"{self._path} cannot be read ({error}): restore it from its .bak, or remove both"
                " and let the groups be adopted again"
            ) from error
        except OSError as error:
            what = "it is a directory" if self._disk.is_directory(self._path) else error.strerror
            raise RecordStoreError(
                f"{self._path} cannot be read ({what}): let the controller read it, or restore it"
                " from its .bak, or remove both and let the groups be adopted again"
            ) from error
        if groups.format != FORMAT:
            raise RecordStoreError(f"{self._path} has format {groups.format}, this is {FORMAT}")
        return groups.groups

    async def load(self, group: str) -> GroupRecord | None:
        """
        Raises:
            RecordStoreError: the file is damaged, or gone although this controller wrote it.
        """
        if self._records and not self._disk.exists(self._path):
            raise RecordStoreError(
                f"{self._path} is gone: nothing is decided until it is back. If it is lost, restart"
                " the controller and let the groups be adopted again"
            )
        self._records = {record.group: record for record in self._read()}
        return self._records.get(group)

    async def commit(self, record: GroupRecord) -> StoreOutcome:
        known = self._records.get(record.group)
        if record.version != (known.version if known else 0) + 1:
            return StoreOutcome.STALE
        records = {**self._records, record.group: record}
        data = encode_saved(
            _Groups(format=FORMAT, groups=[records[name] for name in sorted(records)])
        )
        try:
            await self._disk.run(self._write, data)
        except OSError as error:
            _LOG.warning("record not written path=%s error=%s", self._path, error)
            return StoreOutcome.UNKNOWN
        self._records = records
        return StoreOutcome.DONE

    def _write(self, data: bytes) -> None:
        write_atomically(self._disk, self._path, data, keep_backup=True)

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
