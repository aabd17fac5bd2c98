"""Where the logs of classic slaves begin that were empty when they came. Pure.

An empty slave of the classic dialect is sent the last file of the log only and will never have what
is before. When it connects again it is not empty, and says nothing of that: its host is remembered
for as long as a send may wait for those bytes. Another slave of the host is taken for it.
"""

from __future__ import annotations


class ClassicStarts:
    """By host: the first offset of its log, and when that was known."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[int, int]] = {}

    def joined(self, host: str, empty_start: int | None, now_ms: int, keep_ms: int) -> int:
        """A classic slave of `host` joins; `empty_start` is where it begins if it is empty.

        Where its log begins; 0 when nobody waits for anything before.
        """
        starts = self._starts
        for other in [o for o, (_, known_ms) in starts.items() if now_ms - known_ms > keep_ms]:
            del starts[other]
        if empty_start is not None:
            starts[host] = empty_start, now_ms
        return starts.get(host, (0, 0))[0]
