"""Permission bits of topics and brokers (RocketMQ's PermName). Pure."""

from __future__ import annotations

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1
PERM_READ_WRITE = PERM_READ | PERM_WRITE


def is_readable(perm: int) -> bool:
    return perm & PERM_READ != 0


def is_writeable(perm: int) -> bool:
    return perm & PERM_WRITE != 0


def is_inherited(perm: int) -> bool:
    return perm & PERM_INHERIT != 0


def perm_text(perm: int) -> str:
    """The three letters that remarks show, `RW-`."""
    return (
        ("R" if is_readable(perm) else "-")
        + ("W" if is_writeable(perm) else "-")
        + ("X" if is_inherited(perm) else "-")
    )
