"""A name server's numbers for a scrape: who is in the route."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric

from twinlog.namesrv.routes import RouteInfoManager
from twinlog.observe import families as f
from twinlog.observe.collect import Samples


class NamesrvMetrics:
    """Reads the routes."""

    def __init__(self, routes: RouteInfoManager) -> None:
        self._routes = routes

    def collect(self, out: Samples) -> Iterator[Metric]:
        counts = self._routes.counts()
        brokers = [(("master",), counts.masters), (("slave",), counts.slaves)]
        yield from out.many(f.ROUTE_BROKERS, brokers)
        yield out.one(f.ROUTE_TOPICS, counts.topics)
        yield out.one(f.ROUTE_RIVALS, len(self._routes.rivals()))
        yield out.one(f.GROUPS_WITHOUT_MASTER, counts.groups_without_master)
