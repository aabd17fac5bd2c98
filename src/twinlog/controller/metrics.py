"""A controller's numbers for a scrape: what is decided about each group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from twinlog.observe import families as f
from twinlog.observe.collect import Samples

if TYPE_CHECKING:
    from twinlog.controller.group import Group
    from twinlog.controller.server import ControllerServer

_NUMBERS = re.compile(r"\d+")
_REASON_MAX = 120
_REASONS_MAX = 500


class ControllerMetrics:
    """Reads the core."""

    def __init__(self, controller: ControllerServer) -> None:
        self._controller = controller

    def collect(self, out: Samples) -> Iterator[Metric]:
        core = self._controller.core
        yield out.one(f.CONTROLLER_LEADS, int(core is not None))
        if core is None:
            return
        records = [group.record for group in core.groups.values()]
        counts = self._controller.counts
        for family, values in (
            (f.GROUP_EPOCH, [record.master_epoch for record in records]),
            (f.GROUP_IN_SYNC, [len(record.sync_state_set) for record in records]),
            (f.GROUP_REPLICAS, [len(record.replicas) for record in records]),
            (f.GROUP_HAS_MASTER, [int(record.group not in counts.lost) for record in records]),
        ):
            rows = [((r.group,), float(v)) for r, v in zip(records, values, strict=True)]
            yield from out.many(family, rows)
        yield from out.many(f.FAILOVERS, counts.elections.items())
        lost = counts.without_master_ms.items()
        yield from out.many(f.WITHOUT_MASTER, [((name,), ms / 1000) for name, ms in lost])


class FailoverCounts:
    """How often masters were elected and why, and how long groups had none. Counters only grow."""

    def __init__(self) -> None:
        self.elections: dict[tuple[str, str, str], int] = {}
        """By group, kind (elected, unclean-elected, ...) and reason."""
        self.without_master_ms: dict[str, int] = {}
        self.lost: set[str] = set()
        """Groups without a living master; the record of one may still name the dead."""
        self._looked_ms: int | None = None

    def happened(self, kind: str, group: str, reason: str) -> None:
        if not kind.endswith("elected") or kind == "not-elected":
            return
        # A reason may hold numbers: as a label it would never end.
        key = (group, kind, _NUMBERS.sub("N", reason)[:_REASON_MAX])
        if key not in self.elections and len(self.elections) >= _REASONS_MAX:
            key = (group, kind, "other")
        self.elections[key] = self.elections.get(key, 0) + 1

    def look(self, now_ms: int, groups: Iterable[Group]) -> None:
        """Called with every tick: whoever has no living master now had none since the last."""
        elapsed_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self._looked_ms = now_ms
        self.lost.clear()
        for group in groups:
            master = group.record.master_broker_id
            known = self.without_master_ms.setdefault(group.record.group, 0)
            if master is None or not group.is_alive(master, now_ms):
                self.without_master_ms[group.record.group] = known + elapsed_ms
                self.lost.add(group.record.group)

    def pause(self) -> None:
        """Another controller leads: what happens meanwhile is not ours to count."""
        self._looked_ms = None
