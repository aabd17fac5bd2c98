"""Requests to one address, with errors in the words of this package.

The remoting layer says what happened to a connection; here it becomes what that means for the
caller: nothing was sent, or the outcome is unknown, or the server said no.
"""

from __future__ import annotations

from collections.abc import Collection

from twinlog.client.errors import (
    BrokerUnreachableError,
    ConnectionLostError,
    RequestTimeoutError,
    SendOutcome,
    TransportError,
    broker_error,
    with_outcome,
)
from twinlog.remoting import errors as remoting_errors
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import Header, RemotingCommand, Request

_HTTP = str(int.from_bytes(b"HTTP", "big"))


def translate(error: BaseException, address: str) -> TransportError:
    """A remoting error as one of ours."""
    text = str(error)
    if isinstance(error, remoting_errors.ConnectError):
        return BrokerUnreachableError(text)
    if isinstance(error, remoting_errors.TooManyRequestsError):
        return BrokerUnreachableError(text)
    if isinstance(error, remoting_errors.RequestTimeoutError):
        late = RequestTimeoutError(text)
        return late if error.was_sent else with_outcome(late, SendOutcome.NOT_STORED)
    if _HTTP in text:
        return ConnectionLostError(
            f"{address} answers in HTTP, so it is not a port of RocketMQ: check the address"
        )
    if isinstance(error, remoting_errors.RemoteProtocolError) or "frame length" in text:
        return ConnectionLostError(f"{address} does not speak RocketMQ's protocol: {text}")
    lost = ConnectionLostError(text)
    if isinstance(error, remoting_errors.ConnectionClosedError) and not error.was_sent:
        return with_outcome(lost, SendOutcome.NOT_STORED)
    return lost


class Transport:
    """One remoting client; connections are kept by address."""

    def __init__(self, remoting: RemotingClient) -> None:
        self.remoting = remoting

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: float) -> Request:
        """The answer, whatever its code."""
        try:
            return await self.remoting.invoke(address, command, timeout_ms)
        except remoting_errors.RemotingError as error:
            raise translate(error, address) from error

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float,
        action: str,
        accepted: Collection[int] = (0,),
    ) -> Request:
        """The answer if its code is accepted, else the error that the code stands for."""
        command = RemotingCommand.request(code, header, body)
        answer = await self.invoke(address, command, timeout_ms)
        if answer.code not in accepted:
            raise broker_error(answer.code, answer.remark, address=address, action=action)
        return answer

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        try:
            await self.remoting.oneway(address, command)
        except remoting_errors.RemotingError as error:
            raise translate(error, address) from error
