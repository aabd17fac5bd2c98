"""Why a put is refused, in the words that its producer gets."""

from __future__ import annotations

from twinlog.message.model import PutMessage
from twinlog.message.record import PropertiesSizeError, RecordError
from twinlog.runtime.limits import TOPIC_LENGTH_MAX
from twinlog.store.running_flags import RunningFlags
from twinlog.store.status import AppendResult, PutMessageStatus


def store_refusal(
    state: str, *, broken_reason: str, is_master: bool, hold_reason: str, flags: RunningFlags
) -> AppendResult | None:
    """One object that says why the store takes no puts, None when it does."""
    reason = ""
    if state != "running":
        reason = "the store is not running" if state == "stopped" else "not started"
    elif broken_reason:
        reason = f"the store is broken: {broken_reason}"
    elif not is_master:
        reason = "this broker is a slave"
    elif hold_reason:
        reason = hold_reason
    elif not flags.is_writeable:
        reason = flags.reason
    status = PutMessageStatus.SERVICE_NOT_AVAILABLE
    return AppendResult(status, reason=reason) if reason else None


def illegal_message(message: PutMessage, max_message_size: int) -> AppendResult:
    """The topic or the body is too long."""
    if len(message.topic) > TOPIC_LENGTH_MAX:
        reason = f"topic of {len(message.topic)} characters, at most {TOPIC_LENGTH_MAX}"
    else:
        reason = f"body of {len(message.body)} bytes, maxMessageSize is {max_message_size}"
    return AppendResult(PutMessageStatus.MESSAGE_ILLEGAL, reason=reason)


def illegal_record(error: RecordError) -> AppendResult:
    """No record can be made of the message."""
    status = PutMessageStatus.MESSAGE_ILLEGAL
    if isinstance(error, PropertiesSizeError):
        status = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
    return AppendResult(status, reason=str(error))
