"""Idempotent sends: the part of a send that happens only for messages with a mark.

The table behind it is in `broker/put/idempotence.py`. A repeat is answered like the original, with
its place, and not before the original is as safe as the broker's mode says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twinlog.broker.errors import BrokerError
from twinlog.broker.put.idempotence import Decision, Place, Verdict
from twinlog.broker.put.once_service import IdempotentSends
from twinlog.broker.put.replies import RESPONSE_CODES, PutReplies
from twinlog.message.batch import BatchMember
from twinlog.message.once import ONCE_BYTES, ONCE_NAME, Mark, read_mark
from twinlog.remoting.codes import FLAG_ONEWAY, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import ServerConnection
from twinlog.store.status import PutMessageStatus

_REMARKS = {
    Verdict.GAP: "is missing what comes before it, number {expected} is expected: send that first",
    Verdict.STALE: "is of an epoch that has ended: another instance of this producer took over",
    Verdict.EXPIRED: (
        "is not the first of this producer, of which nothing is known here (idle for 7 days, or "
        "its messages were lost): it is not known what was stored; use a new producer id"
    ),
    Verdict.OTHER: (
        "is stored already with another body: the producer does not send in the same order as "
        "before, so none of its messages can be treated as a repeat"
    ),
    Verdict.FULL: "is of a new producer, and too many are active: try again later",
}
_CODES = {
    Verdict.GAP: ResponseCode.TWINLOG_SEQUENCE_GAP,
    Verdict.STALE: ResponseCode.TWINLOG_PRODUCER_FENCED,
    Verdict.EXPIRED: ResponseCode.TWINLOG_PRODUCER_EXPIRED,
    Verdict.OTHER: ResponseCode.TWINLOG_REPEAT_DIFFERS,
    Verdict.FULL: ResponseCode.SYSTEM_BUSY,
}


class SendOnce:
    """Asks the table, answers repeats."""

    def __init__(self, sends: IdempotentSends, replies: PutReplies) -> None:
        self._sends = sends
        self._replies = replies
        self.stored = sends.stored

    def mark_of(self, properties: str, topic: str, queue_id: int) -> Mark | None:
        """The mark of a send; None when there is none, or it belongs to another queue."""
        mark = read_mark(properties)
        if mark is None or mark.topic != topic or mark.queue_id != queue_id:
            return None
        if "TRAN_MSG\x01" in properties:
            raise _illegal("a half message cannot be sent idempotently")
        return mark

    def batch_mark(self, members: Sequence[BatchMember], topic: str, queue_id: int) -> Mark | None:
        """The mark of the first member; the others must follow it without a gap."""
        if ONCE_BYTES not in members[0].properties:
            return None
        first = self.mark_of(members[0].properties.decode("utf-8", "replace"), topic, queue_id)
        if first is None:
            return None
        head, tail = _around_number(first)
        for index, member in enumerate(members):
            # Our client puts the mark last; the last one counts.
            if member.properties.endswith(b"%b%d%b" % (head, first.number + index, tail)):
                continue
            mark = read_mark(member.properties.decode("utf-8", "replace"))
            if mark != first._replace(number=first.number + index):
                raise _illegal(f"member {index} of the batch does not follow the one before it")
        return first

    def known_count(self, mark: Mark, count: int) -> int:
        """How many leading messages are repeats. Raises BrokerError when none may be stored."""
        decision = self._sends.decide(mark, count)
        if decision.verdict in _CODES:
            raise _refusal(mark, decision)
        return decision.known

    def places(self, mark: Mark, bodies: Sequence[bytes | memoryview]) -> list[Place]:
        """Where the messages from `mark` on are. Raises BrokerError when one is another message:
        a producer that changed its order would lose what is taken for a repeat."""
        places: list[Place] = []
        for index, body in enumerate(bodies):
            one = mark._replace(number=mark.number + index)
            place = self._sends.place(one)
            if place is not None and not self._sends.is_same(place, body):
                raise _refusal(one, Decision(Verdict.OTHER))
            places.append(place or self._sends.forgotten_place(one))
        return places

    def answer_repeat(
        self,
        connection: ServerConnection,
        request: Request,
        mark: Mark,
        places: list[Place],
        must_wait: bool,
    ) -> None:
        """All of it is stored: answer with where, once it is safe."""
        if not request.flag & FLAG_ONEWAY:
            end = max(place.safe_end for place in places)
            waiting = self.reply_later(connection, request, mark, places, must_wait)
            self._replies.add_stored(end, waiting, must_wait)

    def reply_later(
        self,
        connection: ServerConnection,
        request: Request,
        mark: Mark,
        places: list[Place],
        must_wait: bool,
    ) -> Any:
        """A callback that answers with these places when the status is known."""

        def answer(status: PutMessageStatus, reason: str) -> None:
            if status is PutMessageStatus.PUT_OK and must_wait:
                reason = self._passed_over(places)
                status = PutMessageStatus.FLUSH_SLAVE_TIMEOUT if reason else status
            code = RESPONSE_CODES.get(status)
            header: dict[str, Any] = dict(self._replies.trace_header)
            if code is not None:
                header["queueId"] = mark.queue_id
                header["queueOffset"] = places[0].queue_offset
                where = tuple(max(place.physical_offset, 0) for place in places)
                header["msgId"] = self._replies.message_id(where)
                if len(places) > 1:
                    # Not one behind the other, perhaps: stored at different times.
                    header["queueOffsets"] = ",".join(str(p.queue_offset) for p in places)
            connection.reply(
                request, 14 if code is None else code, remark=reason or None, header=header
            )

        return answer

    def _passed_over(self, places: list[Place]) -> str:
        """Why one of these may not be on the slaves although the log behind it is; or empty."""
        reasons = (self._replies.passed_over(place.first, place.safe_end) for place in places)
        return next(filter(None, reasons), "")


def _around_number(mark: Mark) -> tuple[bytes, bytes]:
    """The property of a mark before and behind its number."""
    return (
        f"\x02{ONCE_NAME}{mark.producer},{mark.epoch},".encode(),
        f",{mark.queue_id},{mark.topic}".encode(),
    )


def _illegal(remark: str) -> BrokerError:
    return BrokerError(ResponseCode.MESSAGE_ILLEGAL, remark)


def _refusal(mark: Mark, decision: Decision) -> BrokerError:
    text = _REMARKS[decision.verdict].format(expected=decision.expected)
    remark = (
        f"message {mark.number} of epoch {mark.epoch} of producer {mark.producer} to "
        f"{mark.topic}-{mark.queue_id} {text}"
    )
    return BrokerError(_CODES[decision.verdict], remark)
