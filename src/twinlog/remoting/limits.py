"""Bounds of one remoting endpoint. Each has its reason; a test reaches each of them."""

from __future__ import annotations

import msgspec

from twinlog.remoting.framing import HEADER_SIZE_MAX
from twinlog.runtime.limits import FRAME_SIZE_MAX


class RemotingLimits(msgspec.Struct, frozen=True):
    """What one peer, and all peers together, may cost."""

    frame_size_max: int = FRAME_SIZE_MAX
    header_size_max: int = HEADER_SIZE_MAX
    connections_max: int = 10_000
    # Held pulls count: a Java consumer holds one per queue, all on one connection.
    requests_in_flight_max: int = 20_000
    bytes_in_flight_max: int = 32 * 1024 * 1024
    # Above the first a peer's requests wait until it has read; above the last it is cut off.
    write_buffer_high: int = 1024 * 1024
    write_buffer_low: int = 256 * 1024
    write_buffer_max: int = 24 * 1024 * 1024
    # Bytes of incomplete frames of all peers together. A peer above its free share waits when the
    # rest is used up, and is closed when its frame does not become complete in time.
    partial_bytes_max: int = 16 * 1024 * 1024
    partial_bytes_free: int = 16 * 1024
    frame_completion_ms_max: int = 30_000
    idle_ms_max: int = 120_000  # `serverChannelMaxIdleTimeSeconds` of 4.9.
    pending_requests_max: int = 65_536  # Requests of ours that wait for the peer's answers.
    connect_timeout_ms: int = 3_000  # `connectTimeoutMillis` of 4.9's client.
    # What one address may have, over all its connections; 0 is no limit. Never more than four
    # fifths of all connections: the rest is for others. Requests are by second.
    connections_per_address_max: int = 0
    requests_per_address_max: int = 0
    bytes_per_address_max: int = 0
    backlog: int = 1024  # `serverSocketBacklog` of 4.9.


DEFAULT_LIMITS = RemotingLimits()
# An answer to a batch has the id of every message in its header, 33 characters each: a batch of
# 4 MiB may be of more than 100,000 messages.
CLIENT_LIMITS = RemotingLimits(header_size_max=8 * 1024 * 1024)
