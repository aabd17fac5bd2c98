"""One remoting connection, as both ends have it: frames in, commands to a handler, replies out.

Shell over FrameSplitter, the codec and PendingRequests. What one read brings is handled in one go
and everything said meanwhile leaves in one write. Replies made later (a watermark moved, a held
pull woke) are collected too, and leave at the end of the turn (`runtime/turn.py`).

One peer has its share of a turn (`runtime/loop_share.py`): what it sent beyond that waits for the
next, behind the others. Back-pressure: while the peer does not read (`is_congested`), or has too
much unanswered, nothing is read from it; frames that came in the same read wait. Whoever answers
out of turn with large bodies asks `is_congested` first and uses `when_writable`: above
`write_buffer_max` the peer is cut off. Answers of a congested peer are read nevertheless if we
dialled it: whoever sends to it under a steady load would never see them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from twinlog.remoting import codec
from twinlog.remoting.addresses import join_address, pack_host, peer_address
from twinlog.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from twinlog.remoting.command import Header, RemotingCommand, Request
from twinlog.remoting.errors import (
    CommandError,
    ConnectionClosedError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from twinlog.remoting.framing import Frame, FrameSplitter
from twinlog.remoting.limits import RemotingLimits
from twinlog.remoting.session import AnswerCallback, OpaqueCounter, PendingRequests
from twinlog.remoting.traffic import Traffic
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.failures import Failures, error_text
from twinlog.runtime.loop_share import SHARE_MS
from twinlog.runtime.turn import Phase, Turn

_LOG = logging.getLogger("twinlog.remoting")
_LARGE = 16 * 1024  # A piece of this size is handed to the transport as it is, not copied.
_TURN_BYTES_MAX = 256 * 1024  # Large bodies leave before the turn ends once there are this many.
# What a request keeps while it waits: a long header becomes objects of so many times its size.
_HEADER_SHORT = 1024
_LONG_HEADER_WEIGHT = 32
_REMARK_MAX = 8192  # Of an answer; peers refuse headers that are too long.
_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_LOOK_MASK = 3  # Behind a send the time is looked at only so often: they cost the same and little.
_EXPIRE_MS_MIN = 20  # Time-outs are looked at no more often than this.


class Connection(Traffic, asyncio.Protocol):
    """Protocol of one connection. Subclasses say where it came from and what its end means."""

    _reads_congested = False

    def __init__(
        self,
        handler: Callable[[Any, Request], None],
        *,
        clock: Clock,
        limits: RemotingLimits,
        turn: Turn,
        opaques: OpaqueCounter,
        failures: Failures,
    ) -> None:
        super().__init__(limits)
        self._handler = handler
        self._failures = failures
        self._clock = clock
        self._turn = turn
        self._opaques = opaques
        self._splitter = FrameSplitter(
            frame_size_max=limits.frame_size_max,
            header_size_max=limits.header_size_max,
            admit=self._admit,
        )
        self._out_large = 0
        self._pending = PendingRequests()
        self._unsent = 0  # The last so many of them are still in `_out`.
        self._expiry: TimerHandle | None = None
        self._close_callbacks: list[Callable[[Any], object]] = []
        self._writable_callbacks: list[Callable[[], object]] = []
        self.attributes: dict[Any, Any] = {}
        self.remote_address: tuple[str, int] = ("unknown", 0)
        self.local_address: tuple[str, int] = ("unknown", 0)
        self.close_reason = ""
        self.last_active_ms = clock.monotonic_ms()

    # What users of a connection call

    @property
    def remote_text(self) -> str:
        return join_address(*self.remote_address)

    def reply(
        self,
        request: Request,
        code: int = 0,
        *,
        remark: str | None = None,
        header: Header | None = None,
        body: codec.Body | Sequence[codec.Body] = b"",
        serialize_type: int | None = None,
    ) -> None:
        """Answer a request, in the form it was asked in unless told otherwise. One-way: nothing."""
        if request.flag & FLAG_ONEWAY:
            return
        if remark is not None and len(remark) > _REMARK_MAX:
            remark = f"{remark[:_REMARK_MAX]}..."  # It may repeat what is wrong in a long request.
        pieces = codec.encode_response(
            code,
            request.opaque,
            remark=remark,
            header=header,
            body=body,
            serialize_type=request.serialize_type if serialize_type is None else serialize_type,
        )
        self.write_pieces(pieces)

    def refuse(self, request: Request) -> Callable[[Exception], None]:
        """What answers a request whose job failed in a way that nobody foresaw."""

        def answer(error: Exception) -> None:
            self.reply(request, ResponseCode.SYSTEM_ERROR, remark=error_text(error))

        return answer

    def failed(self, what: str, error: Exception) -> None:
        """A bug of ours where no single request can be blamed costs the connection, no more."""
        self._failures.note(f"connection {what}", error, self.remote_text)
        self.abort(f"internal error: {error_text(error)}")

    def write(self, frame: codec.Body) -> None:
        """Queue the whole frame of one answer; it leaves with the others of this turn."""
        if self.is_closed:
            return
        self._replies += 1
        if not self._out and not self._is_in_turn:
            self._turn.add(Phase.FLUSH_SOCKETS, self._flush_in_turn)
        self._out.append(frame)

    def write_pieces(self, pieces: Sequence[codec.Body]) -> None:
        """Queue one answer in pieces: opening and header first, then slices of the body."""
        if self.is_closed:
            return
        self._replies += 1
        self._queue(pieces)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a request that is never answered."""
        if self.is_closed:
            return
        command.flag |= FLAG_ONEWAY
        command.opaque = self._opaques.take()
        self._queue((codec.encode_command(command),))

    def submit(self, command: RemotingCommand, timeout_ms: float, callback: AnswerCallback) -> None:
        """Send a request; `callback` gets the answer, or None and the reason. No future, no task.

        Raises:
            ConnectionClosedError, TooManyRequestsError: nothing was sent, no callback will come.
        """
        if self.is_closed:
            raise ConnectionClosedError(self.remote_text, self.close_reason, was_sent=False)
        if len(self._pending) >= self._limits.pending_requests_max:
            raise TooManyRequestsError(self.remote_text, self._limits.pending_requests_max)
        opaque = self._opaques.take()
        while opaque in self._pending:
            opaque = self._opaques.take()
        command.opaque = opaque
        frame = codec.encode_command(command)
        deadline_ms = self._clock.monotonic_ms() + int(timeout_ms)
        if self._pending.add(opaque, callback, deadline_ms, command.code):
            self._schedule_expiry()
        self._unsent += 1
        self._queue((frame,))

    async def invoke(self, command: RemotingCommand, timeout_ms: float) -> Request:
        """Send a request and wait for the answer.

        Raises:
            RequestTimeoutError, ConnectionClosedError: the outcome is unknown.
        """
        answer: asyncio.Future[Request] = asyncio.get_running_loop().create_future()

        def answered(response: Request | None, error: RemotingError | None) -> None:
            if answer.done():
                return
            if response is not None:
                answer.set_result(response)
            else:
                assert error is not None
                answer.set_exception(error)

        self.submit(command, timeout_ms, answered)
        return await answer

    def on_close(self, callback: Callable[[Any], object]) -> None:
        """Call back with this connection once it is gone; at once if it is already."""
        if self.is_closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def when_writable(self, callback: Callable[[], object]) -> None:
        """Call back once when the peer has read enough; at once if it is not congested."""
        if self.is_congested:
            self._writable_callbacks.append(callback)
        else:
            callback()

    def close(self, reason: str) -> None:
        """Write what is queued, then close. Nothing is read any more."""
        if self.is_closed:
            return
        self.flush()
        self._mark_closed(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once and drop what is queued: the peer is broken or does not read."""
        if self.is_closed:
            return
        self._mark_closed(reason)
        if self._transport is not None:
            self._transport.abort()

    def abandon(self, reason: str) -> None:
        """Close the socket of a connection whose loop has ended: its transport cannot do it."""
        transport, self._transport = self._transport, None
        with contextlib.suppress(RuntimeError):  # What it would do later, nobody does any more.
            self._mark_closed(reason)
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def cut_off(self) -> None:
        """End a connection that was closed and is still not gone, since its peer does not read."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self.remote_address = peer_address(transport.get_extra_info("peername"))
        self.local_address = peer_address(transport.get_extra_info("sockname"))
        self.remote_host = pack_host(*self.remote_address)
        self._transport_limits()

    def _transport_limits(self) -> None:
        assert self._transport is not None
        self._transport.set_write_buffer_limits(
            high=self._limits.write_buffer_high, low=self._limits.write_buffer_low
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._mark_closed(self.close_reason or (f"{error}" if error else "closed by the peer"))
        self._transport = None

    def eof_received(self) -> bool:
        return False

    def _read(self, data: bytes) -> None:
        self.was_active = True
        self.receive(data)

    def pause_writing(self) -> None:
        self.is_congested = True
        self._update_reading()

    def resume_writing(self) -> None:
        self.is_congested = False
        callbacks, self._writable_callbacks = self._writable_callbacks, []
        for callback in callbacks:
            self._failures.contain("writable callback", callback)
        try:
            self._continue_backlog()
        except Exception as error:
            self.failed("reading", error)

    # The turn

    def receive(self, data: bytes) -> bool:
        """Handle every complete frame of what was read, then write all answers at once.

        True: the data completed at least one frame.
        """
        frames = self._splitter.feed(data)
        if self._backlog or self._is_elsewhere:
            self._backlog.extend(frames)
            return bool(frames)
        if frames:
            self._is_in_turn = True
            self._handle(frames)
            self._is_in_turn = False
            if self._out:
                self.flush()
            else:
                self._update_reading()
        self._end_if_broken()
        return bool(frames)

    def _end_if_broken(self) -> None:
        """A broken frame ends the connection once what came before it is handled."""
        error = self._splitter.error
        if error is not None and not (self._backlog or self._is_elsewhere or self.is_closed):
            self._broken(error)

    def _handle(self, frames: list[Frame]) -> None:
        handler = self._handler
        decode = codec.decode_header
        end_ms = self._clock.monotonic_ms() + SHARE_MS
        is_dear = False
        for index, (kind, header, body) in enumerate(frames):
            if (
                (self.is_congested and not self._reads_congested)
                or self.is_closed
                or self._is_elsewhere
            ):
                self._backlog.extend(frames[index:])
                return
            is_looked = is_dear or index & _LOOK_MASK == _LOOK_MASK
            if is_looked and self._clock.monotonic_ms() >= end_ms:
                self._backlog.extend(frames[index:])
                self._turn.next(self._go_on)
                return
            try:
                request = decode(kind, header, body)
            except RemoteProtocolError as error:
                self._broken(error)
                return
            flag = request.flag
            if flag & FLAG_RESPONSE:
                self._answered(request)
                continue
            self.request_count += 1
            is_dear = request.code not in _SENDS
            if not flag & FLAG_ONEWAY:
                self._requests_in_flight += 1
                size = len(header)
                if size > _HEADER_SHORT:
                    size *= _LONG_HEADER_WEIGHT
                self._bytes_in_flight += len(body) + size
            try:
                handler(self, request)
            except RemoteProtocolError as error:
                self._broken(error)
                return
            except Exception as error:
                self._failed(request, error)

    def handle_again(self, handler: Callable[[Any, Request], None], request: Request) -> None:
        """Handle a request that was held back, outside of the turn that brought it."""
        if self.is_closed:
            return
        try:
            handler(self, request)
        except RemoteProtocolError as error:
            self._broken(error)
        except Exception as error:
            self._failed(request, error)

    def _failed(self, request: Request, error: Exception) -> None:
        """A bug of ours costs this request its answer, not the others their server."""
        if isinstance(error, CommandError):
            self._failures.refused(request.code, error.code)
            self.reply(request, error.code, remark=error.remark)
            return
        self._failures.note(f"request {request.code}", error, self.remote_text)
        self.reply(request, ResponseCode.SYSTEM_ERROR, remark=error_text(error))

    def _admit(self, kind: int, header: bytes, body_size: int) -> bool:
        """Whether the body of a long frame is wanted, asked when its header is there."""
        return True

    def _go_on(self) -> None:
        try:
            self._continue_backlog()
        except Exception as error:
            self.failed("reading", error)

    def _continue_backlog(self) -> None:
        """Handle what waited; what does not fit into its share of this turn goes on waiting."""
        if self._backlog and not (self._is_held_up() or self.is_closed or self._is_elsewhere):
            frames = list(self._backlog)
            self._backlog.clear()
            self._is_in_turn = True
            self._handle(frames)
            self._is_in_turn = False
            self.flush()
        self._end_if_broken()
        self._update_reading()

    def _answered(self, response: Request) -> None:
        callback = self._pending.take(response.opaque)
        if callback is None:
            _LOG.debug(
                "answer without request peer=%s opaque=%d", self.remote_text, response.opaque
            )
            return
        try:
            callback(response, None)
        except Exception as error:
            self._failures.note("answer callback", error, self.remote_text)

    def _broken(self, error: RemoteProtocolError) -> None:
        _LOG.warning("peer broke the protocol peer=%s reason=%s", self.remote_text, error)
        self.close(str(error))

    # Writing

    def _queue(self, pieces: Sequence[codec.Body]) -> None:
        if not self._out and not self._is_in_turn:
            self._turn.add(Phase.FLUSH_SOCKETS, self._flush_in_turn)
        self._out.extend(pieces)
        if len(pieces) > 1 or len(pieces[0]) > _LARGE:
            self._out_large += sum(map(len, pieces))
            if self._out_large > _TURN_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        """Hand everything queued to the transport in one write."""
        out = self._out
        if not out or self._transport is None or self.is_closed:
            return
        self._out = []
        self._unsent = 0
        self._count_replies()
        if self._out_large > _LARGE:
            self._write_large(out)
        else:
            self._transport_write(out[0] if len(out) == 1 else b"".join(out))
        self._out_large = 0
        self.was_active = True
        if self.is_congested:
            self._check_write_buffer()
        if (
            self._requests_in_flight
            or self._backlog
            or self._is_reading_paused
            or self.is_congested
        ):
            self._update_reading()

    def _flush_in_turn(self) -> None:
        try:
            self.flush()
        except Exception as error:
            self.failed("writing", error)

    def _write_large(self, out: list[codec.Body]) -> None:
        small: list[codec.Body] = []
        for piece in out:
            if len(piece) < _LARGE:
                small.append(piece)
                continue
            if small:
                self._transport_write(b"".join(small))
                small = []
            self._transport_write(piece)
        if small:
            self._transport_write(b"".join(small))

    def _check_write_buffer(self) -> None:
        if self._transport is None:
            return
        size = self._transport.get_write_buffer_size()
        if size > self._limits.write_buffer_max:
            reason = f"{size} bytes are waiting and the peer does not read"
            _LOG.warning("peer cut off peer=%s reason=%s", self.remote_text, reason)
            self.abort(reason)

    # Reading stops and goes on

    def _is_held_up(self) -> bool:
        return self.is_congested and not self._reads_congested

    def _must_pause(self) -> bool:
        limits = self._limits
        if self._is_reading_paused:  # Go on at half the limit, not at one below it.
            return (
                self._is_held_up()
                or self._is_elsewhere
                or bool(self._backlog)
                or self._requests_in_flight > limits.requests_in_flight_max // 2
                or self._bytes_in_flight > limits.bytes_in_flight_max // 2
            )
        return (
            self._is_held_up()
            or self._is_elsewhere
            or bool(self._backlog)
            or self._requests_in_flight >= limits.requests_in_flight_max
            or self._bytes_in_flight >= limits.bytes_in_flight_max
        )

    def _update_reading(self) -> None:
        if self._transport is None or self.is_closed:
            return
        must_pause = self._must_pause()
        if must_pause and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()
        elif not must_pause and self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    # Time and the end

    def _schedule_expiry(self) -> None:
        deadline_ms = self._pending.next_deadline_ms
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if deadline_ms is not None:
            delay_ms = max(_EXPIRE_MS_MIN, deadline_ms - self._clock.monotonic_ms())
            self._expiry = self._clock.call_later_ms(delay_ms, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now_ms = self._clock.monotonic_ms()
        for callback, code in self._pending.expire(now_ms):
            timeout = RequestTimeoutError(self.remote_text, code)
            self._failures.contain("answer callback", callback, None, timeout)
        self._schedule_expiry()

    def _mark_closed(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        self._out = []
        self._backlog.clear()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        contain = self._failures.contain
        waiting = self._pending.drain()
        sent_count = len(waiting) - self._unsent
        for index, callback in enumerate(waiting):
            was_sent = index < sent_count
            closed = ConnectionClosedError(self.remote_text, reason, was_sent=was_sent)
            contain("answer callback", callback, None, closed)
        callbacks, self._close_callbacks = self._close_callbacks, []
        for close_callback in callbacks:
            contain("close callback", close_callback, self)
        writable, self._writable_callbacks = self._writable_callbacks, []
        for writable_callback in writable:
            contain("writable callback", writable_callback)
