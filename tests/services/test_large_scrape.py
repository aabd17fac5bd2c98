"""A scrape of a broker with 10,000 topics and 5,000 groups: its time, and that of others."""

from __future__ import annotations

import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.ha_load import Connection, send_command
from support.processes import process_group
from support.twinlog_servers import http_address, start_twinlog_broker
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

TOPICS, GROUPS, WINDOW = 10_000, 5_000, 200
PAUSE_MS_AIM = 20


def pipelined(connection: Connection, commands: list[RemotingCommand]) -> None:
    waiting = 0
    for command in commands:
        connection.send(command)
        waiting += 1
        while waiting >= WINDOW:
            assert connection.receive().code == 0
            waiting -= 1
    for _ in range(waiting):
        assert connection.receive().code == 0


class Pinger(threading.Thread):
    """Asks again and again, and notes how long the longest answer took."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._connection = Connection(address)
        self._must_stop = False
        self.times_ms: list[float] = []

    def run(self) -> None:
        while not self._must_stop:
            began = time.perf_counter()
            self._connection.call(RequestCode.GET_MAX_OFFSET, {"topic": "t-1", "queueId": "0"})
            self.times_ms.append((time.perf_counter() - began) * 1000)

    def finish(self) -> list[float]:
        self._must_stop = True
        self.join(30)
        self._connection.close()
        return sorted(self.times_ms)


@pytest.mark.parametrize("series_max", [2_000, 100_000])
def test_a_large_scrape(tmp_path: Path, series_max: int) -> None:
    with process_group() as group:
        broker = start_twinlog_broker(
            tmp_path / "b", twinlogMetricsSeriesMax=series_max, twinlogCreationsPerAddress=0,
            mappedFileSizeCommitLog=64 << 20, defaultTopicQueueNums=1,
        )  # fmt: skip
        group.add(broker)
        connection = Connection(broker.address, timeout_s=120)
        topics = [send_command(b"x", topic=f"t-{number}") for number in range(TOPICS)]
        pipelined(connection, topics)
        commits = [
            RemotingCommand.request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": f"g-{n}", "topic": f"t-{n}", "queueId": "0", "commitOffset": "0"},
            )
            for n in range(GROUPS)
        ]
        pipelined(connection, commits)
        connection.close()
        quiet = Pinger(broker.address)
        quiet.start()
        time.sleep(2)  # How long an answer takes without a scrape, on this machine now.
        before = quiet.finish()
        pinger = Pinger(broker.address)
        pinger.start()
        process = psutil.Process(broker.pid)
        began, cpu = time.perf_counter(), process.cpu_times()
        url = f"http://{http_address(broker)}/metrics"
        with urllib.request.urlopen(url, timeout=120) as answer:
            text = answer.read().decode()
        seconds, after = time.perf_counter() - began, process.cpu_times()
        cpu_ms = 1000 * (after.user + after.system - cpu.user - cpu.system)
        during = pinger.finish()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        series = sum(len(family.samples) for family in families.values())
        print(
            f"\nlarge scrape: series_max={series_max} series={series} bytes={len(text)}"
            f" seconds={seconds:.2f} cpu_ms={cpu_ms:.0f} answers={len(during)}"
            f" longest answer {during[-1]:.1f} ms, 99th {during[len(during) * 99 // 100]:.1f} ms"
            f" (without a scrape {before[-1]:.1f} ms, {before[len(before) * 99 // 100]:.1f} ms)"
        )
        shown = min(series_max, TOPICS)
        assert len(families["rocketmq_messages_in"].samples) == shown
        assert len(families["rocketmq_consumer_lag_messages"].samples) == min(series_max, GROUPS)
        left_out = {s.labels["metric"] for s in families["twinlog_series_left_out"].samples}
        assert ("rocketmq_messages_in" in left_out) == (series_max < TOPICS)
        # Latencies need a read of the log each: their number is bounded for itself.
        assert series_max < TOPICS or all(name.endswith("_latency") for name in left_out), left_out
        # Time by the clock is also other processes' time: what the broker worked between two
        # answers to somebody else is its own doing.
        assert cpu_ms / len(during) < PAUSE_MS_AIM
