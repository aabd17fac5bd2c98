"""The quick way over the network: rows as the careful way gives them, whatever comes in between."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.certificates import make_certificates
from support.processes import ProcessGroup, process_group
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.client import Message, MessageQueue, blocking
from twinlog.client.net import calls
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.codec import encode_command
from twinlog.remoting.command import RemotingCommand
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read import network
from twinlog.spark.read.bulk import WIDTH_FIRST, WIDTH_MOST, BulkConnection, PullFrames, Width
from twinlog.spark.read.network import BrokerTransport
from twinlog.spark.read.rows import plan_batch

TOPIC = "sizes"
COLUMNS = ("queue_id", "queue_offset", "keys", "body")
ACCOUNTS = "accounts:\n- {accessKey: reader-one, secretKey: read-secret, admin: true}\n"


def sent(name_server: str, **access: Any) -> list[str]:
    """Send messages of very different sizes; the keys in the order of sending."""
    random = Random(7)
    messages = []
    for number in range(2500):
        size = random.choice([1, 40, 40, 300, 5000 if number % 25 else 300_000])
        body = random.randbytes(min(size, 3000)) * (size // 3000 or 1)
        messages.append(Message(TOPIC, body, keys=[f"k{number}"]))
    with blocking.Producer("p", name_server=name_server, send_timeout_ms=60_000, **access) as p:
        for first in range(0, len(messages), 100):
            assert all(r.is_acknowledged for r in p.send_many(messages[first : first + 100]))
    return [message.keys[0] for message in messages]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    directory = tmp_path_factory.mktemp("bulk")
    with process_group() as group:
        namesrv, _ = _started(group, directory)
        yield namesrv.address, sent(namesrv.address)


def _started(
    group: ProcessGroup, directory: Path, **config: Any
) -> tuple[TwinlogNamesrv, TwinlogBroker]:
    tls = {key: value for key, value in config.items() if key.startswith("tls.server")}
    namesrv = start_twinlog_namesrv(directory / "n", **tls)
    group.add(namesrv)
    broker = start_twinlog_broker(directory / "b", namesrv=namesrv.address, **config)
    group.add(broker)
    namesrv.wait_for_text(f"address={broker.address}")
    return namesrv, broker


def rows_of(name_server: str, **more: str) -> tuple[list[dict[str, Any]], bool]:
    """All rows, and whether the quick way was left for none of them."""
    options = SourceOptions.parse({"nameServer": name_server, "subscribe": TOPIC, **more})
    rows, was_quick = [], True
    for window in plan_batch(options, Pushed()):
        with closing(BrokerTransport(options)) as transport:
            for batch in transport.read(window, COLUMNS):
                rows += batch.to_pylist()
            readers = list(transport.bulk.values())
            was_quick &= bool(readers) and not any(reader.is_over for reader in readers)
    return rows, was_quick


def careful(monkeypatch: pytest.MonkeyPatch, name_server: str) -> list[dict[str, Any]]:
    with monkeypatch.context() as patch:
        patch.setattr(BrokerTransport, "_bulk_reader", lambda self, r: None)
        return rows_of(name_server)[0]


@pytest.mark.parametrize(
    "more", [{}, {"batchRows": "7"}, {"batchBytes": "1000"}, {"maxRecordsPerPartition": "100"}]
)
def test_rows_are_those_of_the_careful_way(
    cluster: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
) -> None:
    address, keys = cluster
    rows, was_quick = rows_of(address, **more)
    assert was_quick
    assert rows == careful(monkeypatch, address)
    assert sorted(row["keys"] for row in rows) == sorted(keys)


@contextmanager
def cutting_proxy(target: str, bytes_max: int) -> Iterator[str]:
    """A way to a broker that lets so many bytes of answers pass and then breaks."""
    host, port = target.rsplit(":", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    near = server.accept()[0]
                    far = socket.create_connection((host, int(port)))
                    asks = threading.Thread(target=_copy, args=(near, far))
                    asks.start()
                    _copy(far, near, bytes_max)
                    asks.join()
                    near.close()
                    far.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _copy(source: socket.socket, target: socket.socket, bytes_max: int = 1 << 40) -> None:
    with suppress(OSError):
        while bytes_max and (data := source.recv(min(65536, bytes_max))):
            target.sendall(data)
            bytes_max -= len(data)
        for end in (source, target):  # the other direction waits in them
            end.shutdown(socket.SHUT_RDWR)


@pytest.mark.timeout(180)
def test_a_connection_that_breaks_anywhere_costs_no_row(
    cluster: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster
    wanted = careful(monkeypatch, address)
    random = Random(11)
    for bytes_max in [0, 3, 8, 100, *(int(10 ** random.uniform(2, 7.3)) for _ in range(8))]:
        with ExitStack() as proxies, monkeypatch.context() as patch:

            def through(most: int, kept: ExitStack, target: str, *given: Any) -> BulkConnection:
                return BulkConnection(kept.enter_context(cutting_proxy(target, most)), *given)

            patch.setattr(network, "BulkConnection", partial(through, bytes_max, proxies))
            assert rows_of(address)[0] == wanted, bytes_max


@pytest.mark.timeout(180)
def test_tls_and_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    home = tmp_path / "home" / "conf"
    home.mkdir(parents=True)
    (home / "plain_acl.yml").write_text(ACCOUNTS)
    with process_group() as group:
        namesrv, _ = _started(
            group, tmp_path, aclEnable="true", rocketmqHome=home.parent,
            **certificates.server_keys("enforcing"), **certificates.dialling_keys(),
        )  # fmt: skip
        context = ssl.create_default_context(cafile=certificates.authority)
        account = {"access_key": "reader-one", "secret_key": "read-secret"}
        keys = sent(namesrv.address, tls=context, **account)
        access = {
            "useTLS": "true", "tlsCaFile": str(certificates.authority),
            "accessKey": "reader-one", "secretKey": "read-secret",
        }  # fmt: skip
        rows, was_quick = rows_of(namesrv.address, **access)
    assert was_quick
    assert sorted(row["keys"] for row in rows) == sorted(keys)


@pytest.mark.parametrize("topic", ["sizes", "%RETRY%0", "ä", '"opaque":0', '\\"opaque\\":0'])
def test_frames_are_those_of_the_client(topic: str) -> None:
    """Whatever else is in a request, its numbers are those that were asked for."""
    queue = MessageQueue(topic, "broker-a", 3)

    def sign(_: str, command: RemotingCommand) -> None:
        command.ext()["Signature"] = command.ext()["queueOffset"][::-1]

    for prepare in (lambda _, command: None, sign):
        frames = PullFrames(queue, "host:1", prepare)
        for low, count, opaque in [(0, 1, 1), (17, 1024, 2), (1 << 62, 5, (1 << 31) - 1)]:
            command = calls.pull_command(
                queue, low, group=TOOLS_GROUP, count_max=count, suspend_ms=0,
                subscription=None, posts_subscription=True, commit_offset=None,
            )  # fmt: skip
            command.opaque = opaque
            prepare("host:1", command)
            assert frames.frame(low, count, opaque) == encode_command(command)


def test_the_width_follows_what_answers_bring() -> None:
    width = Width()
    asked = [width.now]
    for _ in range(6):  # all is brought: doubled each time
        width.brought(width.now, width.now)
        asked.append(width.now)
    assert asked == [WIDTH_FIRST, 128, 256, 512, WIDTH_MOST, WIDTH_MOST, WIDTH_MOST]
    width.brought(WIDTH_MOST, 32)  # no more than 32 in an answer
    assert width.now == 32
    lacking = 0
    for _ in range(1000):
        given = min(32, width.now)
        lacking += given < width.now
        width.brought(width.now, given)
        assert 1 <= width.now <= 36
    assert lacking < 70
    width.brought(10, 1)  # one large message
    for _ in range(2000):
        width.brought(width.now, width.now)
    assert width.now == WIDTH_MOST
