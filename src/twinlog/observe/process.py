"""The numbers that every server has: what runs, how late its loop is, what it refused."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric, ProcessCollector

from twinlog.observe import families
from twinlog.observe.collect import Samples
from twinlog.observe.health import Health
from twinlog.observe.loop_lag import LoopLag
from twinlog.runtime.compiled import code_tier
from twinlog.runtime.failures import Failures


class ServerMetrics:
    """Of one process."""

    def __init__(
        self,
        *,
        version: str,
        failures: Failures,
        loop_lag: LoopLag,
        health: Callable[[], Health],
        connections: Callable[[], Mapping[str, int]],
        refusal_labels: Callable[[int, int], tuple[str, str, str]],
        scrape_seconds: Callable[[], float],
    ) -> None:
        self._build = (version, platform.python_version(), code_tier())
        self._failures = failures
        self._loop_lag = loop_lag
        self._health = health
        self._connections = connections
        self._refusal_labels = refusal_labels
        self._scrape_seconds = scrape_seconds
        self._process = ProcessCollector(registry=None)

    def collect(self, out: Samples) -> Iterator[Metric]:
        yield from self._process.collect()
        yield from out.many(families.BUILD_INFO, [(self._build, 1)])
        yield from self._collect_health(out)
        yield out.histogram(families.LOOP_LAG, self._loop_lag.histogram)
        yield out.one(families.LOOP_LAG_MAX, self._loop_lag.recent_max_ms() / 1000)
        yield out.one(families.SCRAPE_SECONDS, self._scrape_seconds())
        connections = self._connections().items()
        yield from out.many(families.CONNECTIONS, [((k,), v) for k, v in connections])
        refused: dict[tuple[str, str, str], int] = {}
        for (request, response), count in self._failures.refusals.items():
            key = self._refusal_labels(request, response)
            refused[key] = refused.get(key, 0) + count
        yield from out.many(families.REQUESTS_REFUSED, refused.items())
        contained = [((f.what,), f.count) for f in self._failures.table.values()]
        yield from out.many(families.CONTAINED_ERRORS, contained)

    def _collect_health(self, out: Samples) -> Iterator[Metric]:
        health = self._health()
        yield out.one(families.HEALTHY, int(health.is_healthy))
        found = dict.fromkeys((f.code.value, f.level.value) for f in health.findings)
        yield from out.many(families.HEALTH_FINDING, [(key, 1) for key in found])
