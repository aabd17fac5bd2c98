"""What one name server knows of this broker's topics, and what it must be told next. Pure.

A name server compares the version of the topic table, not the table: whatever carries a new
version must carry every change since the version that it had, or the rest is never asked for. So
changes are numbered, and what a name server acknowledged is the number of the last change that it
was told.

That number holds for the connection over which it was said. A new connection may lead to a name
server that was started again and knows nothing: it is told everything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from twinlog.remoting.bodies.topic import DIGEST_MASK, TopicConfig, topic_digest

_KEPT_MAX = 1024  # Names of deleted topics are kept up to so many, for nothing is gained by more.


class TopicChanges:
    """Changes of the topic table, numbered; and a digest that follows them."""

    def __init__(self, table: Callable[[], Mapping[str, TopicConfig]]) -> None:
        self._table = table
        self._changed_at: dict[str, int] = {}
        self._digests: dict[str, int] | None = None
        self._sum = 0
        self.number = 0

    def changed(self, names: Iterable[str]) -> None:
        self.number += 1
        for name in sorted(names):  # Callers have sets: what is sent has one order.
            self._changed_at[name] = self.number
            if self._digests is not None:
                self._count(name)

    def since(self, number: int) -> list[str]:
        """The names that changed after change `number`; some may be gone from the table."""
        return [name for name, changed_at in self._changed_at.items() if changed_at > number]

    def forget(self, number: int) -> None:
        """Nobody will ask for what changed up to `number` again."""
        if len(self._changed_at) > _KEPT_MAX:
            self._changed_at = {n: at for n, at in self._changed_at.items() if at > number}

    @property
    def digest(self) -> int:
        """Of the table as it is now."""
        if self._digests is None:
            self._digests = {}
            for name in self._table():
                self._count(name)
        return self._sum

    def _count(self, name: str) -> None:
        assert self._digests is not None
        self._sum -= self._digests.pop(name, 0)
        topic = self._table().get(name)
        if topic is not None:
            value = topic_digest(name, topic.read_queue_nums, topic.write_queue_nums)
            self._digests[name] = value
            self._sum += value
        self._sum &= DIGEST_MASK


@dataclass(frozen=True, slots=True)
class Plan:
    """One registration: which topics it carries (None: all) and which change it reaches."""

    names: list[str] | None
    number: int
    digest: int
    is_for_twinlog: bool

    @property
    def scope(self) -> str | None:
        """The header field that only a twinlog name server gets."""
        if not self.is_for_twinlog:
            return None
        return "all" if self.names is None else "some"


@dataclass(slots=True)
class NamesrvView:
    """One name server, as this broker sees it."""

    address: str
    acknowledged: int | None = None  # None: it must be told everything.
    connection: Hashable = None  # Over which it acknowledged.
    is_twinlog: bool = False
    failure: str = ""  # Why it did not answer the last time.
    is_answering: bool = False
    silences: int = 0  # Requests in a row that were not answered in time.
    master: tuple[str | None, str | None] = (None, None)  # HA and service address of our master.
    rival: str | None = None  # Another living address with our name and id.
    is_in_route: bool = True
    is_repaired: bool = True  # False: told everything, and it still differs.

    def plan(self, changes: TopicChanges, connection: Hashable) -> Plan:
        """What to tell it now, over this connection."""
        is_known = connection is not None and connection is self.connection
        is_for_twinlog = is_known and self.is_twinlog
        names = None
        if is_known and self.acknowledged is not None:
            names = changes.since(self.acknowledged)
        return Plan(names, changes.number, changes.digest, is_for_twinlog)

    def answered(self, plan: Plan, connection: Hashable) -> None:
        """It took a registration."""
        self.acknowledged = plan.number
        self.connection = connection
        self.is_answering = True
        self.failure = ""

    def failed(self, reason: str) -> None:
        """It did not answer, or not well: whether it took the registration is not known, and the
        next one carries the same again."""
        self.is_answering = False
        self.failure = reason
        self.master = (None, None)

    def forget(self) -> None:
        """Tell it everything the next time."""
        self.acknowledged = None

    def compare(self, plan: Plan, digest: str) -> bool:
        """Whether it has our topics, by what it says of them; if not, it is told everything. One
        that differs even then is told again at the next period, not at once."""
        is_same = digest == f"{plan.digest:x}"
        if not is_same:
            self.forget()
            self.is_repaired = not (plan.names is None and plan.is_for_twinlog)
        else:
            self.is_repaired = True
        return is_same

    def knows(self, number: int) -> bool:
        return self.acknowledged is not None and self.acknowledged >= number
