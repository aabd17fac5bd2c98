"""The parts that a scrape is made of, and the page that lists the metrics."""

from __future__ import annotations

import random
import re
import runpy
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from twinlog.broker.stats.consumer_lag import queue_lag
from twinlog.broker.stats.metrics import replica_names
from twinlog.observe import families as f
from twinlog.observe.collect import CHUNK, SKIPPED, Samples
from twinlog.observe.exposition import SLICE_MS, write_sliced
from twinlog.observe.histogram import LATENCY_MS, Histogram
from twinlog.observe.loop_lag import INTERVAL_MS, LoopLag
from twinlog.runtime.failures import KINDS_MAX, Failures
from twinlog.runtime.server_config import labels_of
from twinlog.testing.manual_clock import ManualClock

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_is_declared() -> None:
    page = runpy.run_path(str(ROOT / "tools" / "metrics_reference.py"))["page"]()
    stored = (ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")
    assert page == stored, "run: python tools/metrics_reference.py"


# The names of RocketMQ 5 that users know.
ROCKETMQ_5 = [
    "messages_in", "messages_out", "throughput_in", "throughput_out", "send_to_dlq_messages",
    "commit_messages", "rollback_messages", "timer_", "producer_connections",
    "consumer_connections", "consumer_lag_messages", "consumer_lag_latency",
    "consumer_inflight_messages", "consumer_queueing_latency", "consumer_ready_messages",
    "broker_permission", "processor_watermark", "topic_number", "consumer_group_number",
    "storage_size", "storage_flush_behind_bytes", "storage_dispatch_behind_bytes",
    "storage_message_reserve_time", "half_messages", "timing_messages", "pop_", "message_size",
    "rpc_latency", "delay_message_latency", "finish_message_latency", "topic_create_execution_time",
    "consumer_group_create_execution_time",
]  # fmt: skip


@pytest.mark.parametrize("name", ROCKETMQ_5)
def test_a_name_of_rocketmq_is_there_or_the_page_says_why_not(name: str) -> None:
    page = runpy.run_path(str(ROOT / "tools" / "metrics_reference.py"))
    is_there = f"rocketmq_{name}" in {family.name for family in f.FAMILIES}
    assert is_there or f"`rocketmq_{name}" in page["ABSENT"]


@pytest.mark.parametrize(
    ("committed", "pulled", "end", "expected"),
    [
        (3, 5, 9, (3, 5, 9)),
        (3, 0, 9, (3, 3, 9)),  # Nothing was handed out since the start.
        (-1, 4, 9, (0, 4, 9)),  # Never committed.
        (3, 9, 7, (3, 7, 7)),  # The queue was cut.
        (8, 9, 7, (8, 8, 8)),  # So was the part that is consumed.
    ],
)
def test_positions_of_a_group_are_in_order(
    committed: int, pulled: int, end: int, expected: tuple[int, int, int]
) -> None:
    assert queue_lag(2, committed, pulled, end) == (2, *expected)


def test_rows_that_are_not_read_are_counted() -> None:
    out = Samples({})
    rows = [(("t", "g", "false", "false"), 1.0), None, None]
    assert sum(len(metric.samples) for metric in out.many(f.LAG_LATENCY, rows)) == 1
    assert out.left_out == {"rocketmq_consumer_lag_latency": 2}


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in f.FAMILIES:
        assert re.fullmatch(r"(rocketmq|twinlog)_[a-z0-9_]+", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert all(re.fullmatch(r"[a-z_]+", label) for label in family.labels)
        assert family.text.endswith(".")
    assert len({family.name for family in f.FAMILIES}) == len(f.FAMILIES)


def test_a_histogram_counts_as_a_sorted_list_would() -> None:
    numbers = random.Random(7)
    histogram, seen = Histogram(), []
    for _ in range(2000):
        value, count = (
            numbers.choice([*LATENCY_MS, numbers.uniform(0, 20_000)]),
            numbers.randint(1, 3),
        )
        histogram.observe(value, count)
        seen += [value] * count
    for bound, count in histogram.buckets():
        limit = float("inf") if bound == "+Inf" else float(bound) * 1000
        assert count == sum(value <= limit * (1 + 1e-12) for value in seen), bound
    assert histogram.count == len(seen)
    assert histogram.sum_ms == pytest.approx(sum(seen))


class LateClock(ManualClock):
    """A loop that was busy: what was due meanwhile is called afterwards."""

    def be_busy(self, duration_ms: int) -> None:
        self._now_ms += duration_ms


def test_loop_lag_is_how_late_the_timer_comes() -> None:
    clock = LateClock(0)
    lag = LoopLag(clock)
    lag.start()
    clock.advance(10 * INTERVAL_MS)
    assert (lag.histogram.count, lag.recent_max_ms()) == (10, 0)
    clock.be_busy(INTERVAL_MS + 70)
    clock.advance(0)
    assert lag.recent_max_ms() == 70
    clock.advance(50_000)
    assert lag.recent_max_ms() == 70
    clock.advance(20_000)
    assert lag.recent_max_ms() == 0, "it was more than a minute ago"
    lag.stop()
    count = lag.histogram.count
    clock.advance(10_000)
    assert lag.histogram.count == count


def rows(count: int) -> list[tuple[tuple[str, ...], float]]:
    return [((f"topic-{n}", "unspecified", "false"), float(n)) for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 3])
@pytest.mark.parametrize("is_openmetrics", [False, True])
async def test_pieces_are_one_family(count: int, is_openmetrics: bool) -> None:
    samples = Samples({"cluster": 'a"\\\nb'})

    def metrics() -> list[Metric]:
        found = [*samples.many(f.MESSAGES_IN, rows(count)), samples.one(f.HEALTHY, 1)]
        return [*found, samples.histogram(f.FSYNC_SECONDS, Histogram())]

    slices = write_sliced(iter(metrics()), ManualClock(), is_openmetrics=is_openmetrics)
    text = b"".join([data async for data in slices]).decode()
    parse = openmetrics if is_openmetrics else prometheus
    families = {family.name: family for family in parse(text)}
    assert ("rocketmq_messages_in" in families) == bool(count)
    if count:
        found = families["rocketmq_messages_in"].samples
        assert [sample.value for sample in found] == [float(n) for n in range(count)]
        assert {sample.labels["cluster"] for sample in found} == {'a"\\\nb'}
    assert text.count("# TYPE twinlog_healthy") == 1
    assert text.endswith("# EOF\n") == is_openmetrics


class WorkClock(ManualClock):
    """Each look at the clock costs a millisecond; a pause is counted."""

    pauses = 0

    def monotonic_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.pauses += 1


async def test_a_long_scrape_lets_the_loop_go_on() -> None:
    clock = WorkClock()
    pieces = [m for _ in range(200) for m in Samples({}).many(f.MESSAGES_IN, rows(2))]
    async for _ in write_sliced(iter(pieces), clock):
        pass
    assert clock.pauses == 200 // SLICE_MS
    assert SLICE_MS < 20


def test_series_beyond_the_limit_are_left_out_and_counted() -> None:
    samples = Samples({}, series_max=4)
    pieces = list(samples.many(f.MESSAGES_IN, rows(10)))
    assert len(list(samples.many(f.MESSAGES_OUT, []))) == 1
    assert sum(len(piece.samples) for piece in pieces) == 4
    assert samples.left_out == {"rocketmq_messages_in": 6}
    longer = Samples({}, series_max=4)
    assert len(list(longer.many(f.MESSAGES_IN, rows(10 * SKIPPED)))) >= 10, "places to pause"
    (left_out,) = samples.left_out_rows()
    assert [(s.labels, s.value) for s in left_out.samples] == [
        ({"metric": "rocketmq_messages_in"}, 6.0)
    ]


@pytest.mark.parametrize(
    ("addresses", "names"),
    [
        (["10.0.0.1:4242/1"], ["10.0.0.1/1"]),
        (["10.0.0.1:4242"], ["10.0.0.1"]),
        (["h:1", "h:2", "h:3/2", "h:4"], ["h", "h#2", "h/2", "h#3"]),
        (["[::1]:5/1"], ["[::1]/1"]),
    ],
)
def test_replicas_keep_their_names_over_reconnects(addresses: list[str], names: list[str]) -> None:
    assert replica_names(addresses) == names
    assert replica_names([re.sub(r":\d+(/|$)", r":999\1", a) for a in addresses]) == names


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", {}),
        ("a:b", {"a": "b"}),
        ("a:b,c_1:d e,", {"a": "b", "c_1": "d e"}),
        ("a:", {"a": ""}),
        ("a=b", None),
        ("1a:b", None),
        ("a:b:c", None),
    ],
)
def test_labels_of_the_configuration(text: str, labels: dict[str, str] | None) -> None:
    assert labels_of(text) == labels


def test_refusals_are_bounded() -> None:
    failures = Failures()
    for code in range(KINDS_MAX + 50):
        failures.refused(code, 1)
        failures.refused(code, 1)
    assert len(failures.refusals) <= KINDS_MAX + 1
    assert sum(failures.refusals.values()) == 2 * (KINDS_MAX + 50)
