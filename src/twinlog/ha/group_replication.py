"""What replication in a controlled group has besides: epochs, the sync-state set, what it confirms.

Shell between HAService, which owns the connections, and the pure rules: `authority.py` (R1, R2, R5,
R6), `in_sync.py` (whom to admit and to let go), `epochs.py`. Corresponds to RocketMQ 5's
AutoSwitchHAService. `broker/group/replicas.py` tells it what the controller decided.

Invariants: there is an Authority exactly while this broker leads; a connection counts in the
epoch in which it was opened only; epoch and set are on disk before they are acted by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from twinlog.ha.authority import Authority
from twinlog.ha.epoch_file import EpochFile
from twinlog.ha.epochs import EpochEntry, EpochHistory
from twinlog.ha.replica_log import ReplicaStore
from twinlog.ha.twin import wire
from twinlog.ha.twin.wire import ErrorCode, Hello
from twinlog.message.crc import crc32
from twinlog.runtime.watermark import Watermark

_LOG = logging.getLogger("twinlog.ha")
_MARK_SIZE = 64  # So many bytes before an epoch's first record are its checksum.


class GroupReplication:
    """`epoch` is the newest that is stored here; `uids` are the group's replicas by id."""

    def __init__(
        self,
        store: ReplicaStore,
        confirmed: Watermark,
        epochs: EpochFile,
        is_durable: bool,
    ) -> None:
        self._store = store
        self._confirmed = confirmed
        self._epochs = epochs
        self.own_id = 0
        self.incarnation = ""
        self.is_learner = False
        self.is_durable = is_durable
        """Own end and acknowledgements count when they are on disk (SYNC_FLUSH)."""
        self.epoch = 0
        self.uids: Mapping[int, str] = {}
        self.authority: Authority | None = None
        self.on_newer_epoch: Callable[[int], None] = lambda epoch: None
        self.on_links_changed: Callable[[], None] = lambda: None
        self.on_unknown_replica: Callable[[], None] = lambda: None
        self.on_too_few: Callable[[str], None] = lambda reason: None
        self.too_few = ""
        """Why the set of this master has fewer members than a send needs copies."""
        self._unknown: frozenset[int] = frozenset()
        self.awaited: frozenset[int] = frozenset()
        """Replicas that were turned away, and about which the controller is being asked."""

    # Epochs

    @property
    def history(self) -> EpochHistory:
        return self._epochs.history(self._store.commit_log.max_offset)

    @property
    def last_epoch(self) -> int:
        """The epoch in which the last byte of this log was written."""
        return self.history.last_epoch

    def wire_epochs(self) -> tuple[wire.EpochEntry, ...]:
        return tuple(
            wire.EpochEntry(e.epoch, e.start, e.previous_crc, e.is_clean) for e in self.history
        )

    def follow_epochs(self, epochs: tuple[wire.EpochEntry, ...]) -> None:
        """The list of the master whose bytes come now; this log is a prefix of its. OSError."""
        self._epochs.replace(
            EpochEntry(e.epoch, e.start_offset, e.previous_crc, e.is_clean) for e in epochs
        )

    def begin_epoch(self, epoch: int, *, is_clean: bool) -> EpochEntry:
        """Note that the next record of this log opens `epoch`. OSError."""
        log = self._store.commit_log
        start = log.max_offset
        size = min(_MARK_SIZE, start - log.min_offset, start % log.segment_size)
        before = log.read(start - size, size) if size else b""
        entry = EpochEntry(epoch, start, crc32(before), is_clean)
        self._epochs.replace([*self.history, entry])
        return entry

    def load_epochs(self, rebuild: Callable[[], list[EpochEntry]] = list) -> None:
        """`rebuild` reads the records that open epochs out of the log, should the list be lost."""
        self._epochs.load()
        if self._epochs.was_lost:
            _LOG.warning("the list of epochs is lost and is rebuilt from the log")
            self._epochs.replace(rebuild())

    # Who may join

    def hello_refusal(self, hello: Hello) -> tuple[ErrorCode, str] | None:
        """R4, as the master sees it; the peer has proved itself."""
        if hello.epoch > self.epoch:
            self.on_newer_epoch(hello.epoch)
            return ErrorCode.STALE_EPOCH, f"this master is of epoch {self.epoch} only"
        if hello.epoch < self.epoch or self.authority is None:
            text = f"this master is of epoch {self.epoch}: ask the controller for it"
            return ErrorCode.STALE_EPOCH, text
        uid = self.uids.get(hello.replica_id)
        if uid is None:
            self._ask_about(hello.replica_id)
            text = f"replica {hello.replica_id} is not registered with the controller"
            return ErrorCode.NOT_IN_GROUP, text
        if uid and uid != hello.replica_uid:
            text = f"replica {hello.replica_id} is registered with another store"
            return ErrorCode.NOT_IN_GROUP, text
        return None

    def _ask_about(self, replica_id: int) -> None:
        """A replica that has just registered dials before this master hears of it."""
        if replica_id not in self._unknown:
            self._unknown |= {replica_id}
            self.awaited |= {replica_id}
        self.on_unknown_replica()

    def controller_answered(self, asked: frozenset[int]) -> None:
        """`asked` were awaited when the question left: who is not registered is a stranger."""
        self.awaited -= asked
        self._unknown -= self.uids.keys()

    def is_for_a_moment(self, hello: Hello | None) -> bool:
        """Whether a replica was turned away only until the controller has said who it is, or until
        both of us have heard of the same epoch."""
        if hello is None:
            return False
        is_in_epoch = hello.epoch == self.epoch and self.authority is not None
        return hello.replica_id in self.awaited or not is_in_epoch

    # Confirmed (R1)

    def lead(self, authority: Authority) -> None:
        """This broker is the master from now on; nobody is connected yet."""
        assert authority.epoch == self.epoch
        self.authority = authority
        self.own_end_moved()

    def stand_down(self) -> None:
        self.authority = None
        self.too_few = ""

    def take_set(self, set_epoch: int, members: frozenset[int], least: int) -> None:
        """The controller has committed this set. Below `least` it still confirms what was taken
        while it was larger: those who wait for that hear of it first (`on_too_few`)."""
        authority = self.authority
        assert authority is not None
        if set_epoch >= authority.set_epoch:
            size = len(members)
            reason = f"in-sync replicas {size} of {least}" if size < least else ""
            if reason and not self.too_few:
                self.on_too_few(reason)
            self.too_few = reason
        authority.committed(set_epoch, members)
        self.confirm()

    def passed_over(self, start: int, end: int) -> str:
        """Why a repeat of a message in [start, end) may be on too few disks, although the group
        has confirmed it; empty when it is not."""
        return self.too_few

    def own_end_moved(self) -> None:
        """This log has grown, or more of it is on disk."""
        if self.authority is not None:
            mark = self._store.flushed if self.is_durable else self._store.appended
            self.authority.own_end(mark.value)
            self.confirm()

    def confirm(self) -> None:
        authority = self.authority
        if authority is not None and authority.confirmed > self._confirmed.value:
            self._confirmed.advance(authority.confirmed)

    def joined(self, hello: Hello, number: int, acked: int, sent_from: int) -> None:
        """A replica follows; an empty log begins where the first byte that is sent belongs."""
        if self.authority is not None:
            log_start = sent_from if hello.log_end == hello.log_min else hello.log_min
            self.authority.connected(hello.replica_id, number, hello.incarnation, acked, log_start)
            self.confirm()
            self.on_links_changed()

    def acked(self, hello: Hello, number: int, acked: int) -> None:
        if self.authority is not None:
            self.authority.acknowledged(hello.replica_id, number, acked)
            self.confirm()

    def left(self, hello: Hello | None, number: int) -> None:
        if self.authority is not None and hello is not None:
            self.authority.disconnected(hello.replica_id, number)
            self.confirm()
            self.on_links_changed()

    def told_confirmed(self, confirmed: int) -> None:
        """On a slave: its master calls so much of this log confirmed (R10)."""
        if confirmed > self._confirmed.value:
            self._confirmed.advance(confirmed)

    def link_started(self) -> None:
        """On a slave: its log is a prefix of its master's. What was confirmed may only be gone
        when an unclean election decided so (R9)."""
        end = self._store.commit_log.max_offset
        if self._confirmed.value > end:
            self._confirmed.reset(end, "the log was cut after an unclean election")
        self.on_links_changed()

    def timeout_reason(self, end_offset: int) -> str:
        """Why a put that ended at `end_offset` was not confirmed in time."""
        authority = self.authority
        if authority is None:
            return "this broker is not the master any more"
        late = []
        for number in sorted(authority.required):
            acked = authority.acked_by(number)
            if acked is None:
                late.append(f"replica {number} is not connected")
            elif acked < end_offset:
                late.append(f"replica {number} is behind by {end_offset - acked} bytes")
        return ", ".join(late) or "it was confirmed too late"
