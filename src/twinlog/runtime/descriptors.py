"""How many files and sockets this process may have open, and how many of them are for peers."""

from __future__ import annotations

import resource

from twinlog.runtime.limits import CONSUME_QUEUE_FILES_OPEN_MAX

_OWN_FILES = CONSUME_QUEUE_FILES_OPEN_MAX + 256  # Consume queues; log, index, HA, our own dialling.
_CONNECTIONS_MIN = 64


def raise_descriptor_limit() -> int:
    """Take what the system allows, as a JVM does; return it. The usual start is a mere 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return hard


def descriptor_limit() -> int:
    """Files and sockets that this process may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def shortage(log_files: int, index_files: int, limit: int) -> str | None:
    """Why a broker with that many files cannot run under `limit`; None when it can.

    The files of log and index stay open, those of the queues are bounded, and peers need some too.
    """
    needed = log_files + index_files + _OWN_FILES + _CONNECTIONS_MIN
    if needed <= limit:
        return None
    return (
        f"this process may open {limit} files and needs {needed}: {log_files} of the log, "
        f"{index_files} of the index, {_OWN_FILES} for queues and the rest, {_CONNECTIONS_MIN} for "
        "connections. Raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
    )


def connections_possible() -> int:
    """Connections that leave enough descriptors for the rest: accept() must never run out."""
    soft = descriptor_limit()
    return max(_CONNECTIONS_MIN, min(soft - _OWN_FILES, soft * 3 // 4))
