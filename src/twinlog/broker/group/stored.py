"""What a broker keeps of its controlled group between two processes.

`store/brokerIdentity` has the id that the controller gave, in RocketMQ 5's form; while it is being
applied for, `store/brokerIdentity-temp` has it with the check code, so that a crash in between
applies for the same id again. `store/twinlog/group.json` has the newest record of the group and the
newest epoch that was heard of: both are there, durably, before anything is done by them (R4).
A store of a controlled group that is led without a controller says so there, too.
"""

from __future__ import annotations

import logging
import posixpath
from dataclasses import dataclass

import msgspec

from twinlog.controller.record import GroupRecord
from twinlog.ha.epoch_file import EpochFile
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically
from twinlog.runtime.numbers import number_or_none
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.broker")
_SEPARATOR = "#"
_IDENTITY = "brokerIdentity"
_END = 2**63 - 1
# More elections than a controller holds meanwhile among replicas that know nothing of it.
_FIXED_EPOCHS = 1_000


class _Saved(msgspec.Struct, frozen=True, rename="camel"):
    known_epoch: int
    record: GroupRecord | None = None
    is_fixed: bool = False
    """Led by a fixed master since."""


@dataclass(frozen=True, slots=True)
class Application:
    """An id that is being applied for."""

    broker_id: int
    check_code: str


class StoredGroup:
    """The files. `load` comes after the store has its lock."""

    def __init__(self, disk: Disk, root: str, cluster: str, name: str) -> None:
        self._disk = disk
        self._root = root
        self._cluster = cluster
        self._name = name
        self._path = _record_path(root)
        self._id_path = posixpath.join(root, _IDENTITY)
        self._temp_path = posixpath.join(root, f"{_IDENTITY}-temp")
        self.broker_id: int | None = None
        self.application: Application | None = None
        self.record: GroupRecord | None = None
        self.known_epoch = 0

    def load(self) -> None:
        """
        Raises:
            StoreError: the store belongs to another group, or its identity cannot be read.
        """
        fields = self._read_identity(self._id_path, 3)
        if fields is not None:
            self.broker_id = self._id_of(self._id_path, fields)
        else:
            temp = self._read_identity(self._temp_path, 4)
            if temp is not None:
                self.application = Application(self._id_of(self._temp_path, temp), temp[3])
        self._load_record()

    def _read_identity(self, path: str, count: int) -> list[str] | None:
        if not self._disk.exists(path):
            return None
        text = self._disk.read_bytes(path).decode("utf-8", "replace").strip()
        fields = text.split(_SEPARATOR, count - 1)
        if len(fields) != count:
            raise StoreError(f"{path} does not say which broker this is: {text[:80]!r}")
        return fields

    def _id_of(self, path: str, fields: list[str]) -> int:
        if (fields[0], fields[1]) != (self._cluster, self._name):
            raise StoreError(
                f"{path}: this store belongs to broker {fields[1]} of cluster {fields[0]}, the"
                f" configuration names {self._name} of {self._cluster}"
            )
        number = number_or_none(fields[2], 1, 2**31 - 1)
        if number is None:
            raise StoreError(f"{path} has no id of a broker: {fields[2][:20]!r}")
        return number

    def _load_record(self) -> None:
        saved = _read_record(self._disk, self._path)
        if saved is not None:
            self.record, self.known_epoch = saved.record, saved.known_epoch
        # A lost or damaged file takes the record, but not the fence: the log has its epochs, too.
        self.known_epoch = max(self.known_epoch, _last_epoch(self._disk, self._root))

    # Identity

    def apply(self, application: Application) -> None:
        """Before the controller is asked for it. OSError."""
        fields = (self._cluster, self._name, application.broker_id, application.check_code)
        write_atomically(self._disk, self._temp_path, _joined(fields))
        self.application = application

    def applied(self) -> None:
        """The controller has given the id. OSError."""
        assert self.application is not None
        number = self.application.broker_id
        write_atomically(self._disk, self._id_path, _joined((self._cluster, self._name, number)))
        self._disk.unlink(self._temp_path)
        self.broker_id, self.application = number, None

    def withdraw(self) -> None:
        """Somebody else has the id that was applied for."""
        self.application = None

    # Record

    async def save(self, record: GroupRecord | None, known_epoch: int) -> None:
        """Durable when it returns; OSError, and nothing counts then."""
        assert known_epoch >= self.known_epoch
        saved = _Saved(known_epoch, record)
        await self._disk.run(self._write, encode_saved(saved))
        self.record, self.known_epoch = record, known_epoch

    def _write(self, data: bytes) -> None:
        make_own_directory(self._disk, self._root)
        write_atomically(self._disk, self._path, data)


def lead_without_controller(disk: Disk, root: str) -> None:
    """A fixed master begins on a store of a controlled group; OSError.

    No controller knows of what it takes from now on. It counts as a newer epoch: when the group is
    controlled again, an older record of it does not decide (R12), and nothing is cut by it (R4).
    """
    if not disk.exists(posixpath.join(root, _IDENTITY)):
        return
    path = _record_path(root)
    saved = _read_record(disk, path)
    if saved is not None and saved.is_fixed:
        return
    known = max(_last_epoch(disk, root), 0 if saved is None else saved.known_epoch)
    write_atomically(disk, path, encode_saved(_Saved(known + _FIXED_EPOCHS, is_fixed=True)))


def _last_epoch(disk: Disk, root: str) -> int:
    """The newest epoch of which the log has a record."""
    epochs = EpochFile(disk, root)
    epochs.load()
    return max((entry.epoch for entry in epochs.history(_END)), default=0)


def _record_path(root: str) -> str:
    return posixpath.join(root, "twinlog", "group.json")


def _read_record(disk: Disk, path: str) -> _Saved | None:
    if not disk.exists(path):
        return None
    try:
        return decode_saved(disk.read_bytes(path), _Saved)
    except BrokenSealError as error:
        # Of a slave of a fixed pair it has another form, and says nothing of epochs.
        _LOG.warning("group not readable path=%s error=%s", path, error)
        return None


def _joined(fields: tuple[object, ...]) -> bytes:
    return _SEPARATOR.join(str(field) for field in fields).encode()
