"""The controller of the model: the production core, and a store with a will of its own.

A record is written by compare-and-set, sometimes slowly, sometimes without an answer, and sometimes
later than one thinks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from twinlog.controller import events
from twinlog.controller.core import Controller
from twinlog.controller.record import GroupRecord, Replica

if TYPE_CHECKING:
    from twinlog.testing.model.world import GroupModel

GROUP = "g"
BACKUP_RATE = 0.05


class ControllerSide:
    """Survives its processes. `core` is None while there is none."""

    def __init__(self, model: GroupModel, rng: random.Random) -> None:
        self._model = model
        self._rng = rng
        self.rate = 1 + rng.uniform(-0.024, 0.024)
        replicas = {n: Replica(broker_id=n) for n in model.hosts}
        self.stored = GroupRecord(
            cluster="c", group=GROUP, version=1, policy=model.scenario.policy, replicas=replicas
        )
        self.core: Controller | None = Controller([self.stored], 0)
        self.backup = self.newest = self.stored
        self._late: list[GroupRecord] = []
        self._writing: list[tuple[int, GroupRecord]] = []

    def now_ms(self) -> int:
        return self._model.time_ms(self.rate)

    def stop(self) -> None:
        """What is being written may be written yet, or never."""
        self.core = None
        self._model.truth.controller_began()
        self._late += [record for _, record in self._writing if self._rng.random() < 0.5]
        self._writing.clear()

    def restart(self) -> None:
        """Who leads now has fenced those before: what they wrote is there, or never will be."""
        self.stop()
        for record in self._late:
            if self._rng.random() < 0.5:
                self._write(record)
        self._late.clear()
        self.core = Controller([self.stored], self.now_ms())

    def restore(self) -> None:
        """An old backup takes the place of everything that was decided since. What no replica was
        told has not happened."""
        self.stop()
        self._late.clear()
        told = [host.stored for host in self._model.hosts.values() if host.stored is not None]
        self.stored = self.newest = self.backup
        for record in told:
            if _numbers(record) > _numbers(self.newest):
                self.newest = record
        self.core = Controller([self.stored], self.now_ms())

    @property
    def is_frozen(self) -> bool:
        return self.core is not None and bool(self.core.groups[GROUP].frozen)

    def tick(self) -> None:
        model = self._model
        if self._late and self._rng.random() < 0.05:
            self._write(self._late.pop())
        due = [record for at, record in self._writing if at <= model.tick]
        self._writing = [(at, record) for at, record in self._writing if at > model.tick]
        for record in due:
            self.tell(self._outcome(record))
        self.tell(events.Tick())
        if self._rng.random() < BACKUP_RATE / 10:
            self.backup = self.stored

    def tell(self, event: Any) -> None:
        if self.core is None:
            return
        queue: list[Any] = [event]
        while queue:
            for effect in self.core.handle(self.now_ms(), queue.pop(0)):
                match effect:
                    case events.Commit():
                        self._model.truth.choose(self.stored, effect.record)
                        queue += self._commit(effect.record)
                    case events.Reload():
                        queue.append(events.Loaded(GROUP, self.stored))
                    case events.Reply() if effect.token is not None:
                        self._model.controller_replies(effect)

    def _commit(self, record: GroupRecord) -> list[Any]:
        ticks = self._rng.randint(0, self._model.scenario.commit_ticks)
        if ticks:
            self._writing.append((self._model.tick + ticks, record))
            return []
        return [self._outcome(record)]

    def _outcome(self, record: GroupRecord) -> Any:
        model = self._model
        is_unknown = not model.is_healing and self._rng.random() < model.scenario.unknown_rate
        if is_unknown and self._rng.random() < 0.5:
            self._late.append(record)
            return events.CommitUnknown(GROUP, record.version)
        if not self._write(record) or is_unknown:
            return events.CommitUnknown(GROUP, record.version)
        return events.CommitDone(GROUP, record.version)

    def _write(self, record: GroupRecord) -> bool:
        if record.version != self.stored.version + 1:
            return False  # Stale: the store refuses it.
        is_decision = _numbers(record) != _numbers(self.stored)
        self.stored = record
        if is_decision:
            self._model.decided(self.newest, record)
            self.newest = record
        return True


def _numbers(record: GroupRecord) -> tuple[int, int]:
    return record.master_epoch, record.sync_state_set_epoch
