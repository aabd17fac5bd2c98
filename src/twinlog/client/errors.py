"""What can go wrong, in the user's words. Retry logic reads the flags, never lists of classes.

Every error of a send says what became of the message (`outcome`): the class knows it for one
attempt, and the sender combines the attempts of a message, so that a retry never turns UNKNOWN into
NOT_STORED.

ClientError                        code, retriable, refresh_route, outcome
  UsageError                       wrong call; nothing was sent
    InvalidMessageError            topic, body, properties, size
    InvalidSubscriptionError       expression that cannot be read
    InvalidHandlerError            handler that is not async, ...
    InvalidAddressError            text that is no address
    ClientClosedError              used before start or after close
    ClientForkedError              used in a process that did not open it
  BufferFullError                  more unsent bytes than allowed; wait and send again
  RouteError
    NameServerUnreachableError     no name server answers
    NotANameServerError            something else answers there
    NoBrokerError                  name server knows no broker
    TopicNotFoundError             topic missing, brokers do not create it
    NoWritableQueueError           no master with a writable queue
  TransportError
    BrokerUnreachableError         nothing was sent
    RequestTimeoutError            no answer in time: whether it was done is unknown
    ConnectionLostError            broken while waiting: whether it was done is unknown
  BrokerError                      the broker answered with an error code
    AccessDeniedError              access control: account, signature or permission
    (one class for each code, see `BROKER_ERRORS`)
  UnreadableAnswerError            a server answers in another form than it should
  UnreadableBodyError              message.value: the serializer cannot read the body
  RequestReplyTimeoutError         request() got no reply in time
  TransactionError                 local transaction or its end failed
"""

from __future__ import annotations

import enum
from typing import TypeVar


class SendOutcome(enum.Enum):
    """What became of a message whose send failed, judged by what was written to a socket."""

    #: No broker stored it, and none will: sending it again cannot make a copy.
    NOT_STORED = "not stored"
    #: It left this process and no broker said what became of it: it may be stored, now or later.
    UNKNOWN = "unknown"
    #: A master said that it has stored it. How durable it is there is not known.
    STORED = "stored"

    def __str__(self) -> str:
        return self.name

    def combined_with(self, other: SendOutcome) -> SendOutcome:
        """The outcome of two attempts to send the same message: the stronger claim of storage."""
        return self if _STRENGTH[self] >= _STRENGTH[other] else other


_STRENGTH = {SendOutcome.NOT_STORED: 0, SendOutcome.UNKNOWN: 1, SendOutcome.STORED: 2}


class ClientError(Exception):
    """Base of everything that this package raises on purpose."""

    code: int | None = None
    #: Whether the same call may succeed if made again, unchanged.
    retriable = False
    #: Whether the route that led here should be asked for again.
    refresh_route = False
    #: Whether the reason usually passes within seconds: a send that was certainly not stored is
    #: then tried until its time is up, however often.
    is_passing = False
    #: Of a send: what became of the message. Unknown unless somebody knows better.
    outcome = SendOutcome.UNKNOWN

    @property
    def is_safe_to_repeat(self) -> bool:
        """Whether it is certain that nothing was stored, so that a repeat cannot make a copy."""
        return self.outcome is SendOutcome.NOT_STORED

    @property
    def text(self) -> str:
        """What happened, and where it helps what to do."""
        return str(self)


E = TypeVar("E", bound=ClientError)


def with_outcome(error: E, outcome: SendOutcome, note: str = "") -> E:
    """The same error with another outcome. A copy: one error may stand for many sends."""
    if error.outcome is outcome and not note:
        return error
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args = (f"{error}{note}", *error.args[1:])
    copy.__cause__ = error.__cause__ or error
    copy.outcome = outcome
    return copy


class UsageError(ClientError, ValueError):
    """The call itself is wrong."""

    outcome = SendOutcome.NOT_STORED


class InvalidMessageError(UsageError):
    """A message that no broker would take."""


class InvalidSubscriptionError(UsageError):
    """An expression that cannot be read."""


class InvalidHandlerError(UsageError, TypeError):
    """A handler that cannot be called as promised."""


class InvalidAddressError(UsageError):
    """A text that is not an address."""


class ClientClosedError(UsageError, RuntimeError):
    """Used before it was started or after it was closed."""


class ClientForkedError(UsageError, RuntimeError):
    """Used in another process than the one that opened it."""


class BufferFullError(ClientError):
    """The producer holds as many unsent bytes as it may."""

    retriable = True
    outcome = SendOutcome.NOT_STORED


class RouteError(ClientError):
    """Where to send could not be found out."""

    retriable = True
    outcome = SendOutcome.NOT_STORED


class NameServerUnreachableError(RouteError):
    """None of the name servers answers."""

    is_passing = True


class NotANameServerError(RouteError):
    """Something answers at that address, but not a name server."""

    retriable = False


class NoBrokerError(RouteError):
    """The name server is there, but no broker has registered."""

    is_passing = True


class TopicNotFoundError(RouteError):
    """No broker has the topic, and none would create it."""

    retriable = False
    code = 17


class NoWritableQueueError(RouteError):
    """The topic exists, but no master takes messages for it."""

    refresh_route = True
    is_passing = True


class TransportError(ClientError):
    """The connection failed."""

    retriable = True
    refresh_route = True


class BrokerUnreachableError(TransportError):
    """No connection; nothing was sent."""

    is_passing = True
    outcome = SendOutcome.NOT_STORED


class RequestTimeoutError(TransportError):
    """No answer in time. The broker may have done it anyway."""


class ConnectionLostError(TransportError):
    """The connection broke before the answer. The broker may have done it anyway."""

    is_passing = True


