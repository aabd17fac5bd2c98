"""Answers to puts, released by the watermarks that their mode demands.

Answers to the futures that CommitLog.asyncPutMessage returns, without a future: everything put in
one turn of the loop waits in one list, and one callback of the `appended` watermark releases it.
What must also be flushed or replicated then waits in a DurabilityQueue. Shell over durability.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twinlog.broker.durability import Demand, DurabilityQueue
from twinlog.broker.store_stats import StoreStats
from twinlog.remoting.codec import SendResponseTemplate, encode_response
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.watermark import Outcome, Watermark
from twinlog.store.status import AppendResult, PutMessageStatus

_EXPIRE_INTERVAL_MS = 50  # Deadlines are seconds: looking 20 times a second is precise enough.
_NO_DEADLINE_MS = 1 << 62  # The write of a turn always ends, well or not.
WAITING_PUTS_MAX = 200_000  # Replies waiting for a slow disk or slave; more are refused with 2.

# (connection, opaque, serialize type, queue id, queue offset, physical offset or those of a batch)
SendReply = tuple[Any, int, int, int, int, int | tuple[int, ...]]
# Called once with the final status and a reason, empty when all is well.
PutCallback = Callable[[PutMessageStatus, str], None]
_Waiting = SendReply | PutCallback

RESPONSE_CODES = {
    PutMessageStatus.PUT_OK: 0,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: 10,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: 11,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: 12,
}


class Replication(Protocol):
    """What the broker asks of the HA service."""

    confirmed: Watermark

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        """A status that is certain already (no usable slave) and why, or None: wait."""
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
        flush_writes: Callable[[], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._appended_mark = appended
        self._flushed_mark = flushed
        self._replication = replication
        self._stats = stats
        self._flush_writes = flush_writes
        self._host_hex = store_host.hex().upper().encode()
        self._encode = SendResponseTemplate(
            region=config.region_id, trace_on=config.trace_on
        ).encode
        self.trace_header = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }
        self._turn: list[tuple[int, _Waiting, Demand, str]] = []
        self._turn_started_ms = 0
        self._durable: DurabilityQueue[_Waiting] = DurabilityQueue()
        self._timer: TimerHandle | None = None
        flushed.subscribe(self._watermark_moved)
        replication.confirmed.subscribe(self._watermark_moved)

    @property
    def is_overloaded(self) -> bool:
        """Whether so many replies wait that more would only wait longer."""
        return len(self._durable) >= WAITING_PUTS_MAX

    @property
    def waiting_count(self) -> int:
        return len(self._turn) + len(self._durable)

    def add(self, result: AppendResult, waiting: _Waiting, must_wait: bool) -> None:
        """Answer `waiting` when what was put as `result` is as safe as the mode says."""
        demand = Demand.NONE
        reason = ""
        if must_wait:
            config = self._config
            if config.flush_disk_type == "SYNC_FLUSH":
                demand = Demand.FLUSH
            if config.broker_role == "SYNC_MASTER":
                status, reason = self._replication.check_sync(result.end_offset)
                if status is None:
                    demand |= Demand.REPLICATE
                elif status is not PutMessageStatus.PUT_OK:
                    # A status that is certain wins over whatever the flush will say.
                    demand, reason = Demand.NONE, reason or status.name
        turn = self._turn
        if not turn:
            self._turn_started_ms = self._clock.monotonic_ms()
            turn.append((result.end_offset, waiting, demand, reason))
            self._appended_mark.wait(result.end_offset, _NO_DEADLINE_MS, self._appended)
        else:
            turn.append((result.end_offset, waiting, demand, reason))

    def stop(self) -> None:
        """Tell those who still wait that nothing more can be promised."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._durable.fail_all():
            self._answer(waiting, PutMessageStatus.FLUSH_DISK_TIMEOUT, "the broker stops")

    def _appended(self, _: Any, outcome: Outcome, reason: str) -> None:
        turn, self._turn = self._turn, []
        reached = self._appended_mark.value
        now = self._clock.monotonic_ms()
        self._stats.put_done(len(turn), now - self._turn_started_ms)
        if outcome is Outcome.REACHED and turn[-1][0] <= reached:
            left = []
        else:
            left = [entry for entry in turn if entry[0] > reached]
            turn = turn[: len(turn) - len(left)]
        self._release_turn(turn, now)
        if outcome is Outcome.REACHED and left:
            self._turn = left + self._turn
            self._appended_mark.wait(left[0][0], _NO_DEADLINE_MS, self._appended)
        else:
            for entry in left:
                self._answer(entry[1], PutMessageStatus.SERVICE_NOT_AVAILABLE, reason)
        self._flush_writes()

    def _release_turn(self, turn: list[tuple[int, _Waiting, Demand, str]], now: int) -> None:
        encode = self._encode
        host_hex = self._host_hex
        must_advance = False
        for end_offset, waiting, demand, reason in turn:
            if demand:
                self._wait_durable(end_offset, waiting, demand, now)
                must_advance = True
            elif reason:
                self._answer(waiting, PutMessageStatus.SLAVE_NOT_AVAILABLE, reason)
            elif type(waiting) is tuple and waiting[2] == 0 and type(where := waiting[5]) is int:
                # The common case, written out: one format, one append.
                message_id = b"%b%016X" % (host_hex, where)
                waiting[0].write(encode(waiting[1], waiting[3], waiting[4], message_id))
            else:
                self._answer(waiting, PutMessageStatus.PUT_OK, "")
        if must_advance:
            self._advance()

    def _wait_durable(self, end_offset: int, waiting: _Waiting, demand: Demand, now: int) -> None:
        self._durable.add(
            demand,
            end_offset,
            waiting,
            flush_deadline_ms=now + self._config.sync_flush_timeout,
            slave_deadline_ms=now + self._config.slave_timeout,
        )
        if self._timer is None:
            self._timer = self._clock.call_later_ms(_EXPIRE_INTERVAL_MS, self._expire)

    def _watermark_moved(self, _: int) -> None:
        if len(self._durable):
            self._advance()
            self._flush_writes()

    def _advance(self) -> None:
        decided = self._durable.advance(self._flushed_mark.value, self._replication.confirmed.value)
        for waiting, status, _ in decided:
            self._answer(waiting, status, "")

    def _expire(self) -> None:
        self._timer = None
        decided = self._durable.expire(
            self._clock.monotonic_ms(),
            self._flushed_mark.value,
            self._replication.confirmed.value,
        )
        for waiting, status, end_offset in decided:
            is_slow_slave = status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
            reason = self._replication.timeout_reason(end_offset) if is_slow_slave else ""
            self._answer(waiting, status, reason)
        if len(self._durable):
            self._timer = self._clock.call_later_ms(_EXPIRE_INTERVAL_MS, self._expire)
        self._flush_writes()

    def _answer(self, waiting: _Waiting, status: PutMessageStatus, reason: str) -> None:
        if not isinstance(waiting, tuple):
            waiting(status, reason)
            return
        connection, opaque, serialize_type, queue_id, queue_offset, where = waiting
        code = RESPONSE_CODES.get(status)
        if code is None:
            header: dict[str, Any] = self.trace_header
            code = 14
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

    def message_id(self, where: int | tuple[int, ...]) -> str:
        """The offset message id; for a batch all of them."""
        prefix = self._host_hex.decode()
        if isinstance(where, int):
            return f"{prefix}{where:016X}"
        return ",".join(f"{prefix}{offset:016X}" for offset in where)
