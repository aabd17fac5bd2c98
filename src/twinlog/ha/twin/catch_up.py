"""A master that lacks what its slaves have: no sends until it has fetched it.

Shell over completeness.py and tail.py. `HAService` tells it what happens on its connections; it
holds the store's puts while something is missing, takes the tail from one slave at a time, and lets
go when everything is appended, synced and dispatched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from twinlog.ha.connection import HAConnection
from twinlog.ha.group_transfer import GroupTransferService
from twinlog.ha.replica_log import ReplicaStore
from twinlog.ha.settings import HASettings
from twinlog.ha.twin.completeness import ASYNC_WAIT_MS, Completeness, TailVerdict, judge_tail
from twinlog.ha.twin.mark import ConfirmedMark
from twinlog.ha.twin.tail import TailChecker
from twinlog.ha.twin.wire import ErrorCode
from twinlog.ha.wire import RemoteProtocolError
from twinlog.runtime.clock import Clock
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.ha")
_NO_DEADLINE_MS = 1 << 62


class Service(Protocol):
    """The HAService."""

    settings: HASettings
    group_transfer: GroupTransferService

    @property
    def connections(self) -> Sequence[HAConnection]: ...


class MasterCatchUp:
    """`reason` is empty when the master takes sends, as far as its log is concerned."""

    def __init__(
        self,
        service: Service,
        mark: ConfirmedMark,
        store: ReplicaStore,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._service = service
        self._mark = mark
        self._store = store
        self._confirmed = service.group_transfer.confirmed
        self._log = store.commit_log
        self._clock = clock
        self._tasks = tasks
        self._known = Completeness()
        self._source: HAConnection | None = None
        self._checker: TailChecker | None = None
        self._is_flushing = False
        self._is_releasing = False
        self._damage = ""
        self._said_reason = ""
        self._on_complete: list[Callable[[], None]] = []
        self.reason = ""
        # Called with the new end before the own tail is cut: nobody must wait for what is in it.
        self.on_own_cut: Callable[[int, str], None] = lambda end, reason: None
        # Called before a slave's tail is fetched, and before sends are accepted again. The second
        # is told whether an own tail had to make room for it.
        self.on_fetch: Callable[[], None] = lambda: None
        self.on_fetched: Callable[[bool], None] = lambda was_own_cut: None
        self._has_fetched = self._was_own_cut = False

    # Start

    def begin(self) -> None:
        """The mark is loaded and nothing is served yet."""
        deadline_ms = None
        if self._is_alone:
            deadline_ms = self._clock.monotonic_ms() + ASYNC_WAIT_MS
        self._mark.leads(self._log.max_offset, is_alone=self._is_alone)
        self._known = Completeness(
            confirmed=self._mark.value,
            awaited=self._mark.replicas if self._mark.is_in_doubt else frozenset(),
            ack_count=max(1, self._service.group_transfer.ack_count),
            deadline_ms=deadline_ms,
        )
        self._check()

    @property
    def _is_alone(self) -> bool:
        """Whether it answers SEND_OK without any slave."""
        service = self._service
        return not service.settings.is_sync or service.group_transfer.ack_count == 0

    def when_complete(self, action: Callable[[], None]) -> None:
        """Call `action` once the log is complete: now, or later."""
        if self.reason:
            self._on_complete.append(action)
        else:
            action()

    # What happens on connections

    def slave_is_longer(self, connection: HAConnection, common: int) -> None:
        """Decide about what a slave has beyond `common`, and begin."""
        core = connection.twin
        hello = core.hello
        assert hello is not None
        if self._source is not None:
            text = f"the tail of {self._source.address} is being copied: connect again later"
            core.refuse(ErrorCode.STOPPING, text)
            return
        # Nothing may be put between the look at the own end and what is done about it.
        self._hold(self.reason or f"looking at what {connection.address} has beyond {common}")
        end = self._log.max_offset
        core.log_moved(self._log.min_offset, end)
        is_empty = self._log.min_offset == end
        own_confirmed = max(self._mark.value, self._confirmed.value, self._mark.alone_end)
        verdict = judge_tail(
            end if is_empty else common,
            own_end=end,
            own_confirmed=own_confirmed,
            slave_confirmed=hello.confirmed,
            is_sync=not self._is_alone,
            can_fetch=core.can_fetch,
        )
        match verdict:
            case TailVerdict.TRUNCATE:
                core.truncate_slave(common)
            case TailVerdict.REFUSE:
                core.refuse(
                    ErrorCode.CONFIRMED_DIFFERS,
                    f"the logs differ from {common} on, the slave's is confirmed up to"
                    f" {hello.confirmed}, the master's, which ends at {end}, confirmed or answered"
                    f" up to {own_confirmed}: nothing is cut, PAIR.md says what to do",
                )
            case TailVerdict.FETCH | TailVerdict.CUT_AND_FETCH:
                self._begin_fetch(connection, common)
        self._check()

    def _begin_fetch(self, connection: HAConnection, common: int) -> None:
        hello = connection.hello
        assert hello is not None
        self._has_fetched = True
        self.on_fetch()
        try:
            if self._log.min_offset == self._log.max_offset != common:
                self._log.start_at(common)
        except (StoreError, OSError) as error:
            connection.twin.refuse(ErrorCode.DISK, f"the master cannot begin its log: {error}")
            return
        _LOG.warning(
            "this log lacks what a slave has: fetching slave=%s from=%d to=%d known confirmed=%d",
            connection.address, common, hello.log_end, hello.confirmed,
        )  # fmt: skip
        self._source = connection
        self._checker = TailChecker(common, self._log.segment_size)
        connection.core.log_moved(self._log.min_offset, self._log.max_offset)
        connection.twin.fetch(common)

    def _cut_own(self, connection: HAConnection, common: int) -> None:
        """Messages that this master took after it came back, none of them confirmed. Not before
        the first record of the slave's tail was checked: one that has decayed there differs, too.
        """
        reason = f"the log of {connection.address} is confirmed where this one differs"
        for other in tuple(self._service.connections):
            if other is not connection:
                other.close(f"the master cuts its log to {common}: {reason}")
        self._confirmed.fail_above(common, reason)
        self._was_own_cut = True
        self.on_own_cut(common, reason)
        self._log.truncate_to(common, reason=reason)

    def tail_received(self, connection: HAConnection, body: bytes) -> None:
        assert self._checker is not None
        core = connection.twin
        try:
            begin = self._checker.offset
            whole = self._checker.take(body)
            if whole:
                if self._log.max_offset > begin:
                    self._cut_own(connection, begin)
                self._log.append_raw(begin, whole)
        except RemoteProtocolError as error:
            core.refuse(ErrorCode.PROTOCOL, str(error))
            return
        except (StoreError, OSError) as error:
            core.refuse(ErrorCode.DISK, f"the master's log did not take the tail: {error}")
            return
        core.tail_stored(self._log.min_offset, self._log.max_offset)

    def slave_joined(self, connection: HAConnection) -> None:
        hello = connection.hello
        assert hello is not None
        self._mark.joined(hello.replica_id)
        self._known.heard.add(hello.replica_id)
        if connection is self._source:
            _LOG.warning("fetched from the slave %s, the log ends at %d now",
                         connection.address, self._log.max_offset)  # fmt: skip
            self._source = self._checker = None
            self._is_flushing = True
            self._tasks.vital("flush-tail", self._flush)
        self._check()

    def connection_closed(self, connection: HAConnection) -> None:
        if connection is self._source:
            self._source = self._checker = None
            self._check()

    def damage_found(self, offset: int, reason: str) -> None:
        """The dispatcher does not take a record of the fetched tail."""
        self._damage = f"damage in this log at {offset}: {reason}"
        self._check()

    def tick(self) -> None:
        if self.reason:
            self._check()
        if not self.reason and self._store.flushed.value >= self._confirmed.value:
            # What those who left may have confirmed is on this disk by now.
            twins = [connection.hello for connection in self._service.connections]
            self._mark.keep_replicas(hello.replica_id for hello in twins if hello is not None)

    # Work

    async def _flush(self) -> None:
        await self._store.flush()
        self._is_flushing = False
        self._check()

    def _check(self) -> None:
        """Hold or let go, by what is known now."""
        reason = self._known.reason(self._log.max_offset, self._clock.monotonic_ms())
        if self._damage:
            reason = self._damage
        elif self._source is not None:
            reason = f"the missing end of the log is copied from {self._source.address}"
        elif self._is_flushing:
            reason = "the end of the log that was copied is being synced"
        if reason:
            if reason != self._said_reason:
                _LOG.warning("sends are refused: %s", reason)
            self._said_reason = reason
            self._hold(reason)
        elif self.reason:
            self._release()

    def _hold(self, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason
            self._store.hold_puts(reason)

    def _release(self) -> None:
        if not self._store.release_puts():
            if not self._is_releasing:
                self._is_releasing = True
                end = self._store.appended.value
                self._store.dispatched.wait(end, _NO_DEADLINE_MS, self._dispatched)
            return
        if self._said_reason:
            _LOG.info("sends are accepted again, log end %d", self._log.max_offset)
        self.reason = self._said_reason = ""
        self._mark.note(min(self._known.confirmed, self._log.max_offset))
        self._mark.complete()
        self._known.awaited = frozenset()
        if self._has_fetched:
            was_own_cut, self._has_fetched, self._was_own_cut = self._was_own_cut, False, False
            self.on_fetched(was_own_cut)
        actions, self._on_complete = self._on_complete, []
        for action in actions:
            action()

    def _dispatched(self, *_: object) -> None:
        self._is_releasing = False
        self._check()
