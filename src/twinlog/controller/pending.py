"""What a controller has begun for a group and not finished: a write, a planned switch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.controller.events import Effect, Token
from twinlog.controller.record import GroupRecord


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that is being written, and the effects that wait for it."""

    record: GroupRecord
    after: tuple[Effect, ...]


@dataclass(slots=True)
class HandOver:
    """A planned switch: the master drains until `until_ms`, then `target` is elected."""

    target: int
    until_ms: int
    token: Token
