"""What makes a server visible: its HTTP port, the measure of its loop, its own judgement.

The shell that runs a server makes one of these next to it and tells it the phase; the server gives
it facts and numbers when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import Metric

from twinlog import __version__
from twinlog.observe.collect import Samples, Source
from twinlog.observe.health import Facts, Health, judge, why_not_ready
from twinlog.observe.loop_lag import LoopLag
from twinlog.observe.port import HttpPort
from twinlog.observe.process import ServerMetrics
from twinlog.runtime.clock import Clock
from twinlog.runtime.failures import Failures
from twinlog.runtime.server_config import MetricsExporterType, ServerConfig, labels_of
from twinlog.runtime.tasks import TaskOwner

HTTP_HOST = "127.0.0.1"
WATCH_MS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a server shows of itself."""

    facts: Callable[[], Facts]
    metrics: Source
    labels: Callable[[], Mapping[str, str]]
    connections: Callable[[], Mapping[str, int]]
    refusal_labels: Callable[[int, int], tuple[str, str, str]]
    measure_loop: Callable[[Callable[[], int]], None] = field(default=lambda measure: None)
    """Takes the function that says how late the loop was, for the server's facts."""
    watch: Watch = field(default_factory=lambda: NoWatch())


class Watch(Protocol):
    """Writes what changes into a journal."""

    def started(self) -> None: ...

    def tick(self) -> None: ...

    def stopping(self) -> None: ...


class NoWatch:
    """Of a server that keeps no journal, or writes it when something happens."""

    def started(self) -> None: ...

    def tick(self) -> None: ...

    def stopping(self) -> None: ...


class Observer:
    """Of one process."""

    def __init__(
        self, config: ServerConfig, observed: Observed, *, clock: Clock, failures: Failures
    ) -> None:
        self._config = config
        self._observed = observed
        self._failures = failures
        self._tasks = TaskOwner("observer", failures=failures, clock=clock)
        self._loop_lag = LoopLag(clock)
        self._phase = "starting: what is stored is read, and the ports are not open yet"
        observed.measure_loop(self._loop_lag.recent_max_ms)
        self.port = HttpPort(
            host=config.metrics_prom_exporter_host or HTTP_HOST,
            port=config.metrics_prom_exporter_port,
            clock=clock,
            failures=failures,
            health=self.health,
            readiness=self.readiness,
            sources=(self,),
            new_samples=self._new_samples if self._is_exporting else None,
        )
        self._server_metrics = ServerMetrics(
            version=__version__,
            failures=failures,
            loop_lag=self._loop_lag,
            health=self.health,
            connections=observed.connections,
            refusal_labels=observed.refusal_labels,
            scrape_seconds=lambda: self.port.last_scrape_seconds,
        )

    @property
    def _is_exporting(self) -> bool:
        return self._config.metrics_exporter_type is MetricsExporterType.PROM

    async def start(self) -> None:
        self._loop_lag.start()
        await self.port.start()

    def serving(self) -> None:
        """The server is ready, and has said so."""
        self._phase = ""
        self.port.tell()
        watch = self._observed.watch
        self._failures.contain("events", watch.started)
        self._tasks.round("events", lambda: WATCH_MS, watch.tick)

    def stopping(self) -> None:
        self._phase = "stopping"
        self._failures.contain("events", self._observed.watch.stopping)

    async def stop(self) -> None:
        self._loop_lag.stop()
        await self._tasks.stop()
        await self.port.stop()

    # What the port asks

    def health(self) -> Health:
        return Health() if self._phase else judge(self._observed.facts())

    def readiness(self) -> str:
        return self._phase or why_not_ready(self.health())

    def collect(self, out: Samples) -> Iterator[Metric]:
        yield from self._server_metrics.collect(out)
        if not self._phase:
            yield from self._observed.metrics.collect(out)

    def _new_samples(self) -> Samples:
        own = labels_of(self._config.metrics_label) or {}
        return Samples({**own, **self._observed.labels()}, self._config.twinlog_metrics_series_max)
