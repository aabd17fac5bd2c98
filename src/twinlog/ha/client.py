"""The slave's end: dials the master, stores what it sends, reports what is stored.

Corresponds to RocketMQ's HAClient, which keeps one `MasterLink` up: it knows the master's address,
dials, waits between attempts, and answers damage that the dispatcher found behind it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol

from twinlog.ha.damage import FINGERPRINT_SIZE_MAX, DamageGuard, DamageVerdict
from twinlog.ha.dialect import CLASSIC, Dialect, Verdict
from twinlog.ha.link import MasterLink
from twinlog.ha.receiver import HAReceiver, ReceiverSettings
from twinlog.ha.redial import RedialPolicy
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.resume import resume_offset
from twinlog.ha.status import ClientStatus
from twinlog.ha.twin.receiver import TwinReceiver
from twinlog.ha.twin.wire import EpochEntry, ErrorCode
from twinlog.ha.wire import HAConnectionState
from twinlog.runtime.clock import Clock
from twinlog.runtime.numbers import number_of
from twinlog.runtime.watermark import Watermark
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.ha")
_CONNECT_TIMEOUT_MS = 5000  # RocketMQ's.
_REPAIR_PAUSE_MS = 1000  # A full disk does not get free in a hurry.
_ADDRESS_LENGTH_MIN = 6  # RocketMQ's rule for a configured haMasterAddress.


_NOTHING_COMMON = frozenset((ErrorCode.OTHER_STORE, ErrorCode.NOTHING_COMMON))
_LOG_DOES_NOT_FIT = _NOTHING_COMMON | {
    ErrorCode.DIVERGED,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.MASTER_EMPTY,
}

# The HA address that is to be dialled -> what to speak there.
AskDialect = Callable[[str], Awaitable[Verdict]]


class TwinSide(Protocol):
    """What the HAService is to a client that can speak the twin dialect."""

    def new_receiver(self) -> TwinReceiver: ...

    def master_refusal(self, host: str) -> str: ...

    def epochs_learnt(self, epochs: tuple[EpochEntry, ...]) -> None: ...

    def link_started(self, store_id: str) -> None: ...

    def confirmed_heard(self, confirmed: int) -> None: ...


class HAClient:
    """Keeps one connection to the master up, for as long as the broker is a slave."""

    def __init__(
        self,
        log: ReplicaLog,
        flushed: Watermark,
        clock: Clock,
        settings: ReceiverSettings,
        *,
        fixed_address: str | None = None,
        ask_dialect: AskDialect | None = None,
        twin: TwinSide | None = None,
        reseed_all: Callable[[str], None] | None = None,
        has_confirmed: Callable[[], bool] = lambda: False,
        tls: ssl.SSLContext | None = None,
        redial: RedialPolicy | None = None,
        on_link: Callable[[], None] = lambda: None,
    ) -> None:
        """`has_confirmed`: whether this log has bytes that its replica knows as confirmed.
        `on_link` is called when a connection has ended."""
        self._on_link = on_link
        self.tls = tls
        self._has_confirmed = has_confirmed
        self._ask_dialect = ask_dialect
        self._twin = twin
        self._reseed_all = reseed_all
        self._log = log
        self._flushed = flushed
        self._clock = clock
        self._settings = settings
        self._is_fixed = fixed_address is not None and len(fixed_address) >= _ADDRESS_LENGTH_MIN
        self._address = fixed_address if self._is_fixed else None
        self._wake = asyncio.Event()
        self._policy = redial or RedialPolicy()
        self._guard = DamageGuard()
        self._damage_offset: int | None = None
        self._damage_reason = ""
        self._stay_reason = ""
        self._is_refused = False
        self._differs_reason = ""
        self._failure: BaseException | None = None
        self._since_ms = clock.now_ms()
        self._disconnect_ms = 0
        self._heard_ms = 0
        self._disconnect_reason = ""
        self._is_stopping = False
        self.connect_count = 0
        self.link: MasterLink | None = None
        self._seen_end = 0
        self._seen_confirmed = 0

    @property
    def is_linked(self) -> bool:
        """Whether the master is there and replicates to this slave."""
        return self.link is not None and self.link.core.state is HAConnectionState.TRANSFER

    def heard_ms_ago(self) -> int | None:
        """How long ago the master of a twin link was heard; None without one that replicates."""
        core = None if self.link is None else self.link.twin
        if core is None or not self.is_linked:
            return None
        return self._clock.monotonic_ms() - core.last_read_ms

    @property
    def master_end(self) -> int:
        """The end of the master's log when it last said so; the twin dialect's only."""
        self._note_marks(self.link)
        return self._seen_end

    @property
    def confirmed(self) -> int:
        """How far the master last said that enough replicas have its log."""
        self._note_marks(self.link)
        return self._seen_confirmed

    def _note_marks(self, link: MasterLink | None) -> None:
        core = None if link is None else link.twin
        if core is not None:
            self._seen_end = max(self._seen_end, core.master_end)
            self._seen_confirmed = max(self._seen_confirmed, core.confirmed)

    @property
    def master_address(self) -> str | None:
        return self._address

    def update_master_address(self, address: str | None) -> None:
        """What a registration answered. A configured address is never replaced, none never clears.

        A connection that works is left alone; the new address is used at the next dial, at once
        when there is none.
        """
        if self._is_fixed or not address or address == self._address:
            return
        _LOG.info("master HA address is now %s, was %s", address, self._address)
        self._address = address
        self._policy.reset()
        self._guard.reset()
        self._stay_reason = ""
        self._wake.set()

    def configure(self, settings: ReceiverSettings) -> None:
        """Other intervals, from now on and for the next connection."""
        self._settings = settings
        if self.link is not None:
            self.link.configure(settings)

    def stop(self, reason: str = "the broker is stopping") -> None:
        """Close the link and dial no more."""
        self._is_stopping = True
        self._wake.set()
        if self.link is not None:
            self.link.close(reason)

    def redial_now(self) -> None:
        """The master said that it is back: do not wait for the next attempt. One whose log did not
        fit may have another store by now."""
        if self._is_refused:
            self._is_refused, self._stay_reason = False, ""
        if self.link is None:
            self._policy.reset()
            self._wake.set()
        else:
            # It may be one to the master before its power was lost: that one will not answer.
            self.link.speak()

    def dialect_heard(self, *, is_other: bool) -> None:
        """The master has said what it is. What was learnt in another dialect is not true of it: the
        connection ends, and the reasons to stay away are forgotten."""
        if is_other:
            self._guard.reset()
            self._stay_reason = ""
            if self.link is not None:
                self.link.close("the master speaks another dialect: connecting again")
        if is_other or self.link is None:
            self._policy.reset()
            self._wake.set()

    def damage_found(self, offset: int, reason: str) -> None:
        """The dispatcher found a bad record at `offset`: cut the log there and ask again."""
        assert offset <= self._log.max_offset
        _LOG.error("damage in the log offset=%d reason=%s", offset, reason)
        self._damage_offset = offset
        self._damage_reason = f"damage at {offset}: {reason}"
        self._wake.set()
        if self.link is not None:
            self.link.close(self._damage_reason)

    async def run(self) -> None:
        """Dial and dial again, until cancelled."""
        try:
            while not self._is_stopping:
                self._wake.clear()
                if not self._repair():
                    await self._pause(_REPAIR_PAUSE_MS)
                    continue
                if self._address is None or self._stay_reason:
                    await self._wake.wait()
                    continue
                brought_data = await self._connect_once(self._address)
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                delay_ms = self._policy.next_delay_ms(brought_data=brought_data)
                await self._pause(delay_ms)
        finally:
            if self.link is not None:
                self.link.close("the broker is stopping")
                self.link = None

    def status(self) -> ClientStatus:
        """For the status request."""
        link = self.link
        now_ms = self._clock.monotonic_ms()
        if link is not None:
            state = link.core.state
        else:
            state = HAConnectionState.SUSPEND if self._stay_reason else HAConnectionState.READY
        return ClientStatus(
            master_address=self._address or "",
            state=state.name,
            max_offset=self._log.max_offset,
            reported_offset=link.reported_offset if link else -1,
            bytes_per_second=link.flow.rate(now_ms) if link else 0,
            since_ms=link.since_ms if link else self._since_ms,
            last_read_ms=max(self._heard_ms, link.last_read_ms if link else 0),
            last_write_ms=link.last_write_ms if link else 0,
            connect_count=self.connect_count,
            last_disconnect_reason=self._disconnect_reason,
            last_disconnect_ms=self._disconnect_ms,
            damage=self._stay_reason or self._differs_reason or self._damage_reason,
            known_master_end=self.master_end,
        )

    async def _connect_once(self, address: str) -> bool:
        """One connection from dial to end; whether it brought log bytes."""
        link = await self._dial(address)
        if link is None:
            self.link = None
            return False
        self.connect_count += 1
        _LOG.info("HA connected to master %s, log end %d", address, self._log.max_offset)
        await link.closed.wait()
        self._note_marks(link)
        self._heard_ms = max(self._heard_ms, link.last_read_ms)
        self.link = None
        self._disconnected(address, link.core.reason)
        self._on_link()
        return link.stored_size > 0

    async def _dial(self, address: str) -> MasterLink | None:
        host, _, port = address.rpartition(":")
        # Asked before every dial: another process may be there since the last one.
        verdict = CLASSIC if self._ask_dialect is None else await self._ask_dialect(address)
        if verdict.dialect in (Dialect.UNKNOWN, Dialect.REFUSED):
            self._disconnected(address, verdict.reason)
            return None
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_MS / 1000):
                return await self._connect(host, number_of(port, 0, 65535), verdict.dialect)
        except ssl.SSLError as error:
            hint = "is twinlogHATLS on at the master, are both certificates of one authority?"
            self._disconnected(address, f"TLS handshake failed: {error}; {hint}")
        except TimeoutError:
            self._disconnected(address, f"no connection within {_CONNECT_TIMEOUT_MS} ms")
        except (OSError, ValueError, OverflowError) as error:
            self._disconnected(address, f"cannot connect: {error}")
        return None

    async def _connect(self, host: str, port: int, dialect: Dialect) -> MasterLink:
        loop = asyncio.get_running_loop()
        try:
            _, link = await loop.create_connection(
                lambda: self._new_link(dialect), host.strip("[]"), port, ssl=self.tls
            )
        except BaseException:
            if self.link is not None:
                # Given up as it was made: uvloop closes the socket and tells nobody.
                self.link.connection_lost(None)
                self.link = None
            raise
        return link

    def _new_link(self, dialect: Dialect) -> MasterLink:
        core: HAReceiver | TwinReceiver
        if dialect is Dialect.TWIN:
            assert self._twin is not None
            core = self._twin.new_receiver()
        else:
            core = HAReceiver(
                self._settings,
                log_end=resume_offset(self._log),
                now_ms=self._clock.monotonic_ms(),
            )
        return MasterLink(self, self._log, self._flushed, self._clock, core, self._settings)

    # What the link tells.

    def link_made(self, link: MasterLink) -> None:
        self.link = link
        if self._is_stopping:
            link.close("this slave follows another master, or none")

    def master_refusal(self, host: str) -> str:
        """Why nothing is taken from a classic master at `host`; empty when it is."""
        return "" if self._twin is None else self._twin.master_refusal(host)

    def epochs_learnt(self, epochs: tuple[EpochEntry, ...]) -> None:
        assert self._twin is not None
        self._twin.epochs_learnt(epochs)

    def link_started(self, store_id: str) -> None:
        """The two logs fit again."""
        assert self._twin is not None
        self._differs_reason = ""
        self._twin.link_started(store_id)

    def confirmed_heard(self, confirmed: int) -> None:
        assert self._twin is not None
        self._twin.confirmed_heard(confirmed)

    def link_refused(self, code: int, reason: str, master_min: int) -> None:
        """One of the two twinlogs said no. A log that does not fit stays as it is, unless the
        policy says that everything may be copied again."""
        _LOG.error("HA refused code=%d reason=%s", code, reason)
        if code == ErrorCode.CONFIRMED_DIFFERS:
            # Dialled again: whoever decides does so at the master.
            self._differs_reason = reason
        if code not in _LOG_DOES_NOT_FIT:
            return
        if self._reseed_all is not None and code in _NOTHING_COMMON:
            self._nothing_common(code, reason, master_min)
            return
        self._is_refused = True
        self._stay_reason = (
            f"{reason}; replication stays here: see twinlogReseed, or move this store away"
        )

    def _nothing_common(self, code: int, reason: str, master_min: int) -> None:
        """twinlogReseed=all: copy everything again, unless that gives up what is confirmed.

        A slave that was away for longer than its master keeps files gives up nothing. A master that
        lost its disk and has taken a message since looks like any other stranger.
        """
        assert self._reseed_all is not None
        is_expired = code == ErrorCode.NOTHING_COMMON and master_min >= self._log.max_offset
        if self._has_confirmed() and not is_expired:
            self._stay_reason = (
                f"{reason}; this log was confirmed by its group, so twinlogReseed=all does not"
                " move it aside: OPERATIONS.md says what to do"
            )
            return
        self._stay_reason = f"{reason}; everything is moved aside and copied again"
        self._reseed_all(reason)

    def link_failed(self, error: BaseException) -> None:
        """A bug in the link ends the client's task, which then begins again."""
        self._failure = error
        if self.link is not None:
            self.link.close(f"internal error: {error!r}")

    def _disconnected(self, address: str, reason: str) -> None:
        self._since_ms = self._disconnect_ms = self._clock.now_ms()
        self._disconnect_reason = f"{address}: {reason}"
        _LOG.warning("HA not connected to master %s reason=%s", address, reason)

    def _repair(self) -> bool:
        """Cut back to the damaged record; the same bytes again are the master's own.

        False when it could not be cut: nothing may follow it, so nobody is dialled until then.
        """
        offset, self._damage_offset = self._damage_offset, None
        if offset is None or offset >= self._log.max_offset:
            return True
        try:
            data = self._log.read(offset, FINGERPRINT_SIZE_MAX)
            self._log.truncate_to(offset, reason=self._damage_reason)
        except (StoreError, OSError) as error:
            # A full disk, mostly: what is to be cut is copied aside first.
            self._damage_offset = offset
            self._disconnect_reason = f"damage at {offset} cannot be cut yet: {error}"
            _LOG.error("damage not cut yet offset=%d error=%s", offset, error)
            return False
        verdict = self._guard.found(offset, data)
        if verdict is DamageVerdict.STAY:
            self._stay_reason = (
                f"{self._damage_reason}; the master sent the same bytes again: replication stays"
                " at this point. Heal the master's log from another replica, or stop it and run"
                " `twinlog store give-up`; then restart this slave"
            )
            _LOG.error("%s", self._stay_reason)
        return True

    async def _pause(self, delay_ms: int) -> None:
        """Wait, unless something changes: another address, damage."""
        if delay_ms <= 0 or self._wake.is_set():
            return
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            return
