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


def connections_possible() -> int:
    """Connections that leave enough descriptors for the rest: accept() must never run out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    return max(_CONNECTIONS_MIN, min(soft - _OWN_FILES, soft * 3 // 4))
