"""Answers to puts, released by the watermarks that their mode demands.

Corresponds to the futures that CommitLog.asyncPutMessage returns, without a future: everything put
in one turn of the loop waits in one list, and one callback of the `appended` watermark releases it.
What must also be flushed or replicated then waits in a DurabilityQueue. Shell over durability.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twinlog.broker.put.durability import Demand, DurabilityQueue
from twinlog.broker.role import Role
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.remoting.codec import SendResponseTemplate, encode_response
from twinlog.remoting.codes import ResponseCode, SerializeType
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.compiled import load
from twinlog.runtime.config import BrokerConfig, BrokerRole, FlushDiskType
from twinlog.runtime.failures import Failures
from twinlog.runtime.watermark import Outcome, Watermark
from twinlog.store.status import AppendResult, PutMessageStatus

# Members that are asked for in hot paths: by their class they cost ten times as much.
_SYNC_FLUSH: Final = FlushDiskType.SYNC_FLUSH
_SYNC_MASTER: Final = BrokerRole.SYNC_MASTER
_REACHED: Final = Outcome.REACHED
_PUT_OK: Final = PutMessageStatus.PUT_OK
_REPLICATE: Final = Demand.REPLICATE

_EXPIRE_INTERVAL_MS = 50  # Deadlines are seconds: looking 20 times per second is precise enough.
_NO_DEADLINE_MS = 1 << 62  # The write of a turn always ends, well or not.
WAITING_PUTS_MAX = 200_000  # Replies waiting for a slow disk or slave; more are refused with 2.

# Physical offset; of a batch all of them, or the message ids that are made of them.
Where = int | tuple[int, ...] | str
# (connection, opaque, serialize type, queue id, queue offset, where)
SendReply = tuple[Any, int, int, int, int, Where]
# Called once with the final status and a reason, empty when all is well.
PutCallback = Callable[[PutMessageStatus, str], None]
_Waiting = SendReply | PutCallback
# (end of the record, who waits, whether for more than the append)
_Entry = tuple[int, _Waiting, bool]
# (end of the record, send that waits for more than the append)
_SafeSend = tuple[int, SendReply]
# What one turn put: its sends leave together, since one frame of replication carries the turn.
_Turn = list[_SafeSend]
_JSON = int(SerializeType.JSON)

RESPONSE_CODES = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS.value,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT.value,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE.value,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT.value,
}


class Replication(Protocol):
    """What the broker asks of the HA service."""

    confirmed: Watermark

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        """A status that is certain already (no usable slave) and why, or None: wait."""
        ...

    def passed_over(self, start: int, end: int) -> str:
        """Why this part of the log may not be on the slaves although *confirmed* is beyond it;
        empty when it is."""
        ...

    def may_answer_early(self) -> bool:
        """Asked in controlled groups only: whether a put may be answered unconfirmed, now."""
        ...

    def timeout_reason(self, end_offset: int) -> str:
        """Why the slaves have not acknowledged the log up to `end_offset`."""
        ...


class PutReplies:
    """Everything that waits for its put."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        appended: Watermark,
        flushed: Watermark,
        replication: Replication,
        store_host: bytes,
        stats: StoreStats,
        failures: Failures | None = None,
        role: Role,
    ) -> None:
        self._failures = failures if failures is not None else Failures()
        self._config = config
        self._role = role
        self._clock = clock
        self._appended_mark = appended
        self._flushed_mark = flushed
        self._replication = replication
        self._stats = stats
        self._host_hex = store_host.hex().upper()
        template = SendResponseTemplate(
            store_host=store_host, region=config.region_id, trace_on=config.trace_on
        )
        self._encode = template.encode
        compiled = load("twinlog.broker.put._reply_writer")
        self._release_plain: Callable[[list[SendReply]], None] = (
            self._write_plain if compiled is None else compiled.ReplyWriter(template.pieces).write
        )
        self.trace_header = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }
        # What was put in this turn: sends answered in JSON that need no more than the append,
        # those that do, and everything else.
        self._plain: list[SendReply] = []
        self._safe: _Turn = []
        self._singles: list[_Entry] = []
        self._turn_started_ms = 0
        self._durable: DurabilityQueue[_Waiting | _Turn] = DurabilityQueue()
        self.is_overloaded = False  # So many replies wait that more would only wait longer.
        self._timer: TimerHandle | None = None
        flushed.subscribe(self._watermark_moved)
        replication.confirmed.subscribe(self._watermark_moved)
        replication.confirmed.on_skip(self.not_replicated)

    @property
    def waiting_count(self) -> int:
        return len(self._plain) + len(self._safe) + len(self._singles) + self._durable.count

    def add(self, result: AppendResult, waiting: _Waiting, must_wait: bool) -> None:
        """Answer `waiting` when what was put as `result` is as safe as the mode says."""
        if not self._plain and not self._safe and not self._singles:
            self._begin(result.end_offset)
        if must_wait:
            must_wait = self.must_wait_more
        if type(waiting) is not tuple or waiting[2] != _JSON or type(waiting[5]) is not int:
            self._singles.append((result.end_offset, waiting, must_wait))
        elif must_wait:
            self._safe.append((result.end_offset, waiting))
        else:
            self._plain.append(waiting)

    def add_run(self, end_offset: int, plain: list[SendReply], safe: list[_SafeSend]) -> None:
        """Sends of one read, answered in JSON: those that need no more than the append, and those
        that do. The first record of all ends at `end_offset`."""
        if not self._plain and not self._safe and not self._singles:
            self._begin(end_offset)
        self._plain += plain
        self._safe += safe

    @property
    def must_wait_more(self) -> bool:
        """Whether the mode promises more than the append."""
        config = self._config
        if config.flush_disk_type is _SYNC_FLUSH:
            return True
        if not self._role.is_controlled:  # Asked for each send: no calls on the way.
            return config.broker_role is _SYNC_MASTER
        return self._waits_for_replicas

    @property
    def _waits_for_replicas(self) -> bool:
        if not self._role.is_controlled:
            return self._config.broker_role is _SYNC_MASTER
        return self._role.is_sync or self._must_be_confirmed

    @property
    def _must_be_confirmed(self) -> bool:
        """R5: without a lease nothing is answered before the group has it."""
        return self._role.is_controlled and not self._replication.may_answer_early()

    def _begin(self, end_offset: int) -> None:
        """The first put of a turn ends at `end_offset`."""
        self._turn_started_ms = self._clock.monotonic_ms()
        self._appended_mark.wait(end_offset, _NO_DEADLINE_MS, self._appended)

    def add_stored(self, end_offset: int, waiting: PutCallback, must_wait: bool) -> None:
        """Answer for what was put before: at once when it is as safe as the mode says."""

        def appended(_: Any, outcome: Outcome, reason: str) -> None:
            if outcome is not _REACHED:
                waiting(PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
                return
            self._release_singles([(end_offset, waiting, must_wait)], self._clock.monotonic_ms())

        self._appended_mark.wait(end_offset, _NO_DEADLINE_MS, appended)

    def passed_over(self, start: int, end: int) -> str:
        """Why a record of this part of the log may not be on the slaves that it waited for."""
        return self._replication.passed_over(start, end) if self._waits_for_replicas else ""

    def _demand(self, end_offset: int) -> tuple[Demand, str]:
        """What a put waits for besides the append; or why waiting for a slave is vain."""
        demand = Demand.NONE
        if self._config.flush_disk_type is _SYNC_FLUSH:
            demand = Demand.FLUSH
        is_awaited = end_offset > self._replication.confirmed.value  # Not so: a repeat.
        if is_awaited and self._waits_for_replicas:
            status, reason = self._replication.check_sync(end_offset)
            if status is None:
                demand = Demand.BOTH if demand is Demand.FLUSH else Demand.REPLICATE
            elif status is not _PUT_OK:
                # A status that is certain wins over whatever the flush will say.
                return Demand.NONE, reason or status.name
        return demand, ""

    def waits_for_replicas_ms(self) -> int:
        """How long the first put has waited for other replicas; 0 when none does."""
        deadline_ms = self._durable.slave_deadline_ms
        if deadline_ms is None:
            return 0
        return self._clock.monotonic_ms() - (deadline_ms - self._config.slave_timeout)

    def stop(self) -> None:
        """Tell those who still wait that nothing more can be promised."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answer_all(PutMessageStatus.FLUSH_DISK_TIMEOUT, "the broker stops")

    def give_up(self, reason: str) -> None:
        """What waits for a slave is not in the log any more, or will not be confirmed."""
        self._answer_all(PutMessageStatus.FLUSH_SLAVE_TIMEOUT, reason)

    def not_replicated(self, reason: str) -> None:
        """Of what waits for slaves now, none or too few may ever have it."""
        failed = self._durable.fail_replicated()
        self._answer_each(failed, PutMessageStatus.FLUSH_SLAVE_TIMEOUT, reason)

    def _answer_all(self, status: PutMessageStatus, reason: str) -> None:
        self._answer_each(self._durable.fail_all(), status, reason)

    def _answer_each(
        self, replies: list[_Waiting | _Turn], status: PutMessageStatus, reason: str
    ) -> None:
        for waiting in replies:
            sends = [send for _, send in waiting] if isinstance(waiting, list) else [waiting]
            for send in sends:
                self._answer(send, status, reason)

    def _appended(self, _: Any, outcome: Outcome, reason: str) -> None:
        plain, self._plain = self._plain, []
        safe, self._safe = self._safe, []
        singles, self._singles = self._singles, []
        reached = self._appended_mark.value
        now = self._clock.monotonic_ms()
        count = len(plain) + len(safe) + len(singles)
        if outcome is not _REACHED:
            plain = self._fail_plain(plain, reached, reason)
            safe = self._fail_safe(safe, reached, reason)
            singles = self._fail_singles(singles, reached, reason)
        if plain and self._must_be_confirmed:
            plain, safe = [], [*safe, *((reached, send) for send in plain)]
        # One write puts the whole turn into the log: who waits for its first record has it all.
        assert not plain or plain[-1][5] < reached  # type: ignore[operator]
        assert not safe or safe[-1][0] <= reached
        assert not singles or singles[-1][0] <= reached
        try:
            self._release_plain(plain)
        except Exception as error:
            self._failures.note("replies", error, f"{len(plain)} sends")
        try:
            if singles:
                self._release_singles(singles, now)
        finally:
            if safe:
                self._release_safe(safe, now)
            self._stats.put_done(count, now - self._turn_started_ms)  # When those who wait know.

    def _fail_plain(self, plain: list[SendReply], reached: int, reason: str) -> list[SendReply]:
        """Refuse those that are not in the log; the rest is returned."""
        for waiting in plain:
            if waiting[5] >= reached:  # type: ignore[operator]
                self._answer(waiting, PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        return [waiting for waiting in plain if waiting[5] < reached]  # type: ignore[operator]

    def _fail_safe(self, safe: _Turn, reached: int, reason: str) -> _Turn:
        for end_offset, waiting in safe:
            if end_offset > reached:
                self._answer(waiting, PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        return [entry for entry in safe if entry[0] <= reached]

    def _fail_singles(self, singles: list[_Entry], reached: int, reason: str) -> list[_Entry]:
        for entry in singles:
            if entry[0] > reached:
                self._answer(entry[1], PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        return [entry for entry in singles if entry[0] <= reached]

    def _write_plain(self, plain: list[SendReply]) -> None:
        """The common case: one format per reply, one call per run of a connection's replies."""
        encode = self._encode
        current: Any = None
        frames: list[bytes] = []
        for connection, opaque, _, queue_id, queue_offset, offset in plain:
            if connection is not current:
                if frames:
                    current.write_run(b"".join(frames), len(frames))
                current, frames = connection, []
            frames.append(encode(opaque, queue_id, queue_offset, offset))  # type: ignore[arg-type]
        if frames:
            current.write_run(b"".join(frames), len(frames))

    def _release_singles(self, singles: list[_Entry], now: int) -> None:
        """What comes seldom: each waits for itself."""
        must_advance = False
        is_held = self._must_be_confirmed
        for end_offset, waiting, wanted in singles:
            must_wait = wanted or (is_held and type(waiting) is tuple)
            demand, reason = self._demand(end_offset) if must_wait else (Demand.NONE, "")
            if demand:
                self._wait_durable(end_offset, waiting, demand, now)
                must_advance = True
            elif reason:
                self._answer(waiting, PutMessageStatus.SLAVE_NOT_AVAILABLE, reason)
            else:
                self._answer(waiting, _PUT_OK, "")
        if must_advance:
            self._advance()

    def _release_safe(self, safe: _Turn, now: int) -> None:
        """Sends that wait for more than the append wait as one; alone when there is a doubt."""
        end_offset = safe[-1][0]
        demand, reason = self._demand(end_offset)
        if reason:  # The last is too far ahead of the slave: those before it may not be.
            self._release_singles([(end, waiting, True) for end, waiting in safe], now)
        elif demand:
            # To the end of the turn, so that what the turn put besides is before it in its line.
            self._wait_durable(self._appended_mark.value, safe, demand, now, len(safe))
            if demand is not _REPLICATE:  # Which the append has not moved; a flush may be through.
                self._advance()
        else:
            self._release_plain([waiting for _, waiting in safe])

    def _wait_durable(
        self, end_offset: int, waiting: _Waiting | _Turn, demand: Demand, now: int, count: int = 1
    ) -> None:
        self._durable.add(
            demand,
            end_offset,
            waiting,
            flush_deadline_ms=now + self._config.sync_flush_timeout,
            slave_deadline_ms=now + self._config.slave_timeout,
            count=count,
        )
        self.is_overloaded = self._durable.count >= WAITING_PUTS_MAX
        if self._timer is None:
            self._timer = self._clock.call_later_ms(_EXPIRE_INTERVAL_MS, self._expire)

    def _watermark_moved(self, _: int) -> None:
        if self._durable.count:
            self._advance()

    def _advance(self) -> None:
        decided = self._durable.advance(self._flushed_mark.value, self._replication.confirmed.value)
        self.is_overloaded = self._durable.count >= WAITING_PUTS_MAX
        for waiting, _, _ in decided:
            if isinstance(waiting, list):
                self._release_plain([send for _, send in waiting])
            else:
                self._answer(waiting, _PUT_OK, "")

    def _expire(self) -> None:
        self._timer = None
        decided = self._durable.expire(
            self._clock.monotonic_ms(),
            self._flushed_mark.value,
            self._replication.confirmed.value,
        )
        self.is_overloaded = self._durable.count >= WAITING_PUTS_MAX
        for waiting, status, end_offset in decided:
            if isinstance(waiting, list):
                for end, send in waiting:
                    self._time_out(end, send, self._status_now(end, status))
            else:
                self._time_out(end_offset, waiting, status)
        if self._durable.count:
            self._timer = self._clock.call_later_ms(_EXPIRE_INTERVAL_MS, self._expire)

    def _status_now(self, end_offset: int, status: PutMessageStatus) -> PutMessageStatus:
        """Of one message of a turn that ran out of time: it may be as safe as was asked for.

        What the turn lacked says what it waited for: a SYNC_MASTER whose own copy is enough waits
        for no slave, so only a turn that lacked its slaves looks at *confirmed*.
        """
        if status is _PUT_OK:
            return status
        is_slow_slave = status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        if is_slow_slave and end_offset > self._replication.confirmed.value:
            return status
        must_flush = self._config.flush_disk_type is _SYNC_FLUSH
        if must_flush and end_offset > self._flushed_mark.value:
            return PutMessageStatus.FLUSH_DISK_TIMEOUT
        return _PUT_OK

    def _time_out(self, end_offset: int, waiting: _Waiting, status: PutMessageStatus) -> None:
        is_slow_slave = status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        reason = self._replication.timeout_reason(end_offset) if is_slow_slave else ""
        self._answer(waiting, status, reason)

    def _answer(self, waiting: _Waiting, status: PutMessageStatus, reason: str) -> None:
        if not isinstance(waiting, tuple):
            self._failures.contain("put callback", waiting, status, reason)
            return
        connection, opaque, serialize_type, queue_id, queue_offset, where = waiting
        is_plain = status is _PUT_OK and serialize_type == _JSON
        if is_plain and isinstance(where, int):
            connection.write(self._encode(opaque, queue_id, queue_offset, where))
            return
        if status is not _PUT_OK:
            not_ok = self._stats.not_ok
            not_ok[status.name] = not_ok.get(status.name, 0) + 1
        code = RESPONSE_CODES.get(status)
        if code is None:
            header: dict[str, Any] = self.trace_header
            code = ResponseCode.SERVICE_NOT_AVAILABLE
        else:
            header = {
                "queueId": queue_id,
                **self.trace_header,
                "msgId": self.message_id(where),
                "queueOffset": queue_offset,
            }
        connection.write_pieces(
            encode_response(
                code,
                opaque,
                remark=reason or None,
                header=header,
                serialize_type=serialize_type,
            )
        )

    def message_id(self, where: Where) -> str:
        """The offset message id; for a batch all of them."""
        if isinstance(where, str):
            return where
        prefix = self._host_hex
        if isinstance(where, int):
            return f"{prefix}{where:016X}"
        return ",".join(f"{prefix}{offset:016X}" for offset in where)
