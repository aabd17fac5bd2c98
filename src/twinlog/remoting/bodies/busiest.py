"""Answer to 10024: the busiest topics and groups of a broker. Totals only grow."""

from __future__ import annotations

import msgspec

from twinlog.remoting.bodies.common import Body


class BusyTopic(Body):
    topic: str = ""
    total: int = 0
    tps: float = 0.0
    bytes_total: int = 0
    bytes_per_second: float = 0.0


class BusyGroup(Body):
    topic: str = ""
    group: str = ""
    total: int = 0
    tps: float = 0.0
    lag: int = 0


class Busiest(Body):
    """The busiest first."""

    topics: list[BusyTopic] = msgspec.field(default_factory=list)
    groups: list[BusyGroup] = msgspec.field(default_factory=list)
