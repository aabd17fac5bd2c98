"""What can go wrong between two remoting peers.

RemotingError
  ConnectError               no connection: refused, unreachable, name unknown, TLS failed
  ConnectionClosedError      the connection ended before the answer came: outcome unknown
  RequestTimeoutError        no answer in time: outcome unknown, unless it was not sent at all
  TooManyRequestsError       the peer takes no more for now; nothing was sent
  RemoteProtocolError        the peer broke the protocol; its connection is closed
    FrameError                 lengths or type byte that cannot be
    HeaderDecodeError          header bytes that do not decode
  CommandError               a request refused with a response code; the connection stays
    BodyTooLargeError          the body is longer than its request code may have
    HeaderError                a field of the header is missing or is not what it should be
"""

from __future__ import annotations

import msgspec

from twinlog.remoting.codes import ResponseCode

# Everything that msgspec raises at bytes it cannot read: text that is not UTF-8 and nesting beyond
# the interpreter's limit come under their own names.
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RemotingError(Exception):
    """Root of the tree."""


class ConnectError(RemotingError):
    """No connection to the address."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionClosedError(RemotingError):
    """The connection ended before the answer; whether the request was carried out is unknown,
    unless not a byte of it was sent."""

    def __init__(self, address: str, reason: str, *, was_sent: bool = True) -> None:
        super().__init__(f"connection to {address} closed: {reason}")
        self.address = address
        self.reason = reason
        self.was_sent = was_sent


class RequestTimeoutError(RemotingError):
    """No answer in time; whether the request was carried out is unknown, unless it waited on our
    side for the peer to read what came before."""

    def __init__(self, address: str, code: int, *, was_sent: bool = True) -> None:
        if was_sent:
            text = f"no answer from {address} to request {code} in time"
        else:
            text = (
                f"{address} did not read in time what came before request {code}: it was not sent"
            )
        super().__init__(text)
        self.address = address
        self.code = code
        self.was_sent = was_sent


class TooManyRequestsError(RemotingError):
    """As many requests as allowed are waiting for answers; this one was not sent."""

    def __init__(self, address: str, limit: int) -> None:
        super().__init__(f"{limit} requests to {address} are waiting for answers: try again later")
        self.address = address


class RemoteProtocolError(RemotingError):
    """The peer sent what the protocol does not allow. Its connection cannot go on."""


class FrameError(RemoteProtocolError):
    """The eight bytes that open a frame say something impossible."""


class HeaderDecodeError(RemoteProtocolError):
    """The header of a frame does not decode."""


class CommandError(RemotingError):
    """A request is refused with a code and a remark; raised by handlers, answered by the server."""

    code: int = ResponseCode.SYSTEM_ERROR

    def __init__(self, remark: str, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark = remark
        if code is not None:
            self.code = code


class BodyTooLargeError(CommandError):
    """The body is longer than its request code may have; answered with code 1."""

    def __init__(self, code: int, size: int, limit: int) -> None:
        super().__init__(f"the body of request {code} has {size} bytes, at most {limit} are taken")


class HeaderError(CommandError):
    """A field of the request's header is missing or unreadable; answered with code 1."""