class UnreadableAnswerError(ClientError):
    """A server answered, but not in the form that the protocol has."""

    retriable = True


class UnreadableBodyError(ClientError, ValueError):
    """The serializer of a consumer cannot read the body of a message."""

    outcome = SendOutcome.STORED


class RequestReplyTimeoutError(ClientError):
    """No reply came in time. `outcome` says whether the broker has the request."""

    retriable = True


class IdempotenceNotSupportedError(ClientError):
    """The broker does not know idempotent sends: it is not twinlog. Nothing was sent."""

    outcome = SendOutcome.NOT_STORED


class IdempotenceLostError(ClientError):
    """An earlier idempotent send to this queue failed: nothing may follow it. Nothing was sent."""

    outcome = SendOutcome.NOT_STORED


class TransactionError(ClientError):
    """A transaction did not end as wanted."""


class BrokerError(ClientError):
    """The broker answered with an error. `remark` is the broker's own text."""

    advice = ""

    def __init__(
        self, code: int, remark: str | None, *, address: str = "", action: str = ""
    ) -> None:
        self.code = code
        self.remark = remark or ""
        self.address = address
        where = f" by {address}" if address else ""
        what = f"{action} refused" if action else "refused"
        reason = self.remark.strip() or type(self).__doc__ or ""
        advice = f" ({self.advice})" if self.advice else ""
        super().__init__(f"{what}{where}: code {code}: {reason}{advice}")


class BrokerSystemError(BrokerError):
    """The broker failed."""

    retriable = True


class AccessDeniedError(BrokerError):
    """Access control refuses the account, its signature or what it wants."""

    advice = "check access_key and secret_key, and the account's permissions on the broker"
    outcome = SendOutcome.NOT_STORED


class BrokerBusyError(BrokerError):
    """The broker is overloaded."""

    retriable = True
    advice = "the broker is overloaded: wait, then send again"
    is_passing = True
    outcome = SendOutcome.NOT_STORED


class RequestCodeNotSupportedError(BrokerError):
    """The server does not know this request."""

    advice = "is this the right kind of server and port?"
    outcome = SendOutcome.NOT_STORED


class MessageIllegalError(BrokerError):
    """The message is too large, or its properties are."""

    outcome = SendOutcome.NOT_STORED


class ServiceNotAvailableError(BrokerError):
    """The broker takes no messages now: a slave, a full disk, or shutting down."""

    retriable = True
    refresh_route = True
    is_passing = True
    outcome = SendOutcome.NOT_STORED


class NoPermissionError(BrokerError):
    """Broker, topic or group forbids it."""

    # RocketMQ's producers try another broker: the permission is per broker.
    retriable = True
    outcome = SendOutcome.NOT_STORED


class BrokerTopicNotFoundError(BrokerError):
    """The broker does not have the topic."""

    retriable = True
    refresh_route = True
    outcome = SendOutcome.NOT_STORED


class PullNotFoundError(BrokerError):
    """Nothing new."""

    retriable = True


class PullOffsetMovedError(BrokerError):
    """The offset is outside the queue."""


class QueryNotFoundError(BrokerError):
    """No such key, offset or message."""


class SubscriptionParseError(BrokerError):
    """The broker cannot read the expression."""


class SubscriptionNotExistError(BrokerError):
    """The broker has not seen this group's subscription yet."""

    retriable = True


class GroupNotFoundError(BrokerError):
    """The consumer group does not exist."""

    advice = "the broker does not create groups on first use: create the group first"


class ConsumerNotOnlineError(BrokerError):
    """No member of the group is connected."""


class OutOfSequenceError(BrokerError):
    """An idempotent send whose number does not follow what the broker has."""

    is_out_of_sequence = True
    outcome = SendOutcome.NOT_STORED


class ProducerExpiredError(OutOfSequenceError):
    """The broker knows nothing (any more) of this idempotent producer."""


class ProducerFencedError(OutOfSequenceError):
    """A newer epoch of this idempotent producer has begun."""


class RepeatDiffersError(OutOfSequenceError):
    """A repeat by its number, but another message: the order of sending has changed."""


BROKER_ERRORS: dict[int, type[BrokerError]] = {
    1: BrokerSystemError,
    2: BrokerBusyError,
    3: RequestCodeNotSupportedError,
    13: MessageIllegalError,
    14: ServiceNotAvailableError,
    16: NoPermissionError,
    17: BrokerTopicNotFoundError,
    19: PullNotFoundError,
    20: PullNotFoundError,
    21: PullOffsetMovedError,
    22: QueryNotFoundError,
    23: SubscriptionParseError,
    24: SubscriptionNotExistError,
    25: SubscriptionNotExistError,
    26: GroupNotFoundError,
    27: SubscriptionNotExistError,
    28: SubscriptionNotExistError,
    204: BrokerSystemError,
    205: BrokerSystemError,
    206: ConsumerNotOnlineError,
    215: BrokerBusyError,
    10010: OutOfSequenceError,
    10011: ProducerExpiredError,
    10012: ProducerFencedError,
    10013: RepeatDiffersError,
}


# RocketMQ has no code for it: the name of its exception in the remark is all there is.
ACCESS_DENIED = "AclException"


def broker_error(
    code: int, remark: str | None, *, address: str = "", action: str = ""
) -> BrokerError:
    """The error that an answer's code stands for."""
    if code == 1 and ACCESS_DENIED in (remark or ""):
        return AccessDeniedError(code, remark, address=address, action=action)
    return BROKER_ERRORS.get(code, BrokerError)(code, remark, address=address, action=action)
