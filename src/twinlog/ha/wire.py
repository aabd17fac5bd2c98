"""The bytes of the classic HA protocol (RocketMQ 4.9). Pure.

    report, slave to master, 8 bytes
      0-7    int64   end of the slave's log: next byte wanted, and everything below it is stored

    frame, master to slave, 12 bytes and a body
      0-7    int64   physical offset of the first byte of the body
      8-11   int32   size of the body, 0 is a heartbeat
      12-    bytes   of the commit log, of one file, cut anywhere

All integers are signed and big-endian. There is no handshake, no version and no checksum: what a
peer says is checked against what is known here, and never believed.
"""

from __future__ import annotations

import struct
from enum import IntEnum

REPORT_SIZE = 8
FRAME_HEADER_SIZE = 12

REPORT = struct.Struct(">q")
FRAME_HEADER = struct.Struct(">qi")

encode_report = REPORT.pack
encode_frame_header = FRAME_HEADER.pack


class HAConnectionState(IntEnum):
    """RocketMQ 5's names and ordinals; plain HA uses READY, TRANSFER, SUSPEND and SHUTDOWN."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


class HAProtocolError(Exception):
    """Base of the two protocol errors; the text says which rule was broken, with the numbers."""


class LocalProtocolError(HAProtocolError):
    """This side used a core in a way that its state forbids: a bug here."""


class RemoteProtocolError(HAProtocolError):
    """The peer broke the protocol. Close; what it sent is not used."""


def tick_period_ms(heartbeat_interval_ms: int, housekeeping_interval_ms: int) -> int:
    """How often timers are looked at: RocketMQ's second, finer when the intervals are short."""
    return max(1, min(1000, heartbeat_interval_ms // 4, housekeeping_interval_ms // 4))
