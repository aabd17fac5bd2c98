"""What a controller has begun for a group and not finished: a write, a planned switch. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinlog.controller.events import Effect, Reply, Token
from twinlog.controller.record import GroupRecord
from twinlog.controller.refusals import RefusalKind


@dataclass(frozen=True, slots=True)
class Pending:
    """A record that is being written, and the effects that wait for it."""

    record: GroupRecord
    after: tuple[Effect, ...]

    def answered(self, token: Token, wanted: int | None = None) -> Pending:
        """With an answer to whoever asked for it; not what it wants if another replica leads."""
        reply, elected = Reply(token, self.record), self.record.master_broker_id
        if wanted not in (None, elected):
            error = f"replica {wanted} cannot lead now: replica {elected} was elected"
            reply = replace(reply, error=error, kind=RefusalKind.NOT_ELECTED)
        return replace(self, after=(*self.after, reply))


@dataclass(slots=True)
class HandOver:
    """A planned switch: the master drains until `until_ms`, then `target` is elected. It was told
    of this one over the connection `told`: only there its words are not about an earlier one."""

    target: int
    until_ms: int
    token: Token
    told: int | None = None
