"""The HTTP port of real servers: what a scrape and a health check get."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from support.client_support import eventually
from support.ha_load import Connection, Load, ask, send_once
from support.processes import Process, ProcessGroup, free_port, process_group, wait_until
from support.twinlog_servers import (
    http_address,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.client import Message, Producer, PushConsumer, ReceivedMessage
from twinlog.observe.families import ALL, BROKER, CONTROLLER, FAMILIES, NAMESRV, Family
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.compiled import code_tier

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(address: str, path: str, accept: str = "*/*") -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers["content-type"]
    except urllib.error.HTTPError as error:
        with closing(error):
            return error.code, error.read().decode(), error.headers["content-type"]


def ready(address: str) -> tuple[int, dict[str, Any]]:
    status, text, _ = get(address, "/health/ready")
    return status, json.loads(text)


def scrape(address: str) -> dict[str, Any]:
    """Families by name, as Prometheus reads them."""
    status, text, _ = get(address, "/metrics")
    assert status == 200
    return {family.name: family for family in prometheus(text)}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    family = families[name.removesuffix("_total").removesuffix("_count")]
    found = [
        sample.value
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, family.samples)
    return float(found[0])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    """A name server, a controller, a synchronous pair with a message and a consumer's offset."""
    directory = tmp_path_factory.mktemp("http")
    with process_group() as group:
        namesrv = start_twinlog_namesrv(directory / "namesrv")
        controller = start_twinlog_controller(directory / "controller")
        master = start_twinlog_broker(
            directory / "master", namesrv=namesrv.address, brokerRole="SYNC_MASTER",
            metricsLabel="zone:north,rack:7", twinlogMetricsPerQueue="true",
        )  # fmt: skip
        slave = start_twinlog_broker(
            directory / "slave", namesrv=namesrv.address, brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"127.0.0.1:{master.ha_port}",
        )  # fmt: skip
        for process in (namesrv, controller, master, slave):
            group.add(process)
        wait_until(lambda: send_once(master.address, b"x" * 100).code == 0, "a send is confirmed")
        commit = {"consumerGroup": "g", "topic": "load", "queueId": 0, "commitOffset": 0}
        assert ask(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
        assert ask(master.address, RequestCode.GET_MAX_OFFSET, {}).code != 0
        yield {NAMESRV: namesrv, CONTROLLER: controller, BROKER: master, "slave": slave}


def test_live_and_ready(servers: dict[str, Process]) -> None:
    for process in servers.values():
        address = http_address(process)
        assert get(address, "/health/live")[:2] == (200, '{"live":true}')
        wait_until(lambda a=address: ready(a)[0] == 200, "the server is ready")  # type: ignore[misc]
        assert ready(address)[1]["reason"] == ""
        assert get(address, "/else")[0] == 404


def test_both_formats_are_read_by_the_reference_parsers(servers: dict[str, Process]) -> None:
    for process in servers.values():
        # A series may appear between two scrapes (a slave learns of a group): look again then.
        address = http_address(process)
        wait_until(lambda a=address: formats_agree(a), "two scrapes with the same series")  # type: ignore[misc]


def formats_agree(address: str) -> bool:
    _, text, kind = get(address, "/metrics")
    assert kind.startswith("text/plain; version=")
    plain = {(s.name, *sorted(s.labels.items())) for f in prometheus(text) for s in f.samples}
    _, text, kind = get(address, "/metrics", OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    opened = {(s.name, *sorted(s.labels.items())) for f in openmetrics(text) for s in f.samples}
    heads = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(heads) == len(set(heads)), "one head for each family"
    return plain == opened


@pytest.mark.parametrize("server", [*ALL])
def test_a_scrape_has_what_is_declared_and_nothing_else(
    servers: dict[str, Process], server: str
) -> None:
    declared: dict[str, Family] = {f.name: f for f in FAMILIES if server in f.servers}
    found = scrape(http_address(servers[server]))
    if server == BROKER:
        found |= scrape(http_address(servers["slave"]))
    own = {name: family for name, family in found.items() if not name.startswith("process_")}
    assert own.keys() <= declared.keys()
    missing = declared.keys() - own.keys()
    assert all(declared[name].is_conditional for name in missing), missing
    for name, family in own.items():
        kinds = {"gauge", "unknown"} if declared[name].kind == "gauge" else {declared[name].kind}
        assert family.type in kinds
        assert family.documentation == declared[name].text
        for sample in family.samples:
            assert set(declared[name].labels) <= sample.labels.keys()


def test_numbers_of_a_pair(servers: dict[str, Process]) -> None:
    master, slave = (scrape(http_address(servers[name])) for name in (BROKER, "slave"))
    assert value(master, "rocketmq_messages_in_total", topic="load") >= 1
    assert value(master, "rocketmq_consumer_lag_messages", consumer_group="g") >= 1
    assert value(master, "rocketmq_consumer_lag_latency", consumer_group="g") > 0
    of_queue = {"consumer_group": "g", "queue_id": "0"}
    assert value(master, "twinlog_consumer_queue_lag_messages", **of_queue) >= 1
    assert value(master, "twinlog_build_info", code=code_tier()) == 1
    assert value(master, "twinlog_replicas") == 1
    assert value(master, "twinlog_replicas_in_sync") == 1
    assert value(master, "twinlog_replica_in_sync", replica="127.0.0.1/1", zone="north") == 1
    assert value(master, "twinlog_replica_state", replica="127.0.0.1/1") == 1
    assert value(master, "twinlog_broker_role", role="SYNC_MASTER", rack="7") == 1
    assert value(slave, "twinlog_broker_role", role="SLAVE") == 1
    assert value(slave, "twinlog_slave_linked") == 1
    marks = {mark: value(master, "twinlog_log_offset_bytes", mark=mark)
             for mark in ("min", "appended", "confirmed")}  # fmt: skip
    assert marks["min"] == 0 < marks["confirmed"] <= marks["appended"]
    assert value(master, "twinlog_fsync_seconds_count") >= 0
    assert value(master, "twinlog_put_seconds_count") >= 1
    refused = master["twinlog_requests_refused"].samples
    assert any(s.labels["request_code"] == "GET_MAX_OFFSET" for s in refused)
    routes = scrape(http_address(servers[NAMESRV]))
    assert value(routes, "twinlog_route_brokers", role="master") == 1


async def test_what_is_handed_out_is_in_flight_until_it_is_consumed(
    servers: dict[str, Process],
) -> None:
    """Between its offset and what it was handed, a group has messages in flight."""
    namesrv, topic, group = servers[NAMESRV].address, "flight", "flyers"  # type: ignore[attr-defined]
    address = http_address(servers[BROKER])

    def lag() -> dict[str, float]:
        found = scrape(address)
        labels = {"topic": topic, "consumer_group": group, "is_retry": "false"}
        names = ("lag_messages", "inflight_messages", "ready_messages", "queueing_latency")
        try:
            return {name: value(found, f"rocketmq_consumer_{name}", **labels) for name in names}
        except (AssertionError, KeyError):
            return dict.fromkeys(names, -1.0)

    may_end = asyncio.Event()
    async with Producer("pg", name_server=namesrv) as producer:
        for _ in range(10):
            await producer.send(Message(topic, b"x"))
        for queue_id in range(8):
            start = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": 0}
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            assert ask(servers[BROKER].address, code, start).code == 0  # type: ignore[attr-defined]
        assert (lag()["inflight_messages"], lag()["ready_messages"]) == (0, 10)

        async def handler(message: ReceivedMessage) -> None:
            await may_end.wait()

        async with PushConsumer(group, name_server=namesrv, commit_ms=100) as consumer:
            await consumer.subscribe(topic, "*", handler)
            await eventually(lambda: lag()["inflight_messages"] == 10, "all are handed out")
            assert lag() == {"lag_messages": 10, "inflight_messages": 10, "ready_messages": 0,
                             "queueing_latency": 0}  # fmt: skip
            may_end.set()
            await eventually(lambda: lag()["lag_messages"] == 0, "all are consumed")
            assert lag()["inflight_messages"] == 0
        for _ in range(5):
            await producer.send(Message(topic, b"later"))
    await eventually(lambda: lag()["ready_messages"] == 5, "nobody has got the five")
    assert lag()["inflight_messages"] == 0
    await eventually(lambda: lag()["queueing_latency"] > 1, "and they grow old")


def test_a_stopped_slave_is_seen_in_the_metrics(servers: dict[str, Process]) -> None:
    master, slave = servers[BROKER], servers["slave"]
    address = http_address(master)
    os.kill(slave.pid, signal.SIGSTOP)
    try:
        assert send_once(master.address, b"waits").code == 12  # type: ignore[attr-defined]
        found = scrape(address)
        assert value(found, "twinlog_replica_in_sync", replica="127.0.0.1/1") == 0
        assert value(found, "twinlog_replica_lag_bytes", replica="127.0.0.1/1") > 0
        assert value(found, "twinlog_replica_lag_seconds", replica="127.0.0.1/1") >= 1.5
        assert value(found, "twinlog_healthy") == 0
        assert value(found, "twinlog_health_finding", code="slave_not_in_sync") == 1
        assert value(found, "twinlog_puts_not_ok_total", status="FLUSH_SLAVE_TIMEOUT") >= 1
        status, body = ready(address)
        assert (status, body["healthy"]) == (200, False), "it serves, and is not healthy"
        assert body["findings"][0]["code"] == "slave_not_in_sync"
    finally:
        os.kill(slave.pid, signal.SIGCONT)
    wait_until(lambda: value(scrape(address), "twinlog_healthy") == 1, "healthy again")


def start(tmp_path: Path, group: ProcessGroup, name: str = "b", **config: object) -> Any:
    broker = start_twinlog_broker(tmp_path / name, **config)
    group.add(broker)
    return broker


def test_a_port_that_is_taken_is_a_warning(tmp_path: Path) -> None:
    port = free_port()
    with process_group() as group, socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        broker = start(tmp_path, group, metricsPromExporterPort=port)
        assert send_once(broker.address, b"served").code == 0
        lines = [line for line in broker.output().splitlines() if "no HTTP port" in line]
        assert len(lines) == 1
        assert "WARNING" in lines[0]
        assert str(port) in lines[0]
        assert broker.stop() == 0


def test_without_metrics_there_is_still_health(tmp_path: Path) -> None:
    with process_group() as group:
        broker = start(tmp_path, group, metricsExporterType="DISABLE")
        address = http_address(broker)
        assert get(address, "/metrics")[0] == 404
        assert ready(address)[0] == 200
        # The process still ends by its own signals, with a client that keeps its connection.
        host, _, number = address.rpartition(":")
        with socket.create_connection((host, int(number))) as idle:
            idle.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in idle.recv(1000)
            assert broker.stop() == 0


def test_other_exporters_are_refused(tmp_path: Path) -> None:
    for key, text in (("metricsExporterType", "OTLP_GRPC"), ("metricsLabel", "zone=north")):
        broker = start_twinlog_broker(tmp_path / key, wait=False, **{key: text})
        assert broker.wait() == 2
        assert key in broker.output()


def test_series_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    with process_group() as group:
        broker = start(tmp_path, group, twinlogMetricsSeriesMax=3, metricsLabel="a:b")
        for number in range(7):
            assert send_once(broker.address, b"x", topic=f"topic-{number}").code == 0
        found = scrape(http_address(broker))
        assert len(found["rocketmq_messages_in"].samples) == 3
        assert value(found, "twinlog_series_left_out", metric="rocketmq_messages_in") == 4


def test_a_scrape_under_load_disturbs_nothing(tmp_path: Path) -> None:
    with process_group() as group:
        broker = start(tmp_path, group)
        address = http_address(broker)
        load = Load(broker.address)
        load.start()
        for _ in range(20):
            before = load.count()
            assert get(address, "/metrics")[0] == 200
            wait_until(lambda b=before: load.count() > b, "sends go on")  # type: ignore[misc]
        load.finish()
        assert set(load.acked.values()) == {0}
        found = scrape(address)
        sent = value(found, "rocketmq_messages_in_total", topic="load")
        assert sent == len(load.acked)


def test_garbage_on_the_http_port(tmp_path: Path) -> None:
    """Whatever comes, messages are stored and the next one is answered."""
    with process_group() as group:
        broker = start(tmp_path, group)
        host, _, number = http_address(broker).rpartition(":")
        for words in (b"\x00" * 5000, b"GET " + b"/" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n",
                      b"GET /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n"):  # fmt: skip
            with socket.create_connection((host, int(number)), timeout=10) as peer:
                try:
                    peer.sendall(words)
                    peer.shutdown(socket.SHUT_WR)
                    answer = b"".join(iter(lambda p=peer: p.recv(65536), b""))  # type: ignore[misc]
                    assert answer.startswith(b"HTTP/1.1 400 "), words[:40]
                except OSError as error:
                    # Refused before its last words were read: the rest resets the connection.
                    if len(words) <= 65536 or isinstance(error, TimeoutError):
                        raise
            assert get(f"{host}:{number}", "/health/live")[0] == 200
        crowd = [socket.create_connection((host, int(number))) for _ in range(200)]
        connection = Connection(broker.address)
        assert connection.call(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
        connection.close()
        for peer in crowd[::2]:
            peer.sendall(b"GET /health/li")
        # A server that is restarted by its health must not be at the mercy of a silent crowd.
        assert get(f"{host}:{number}", "/health/live")[0] == 200
        for peer in crowd[:100]:
            with suppress(ConnectionResetError):  # Closed before its words were read.
                assert peer.recv(1) == b"", "the oldest made room"
        for peer in crowd:
            peer.close()
