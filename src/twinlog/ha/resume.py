"""Where a classic slave goes on when it connects: at the end of its log, or before a filler there.

Apache's master that is killed between a filler and the first record of the next file begins again
before the filler, and puts other records there. A slave that has the filler would be ahead of it:
its report counts for records that it does not have, and it never gets them. The dialect has no way
to ask. But a filler holds no message, so a slave may ask for it a second time: what comes is the
same filler, which it has, or what its master has there now.
"""

from __future__ import annotations

from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.twin.digests import record_ends, run_steps
from twinlog.message.layout import BLANK_SIZE_MIN, MAGIC_BLANK, SIZE_MAGIC


def resume_offset(log: ReplicaLog) -> int:
    """The start of the filler that the log ends with or in; without one the end of the log.

    The first bytes of a header may be those of a filler, too. Not 0, which asks for the last file
    of the master.
    """
    end = log.max_offset
    if end <= log.min_offset:
        return end
    start, _ = run_steps(record_ends(log, end - 1, end))
    head = log.read(start, BLANK_SIZE_MIN)
    rest = log.segment_size - start % log.segment_size
    may_be_filler = SIZE_MAGIC.pack(rest, MAGIC_BLANK).startswith(head)
    return start if may_be_filler and start else end


def append_again(log: ReplicaLog, resumed_at: int, offset: int, body: bytes | memoryview) -> int:
    """Take bytes of which the log may have some since `resumed_at`; how many were new.

    Where they differ the log is cut to `resumed_at`, not to the difference: there a record begins.
    """
    known = log.read(offset, len(body)) if offset < log.max_offset else b""
    new = body[len(known) :]
    if body[: len(known)] == known:
        if new:
            log.append_raw(offset + len(known), new)
        return len(new)
    same = log.read(resumed_at, offset - resumed_at)
    log.truncate_to(resumed_at, reason="the master began again before the filler of this file")
    log.append_raw(resumed_at, same + bytes(body))
    return len(body)
