"""The compiled form of `traffic.TrafficInPython`."""

import asyncio
from collections import deque

from twinlog.remoting.codec import Body
from twinlog.remoting.framing import Frame, FrameSplitter
from twinlog.remoting.limits import RemotingLimits
from twinlog.remoting.traffic import Lane
from twinlog.runtime.tls_channel import TlsChannel

class Traffic:
    _limits: RemotingLimits
    _lanes: tuple[Lane, ...]
    _transport: asyncio.Transport | None
    _channel: TlsChannel | None
    _splitter: FrameSplitter
    _backlog: deque[Frame]
    _out: list[Body]
    _is_in_turn: bool
    _is_reading_paused: bool
    _is_elsewhere: bool
    _requests_in_flight: int
    _bytes_in_flight: int
    _replies: int
    request_count: int
    remote_host: bytes
    is_closed: bool
    is_congested: bool
    was_active: bool
    def __init__(self, limits: RemotingLimits) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    @property
    def is_ready(self) -> bool: ...
    def count_requests(self, count: int, size: int) -> None: ...
    def count_oneway(self, count: int) -> None: ...
    def write_run(self, data: bytes, count: int) -> None: ...
    def write_answer(self, frame: bytes) -> None: ...
    def _count_replies(self) -> None: ...
    def _transport_write(self, data: Body) -> None: ...
