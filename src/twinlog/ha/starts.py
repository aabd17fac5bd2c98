"""Where the logs of slaves begin: behind what they will never have. Pure.

A slave of the twin dialect says where its log begins. An empty one is sent all of the master's, or
the last file if it asks for that.

An empty slave of the classic dialect is sent the last file of the log only and will never have what
is before. When it connects again it is not empty, and says nothing of that: its host is remembered
for as long as a send may wait for those bytes. Another slave of the host is taken for it.
"""

from __future__ import annotations

from twinlog.ha.twin.wire import Hello


def twin_start(hello: Hello, sent_from: int, master_min: int) -> int:
    """Where the log of a twin slave begins that is sent what it lacks from `sent_from` on; 0 when
    that is all that its master has."""
    start = sent_from if hello.log_end == hello.log_min else hello.log_min
    return 0 if start <= master_min else start


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
