"""What this replica knows as confirmed, and whether a power loss may have taken some of it.

Two files in `store/twinlog/`, on masters and on slaves:

    confirmed.mark   0-7 int64 offset, 8-11 uint32 CRC-32 of bytes 0-7
    replicas.json    the boot of the machine that wrote it last, whether the store is in doubt, and
                     on a master the brokerIds of the replicas whose acknowledgements it counted

The offset is written about once a second and synced only with the second file: one that is late,
or from before a power cut, is too low, which costs care and no message. The second file is synced
before anything rests on it.

In doubt is a store that was not stopped cleanly, on a machine that has booted since, whose flush is
asynchronous. It stays so, also over further starts, until it has what its group has.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable

import msgspec

from twinlog.message.crc import crc32
from twinlog.runtime.disk import Disk, DiskFile, make_own_directory, write_atomically

_LOG = logging.getLogger("twinlog.ha")
MARK_NAME = "confirmed.mark"
REPLICAS_NAME = "replicas.json"
_OFFSET_SIZE = 8
_SIZE = 12


class _Saved(msgspec.Struct, frozen=True):
    boot_id: str = ""
    is_in_doubt: bool = False
    replicas: tuple[int, ...] = ()


class ConfirmedMark:
    """Known facts in memory and in their files. Without a disk, in memory only."""

    def __init__(self, disk: Disk | None = None, root: str = "") -> None:
        self._disk = disk
        self._root = root
        own = posixpath.join(root, "twinlog")
        self._mark_path = posixpath.join(own, MARK_NAME)
        self._replicas_path = posixpath.join(own, REPLICAS_NAME)
        self._file: DiskFile | None = None
        self._written = 0
        self._saved = _Saved()
        self._now = _Saved()
        self._is_failing = False
        self.value = 0
        self.has_lost_power = False

    @property
    def is_in_doubt(self) -> bool:
        return self._now.is_in_doubt

    @property
    def replicas(self) -> frozenset[int]:
        return frozenset(self._now.replicas)

    # Start

    def load(self, *, was_clean: bool, is_durable: bool) -> None:
        """Read what is known, and decide about doubt, durably."""
        if self._disk is None:
            return
        self.value = self._written = self._read_mark()
        self._saved = self._read_replicas()
        boot_id = self._disk.boot_id()
        has_booted = bool(self._saved.boot_id) and self._saved.boot_id != boot_id
        self.has_lost_power = has_booted and not was_clean
        is_doubtful = self.has_lost_power and not is_durable
        self._now = _Saved(boot_id, self._saved.is_in_doubt or is_doubtful, self._saved.replicas)
        if is_doubtful:
            _LOG.warning(
                "this machine has booted since the broker ran: what it had not synced may be gone"
                " confirmed=%d", self.value,
            )  # fmt: skip
        self.save()

    def _read_mark(self) -> int:
        assert self._disk is not None
        if not self._disk.exists(self._mark_path):
            return 0
        data = self._disk.read_bytes(self._mark_path)
        number = data[:_OFFSET_SIZE]
        if len(data) < _SIZE or crc32(number).to_bytes(4, "big") != data[_OFFSET_SIZE:_SIZE]:
            _LOG.warning("mark of what is confirmed not readable path=%s", self._mark_path)
            return 0
        return int.from_bytes(number, "big")

    def _read_replicas(self) -> _Saved:
        assert self._disk is not None
        if not self._disk.exists(self._replicas_path):
            return _Saved()
        try:
            return msgspec.json.decode(self._disk.read_bytes(self._replicas_path), type=_Saved)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _LOG.warning("replicas not readable path=%s error=%s", self._replicas_path, error)
            return _Saved(boot_id="unreadable")

    # Facts

    def note(self, value: int) -> None:
        """This replica has everything below `value`, and it is confirmed. Saved later."""
        if value > self.value:
            self.value = value

    def rebase(self, value: int) -> None:
        """What is appended from now on says nothing about what was confirmed beyond `value`."""
        if value < self.value:
            _LOG.warning(
                "this replica had confirmed bytes and has not got them confirmed=%d end=%d",
                self.value, value,
            )  # fmt: skip
            self.value = value
            self.save(is_synced=True)

    def complete(self) -> None:
        """This replica has what its group has."""
        if self._now.is_in_doubt:
            _LOG.info("the store is complete again confirmed=%d", self.value)
            self._change(is_in_doubt=False)

    def joined(self, replica_id: int) -> None:
        """Its acknowledgements count from now on: known after a power loss, too."""
        if replica_id not in self._now.replicas:
            self._change(replicas=tuple(sorted({*self._now.replicas, replica_id})))

    def keep_replicas(self, replica_ids: Iterable[int]) -> None:
        """The others are gone, and the own disk has all that they may have confirmed."""
        kept = tuple(sorted(self.replicas & set(replica_ids)))
        if kept != self._now.replicas:
            self._change(replicas=kept)

    def _change(self, **changes: object) -> None:
        self._now = msgspec.structs.replace(self._now, **changes)
        self.save()

    # Files

    def save(self, *, is_synced: bool = False) -> None:
        """Write what has changed. A full disk is tried again at the next call."""
        is_news = self._now != self._saved
        if self._disk is None or not (is_news or self.value != self._written or is_synced):
            return
        try:
            self._write(is_news=is_news, is_synced=is_synced)
        except OSError as error:
            if not self._is_failing:
                _LOG.warning("confirmed offset not saved path=%s error=%s", self._mark_path, error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _write(self, *, is_news: bool, is_synced: bool) -> None:
        assert self._disk is not None
        if self.value != self._written or is_synced:
            if self._file is None:
                make_own_directory(self._disk, self._root)
                self._file = self._disk.open(self._mark_path, create=True)
            number = self.value.to_bytes(_OFFSET_SIZE, "big")
            self._file.pwritev([number + crc32(number).to_bytes(4, "big")], 0)
            self._written = self.value
        if self._file is not None and (is_news or is_synced):
            self._file.fdatasync()
            self._disk.fsync_directory(posixpath.dirname(self._mark_path))
        if is_news:
            make_own_directory(self._disk, self._root)
            write_atomically(self._disk, self._replicas_path, msgspec.json.encode(self._now))
            self._saved = self._now

    def close(self) -> None:
        self.save()
        if self._file is not None:
            self._file.close()
            self._file = None
