"""What a slave does about damage that the dispatcher finds in bytes it was sent. Pure.

The classic dialect has no checksum, so a slave stores and acknowledges what comes. The dispatcher
behind it checks every record. At the first damage of a place the slave cuts its log back to the
start of that record and asks again: the link or the disk may have done it. If the same bytes come
again the master itself has them, and asking forever would help nobody: the slave stays there.
"""

from __future__ import annotations

import enum

FINGERPRINT_SIZE_MAX = 64 * 1024  # Of the bytes at the damage; enough to tell them from others.


class DamageVerdict(enum.Enum):
    """What to do after the log was cut back to the damaged record."""

    ASK_AGAIN = "ask again"
    STAY = "stay"


class DamageGuard:
    """Remembers the last damaged place and its bytes."""

    __slots__ = ("_bytes", "_offset")

    def __init__(self) -> None:
        self._offset = -1
        self._bytes = b""

    def found(self, offset: int, data: bytes) -> DamageVerdict:
        """Damage at `offset`; `data` are the bytes there, as many as the log had."""
        assert offset >= 0
        data = data[:FINGERPRINT_SIZE_MAX]
        common = min(len(data), len(self._bytes))
        is_same = offset == self._offset and common > 0 and data[:common] == self._bytes[:common]
        self._offset, self._bytes = offset, data
        return DamageVerdict.STAY if is_same else DamageVerdict.ASK_AGAIN

    def reset(self) -> None:
        """Another master: what it sends is another story."""
        self._offset, self._bytes = -1, b""
