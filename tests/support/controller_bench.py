"""A controller with a store that answers at once: events in, replies and happenings out."""

from __future__ import annotations

from typing import Any

from twinlog.controller import events
from twinlog.controller.core import Controller
from twinlog.controller.events import DEFAULT_TIMING, Commit, Happened, Reload, Reply
from twinlog.controller.record import GroupRecord, Policy, Replica

GROUP = "broker-a"


class Bench:
    """A controller with a store that answers at once, unless told otherwise."""

    def __init__(self, record: GroupRecord, *, age_ms: int = DEFAULT_TIMING.settle_ms) -> None:
        self.stored = record
        self.now = 1_000_000
        self.core = Controller([record], self.now)
        self.now += age_ms
        self.happened: list[Happened] = []
        self.replies: dict[Any, Reply] = {}
        self.answers_commits = True
        self.commits: list[GroupRecord] = []

    def restart(self) -> None:
        """Another process of the controller: it knows what is stored."""
        self.core = Controller([self.stored], self.now)

    def tell(self, event: Any) -> None:
        for effect in self.core.handle(self.now, event):
            if isinstance(effect, Commit):
                self.commits.append(effect.record)
                if self.answers_commits:
                    self.stored = effect.record
                    self.tell(events.CommitDone(GROUP, effect.record.version))
            elif isinstance(effect, Happened):
                self.happened.append(effect)
            elif isinstance(effect, Reply):
                self.replies[effect.token] = effect
            elif isinstance(effect, Reload):
                self.tell(events.Loaded(GROUP, self.stored))

    def beat(self, n: int, **fields: Any) -> Reply:
        given: dict[str, Any] = {
            "connection": n, "incarnation": f"i{n}", "known_epoch": self.record.master_epoch,
            "last_epoch": self.record.master_epoch, "end": 100, "link_ms": 0,
        }  # fmt: skip
        beat = events.Heartbeat(group=GROUP, broker_id=n, token=("beat", n), **{**given, **fields})
        self.tell(beat)
        return self.replies["beat", n]

    def wait(self, ms: int) -> None:
        self.now += ms
        self.tell(events.Tick())

    def ask(self, event: Any) -> Reply:
        self.tell(event)
        return self.replies[event.token]

    @property
    def record(self) -> GroupRecord:
        return self.core.groups[GROUP].record

    @property
    def kinds(self) -> list[str]:
        return [happened.kind for happened in self.happened]


def group(
    members: set[int], *, master: int = 1, replicas: int = 3, policy: Policy | None = None
) -> GroupRecord:
    return GroupRecord(
        cluster="c",
        group=GROUP,
        version=7,
        master_epoch=4,
        master_broker_id=master,
        master_incarnation=f"i{master}",
        sync_state_set=frozenset(members),
        sync_state_set_epoch=9,
        policy=policy or Policy(),
        replicas={n: Replica(broker_id=n) for n in range(1, replicas + 1)},
    )
