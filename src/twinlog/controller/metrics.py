"""A controller's numbers for a scrape: what is decided about each group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from twinlog.observe import families as f
from twinlog.observe.collect import Samples

if TYPE_CHECKING:
    from twinlog.controller.server import ControllerServer


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
        for family, values in (
            (f.GROUP_EPOCH, [record.master_epoch for record in records]),
            (f.GROUP_IN_SYNC, [len(record.sync_state_set) for record in records]),
            (f.GROUP_REPLICAS, [len(record.replicas) for record in records]),
            (f.GROUP_HAS_MASTER, [int(r.master_broker_id is not None) for r in records]),
        ):
            rows = [((r.group,), float(v)) for r, v in zip(records, values, strict=True)]
            yield from out.many(family, rows)
