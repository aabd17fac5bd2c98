"""What this replica knows as confirmed, and whether a power loss may have taken some of it.

Two files in `store/twinlog/`, on masters and on slaves:

    confirmed.mark   three slots, 4,096 bytes apart; in each of them
                     0-7 int64 offset, 8-11 uint32 CRC-32 of bytes 0-7; the highest counts
    replicas.json    the boot of the machine that wrote it last, whether the store is in doubt and
                     which processes of a controlled group ran on it since then, and on a master
                     the brokerIds of the replicas whose acknowledgements it counted, whether it
                     answers without them, and how far such a time reached

A slave writes the offset when it hears it, so that a kill does not take it. Once a second it is
synced, and the next one goes to another slot: a power cut in the middle of a write leaves the one
that was synced last, which is a second too low at most. (The third slot is for what comes while a
sync is under way.) The second file is synced before anything rests on it.

The mark is there before a slave acknowledges anything: what it acknowledges may be confirmed before
it is told so. While the file is there, whatever it says, the log is not moved aside.

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
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved

_LOG = logging.getLogger("twinlog.ha")
MARK_NAME = "confirmed.mark"
REPLICAS_NAME = "replicas.json"
SYNC_INTERVAL_MS = 1_000
PROCESSES_MAX = 16  # One that is left out is not known to have been admitted: still in doubt.
SLOTS = (0, 4096, 8192)
_OFFSET_SIZE = 8
_SIZE = 12
_UNKNOWN = -1  # A sync that failed may have dropped what was written.


class _Saved(msgspec.Struct, frozen=True):
    boot_id: str = ""
    is_in_doubt: bool = False
    processes: tuple[str, ...] = ()
    replicas: tuple[int, ...] = ()
    is_alone: bool = False
    alone_end: int = 0


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
        self._slot = 0  # Where the next offset is written.
        self._durable_slot = len(SLOTS) - 1  # Synced last; not written before another one is.
        self._is_synced = True
        self._saved = _Saved()
        self._now = _Saved()
        self._is_failing = False
        self.value = 0
        self.has_lost_power = False
        self._is_there = False

    @property
    def is_in_doubt(self) -> bool:
        return self._now.is_in_doubt

    @property
    def processes(self) -> tuple[str, ...]:
        """Of a store in doubt: whatever one of these was seen to have, it has, because there was
        no power loss since the first of them began."""
        return self._now.processes

    @property
    def replicas(self) -> frozenset[int]:
        return frozenset(self._now.replicas)

    @property
    def alone_end(self) -> int:
        """Up to here an earlier process may have answered SEND_OK without a slave."""
        return self._now.alone_end

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
        self._now = msgspec.structs.replace(
            self._saved,
            boot_id=boot_id,
            is_in_doubt=self._saved.is_in_doubt or is_doubtful,
            processes=() if self.has_lost_power else self._saved.processes,
        )
        if is_doubtful:
            _LOG.warning(
                "this machine has booted since the broker ran: what it had not synced may be gone"
                " confirmed=%d", self.value,
            )  # fmt: skip
        self.save()

    def peek(self) -> tuple[int, bool, tuple[int, ...]]:
        """What the files of a stopped broker say: confirmed offset, doubt, counted replicas."""
        saved = self._read_replicas()
        return max(self._read_slots(), default=0), saved.is_in_doubt, saved.replicas

    def _read_slots(self) -> dict[int, int]:
        """Slot by the offset that stands in it."""
        assert self._disk is not None
        found: dict[int, int] = {}
        if not self._disk.exists(self._mark_path):
            return found
        data = self._disk.read_bytes(self._mark_path)
        for slot, start in enumerate(SLOTS):
            number = data[start : start + _OFFSET_SIZE]
            crc = data[start + _OFFSET_SIZE : start + _SIZE]
            if len(crc) == _SIZE - _OFFSET_SIZE and crc32(number).to_bytes(4, "big") == crc:
                found[int.from_bytes(number, "big")] = slot
        return found

    def _read_mark(self) -> int:
        assert self._disk is not None
        self._is_there = self._disk.exists(self._mark_path)
        if not self._is_there:
            return 0
        found = self._read_slots()
        if not found:
            _LOG.warning("confirmed offset not readable path=%s", self._mark_path)
            return 0
        value = max(found)
        self._durable_slot = found[value]
        self._slot = (self._durable_slot + 1) % len(SLOTS)
        self._open().fdatasync()  # A kill leaves what was never synced.
        return value

    def _read_replicas(self) -> _Saved:
        assert self._disk is not None
        if not self._disk.exists(self._replicas_path):
            return _Saved()
        try:
            return decode_saved(self._disk.read_bytes(self._replicas_path), _Saved)
        except BrokenSealError as error:
            _LOG.warning("replicas not readable path=%s error=%s", self._replicas_path, error)
            return _Saved(boot_id="unreadable")

    # Facts

    def note(self, value: int) -> None:
        """This replica has everything below `value`, and it is confirmed. Saved later."""
        if value > self.value:
            self.value = value

    def covers(self, log_min: int, log_end: int) -> bool:
        """Whether something of this log may be confirmed."""
        return log_end > log_min and (self._is_there or self.value > log_min)

    def follow(self, log_end: int) -> None:
        """What this slave has and gets is its master's, who may count on it."""
        self.rebase(log_end)
        if self._now.is_alone or self._now.alone_end:
            self._change(is_alone=False, alone_end=0)
        if not self._is_there:
            self.save(is_synced=True)

    def rebase(self, value: int) -> None:
        """What is appended from now on says nothing about what was confirmed beyond `value`."""
        if value < self.value:
            _LOG.warning(
                "this replica had confirmed bytes and lost them confirmed=%d end=%d",
                self.value, value,
            )  # fmt: skip
            self.value = value
            self.save(is_synced=True)

    def leads(self, log_end: int, *, is_alone: bool) -> None:
        """Before a master takes sends: whether it will answer SEND_OK without any slave. What one
        that did has in its log is not to be given up later as if nobody had been told."""
        if is_alone and not self._now.is_alone:
            self._change(is_alone=True)
        elif self._now.is_alone and not is_alone:
            self._change(is_alone=False, alone_end=log_end)

    def began(self, incarnation: str) -> None:
        """A process of a controlled group. Should it be admitted and end before it hears of that,
        the next one is not in doubt."""
        if self._now.is_in_doubt:
            self._change(processes=(*self._now.processes, incarnation)[-PROCESSES_MAX:])

    def complete(self) -> None:
        """This replica has what its group has."""
        if self._now.is_in_doubt:
            _LOG.info("the store is complete again confirmed=%d", self.value)
            self._change(is_in_doubt=False, processes=())

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
            self._written = _UNKNOWN
        else:
            self._is_failing = False

    def _write(self, *, is_news: bool, is_synced: bool) -> None:
        assert self._disk is not None
        if is_synced:
            for slot in range(len(SLOTS)):
                self._write_slot(slot)
        elif self.value != self._written:
            self._write_slot(self._slot)
        if self._file is not None and (is_news or is_synced):
            self._file.fdatasync()
            self._disk.fsync_directory(posixpath.dirname(self._mark_path))
            self._was_synced(self._slot)
        if is_news:
            make_own_directory(self._disk, self._root)
            write_atomically(self._disk, self._replicas_path, encode_saved(self._now))
            self._saved = self._now

    def _open(self) -> DiskFile:
        assert self._disk is not None
        if self._file is None:
            make_own_directory(self._disk, self._root)
            self._file = self._disk.open(self._mark_path, create=True)
            self._is_there = True
        return self._file

    def _write_slot(self, slot: int) -> None:
        number = self.value.to_bytes(_OFFSET_SIZE, "big")
        self._open().pwritev([number + crc32(number).to_bytes(4, "big")], SLOTS[slot])
        self._written = self.value
        self._is_synced = False

    def _was_synced(self, slot: int) -> None:
        if not self._is_synced:
            self._durable_slot = slot
            self._slot = (slot + 1) % len(SLOTS)
            self._is_synced = True

    async def sync(self) -> None:
        """What is known now survives a power cut."""
        self.save()
        if self._disk is None or self._file is None or self._is_synced:
            return
        file, slot = self._file, self._slot
        self._slot = 3 - slot - self._durable_slot  # The third one.
        self._is_synced = True
        try:
            await self._disk.run(file.fdatasync)
            await self._disk.run(self._disk.fsync_directory, posixpath.dirname(self._mark_path))
        except OSError as error:
            self._written = _UNKNOWN
            _LOG.warning("confirmed offset not synced path=%s error=%s", self._mark_path, error)
        except ValueError:  # Closed before the sync began: the broker stops.
            assert self._file is not file
        else:
            if self._slot != slot:
                self._durable_slot = slot

    def close(self) -> None:
        self.save()
        if self._file is not None:
            self._file.close()
            self._file = None
