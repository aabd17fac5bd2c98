"""What the store may do right now. Corresponds to RocketMQ's RunningFlags: same bits, same meaning.

Ours clears an error bit when the cause is gone; Apache's needs a restart for bits 2 and 3.
"""

from __future__ import annotations

NOT_READABLE = 1
NOT_WRITEABLE = 2
LOGICS_QUEUE_ERROR = 4
INDEX_FILE_ERROR = 8
DISK_FULL = 16
_NOT_WRITEABLE_MASK = NOT_WRITEABLE | LOGICS_QUEUE_ERROR | INDEX_FILE_ERROR | DISK_FULL


class RunningFlags:
    """A set of bits, each with the sentence that says why it is set."""

    def __init__(self) -> None:
        self._reasons: dict[int, str] = {}

    @property
    def bits(self) -> int:
        return sum(self._reasons)

    def set(self, bit: int, reason: str) -> bool:
        """Set `bit`; true when it was clear."""
        assert bit & (_NOT_WRITEABLE_MASK | NOT_READABLE)
        is_new = bit not in self._reasons
        self._reasons[bit] = reason
        return is_new

    def clear(self, bit: int) -> bool:
        """Clear `bit`; true when it was set."""
        return self._reasons.pop(bit, None) is not None

    @property
    def is_readable(self) -> bool:
        return NOT_READABLE not in self._reasons

    @property
    def is_writeable(self) -> bool:
        return not self.bits & _NOT_WRITEABLE_MASK

    @property
    def reason(self) -> str:
        """Why it is not writeable, empty when it is."""
        reasons = (text for bit, text in self._reasons.items() if bit & _NOT_WRITEABLE_MASK)
        return "; ".join(reasons)
