"""TLS as users meet it: name server and broker as processes, our client in front of them."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates, make_certificates
from support.client_support import read_queue
from support.processes import ProcessGroup, process_group
from support.properties import write_properties
from support.twinlog_servers import TWINLOG, start_twinlog_broker, start_twinlog_namesrv
from twinlog.client import Message, Producer, PullConsumer
from twinlog.client.errors import ClientError, NameServerUnreachableError

SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def start(group: ProcessGroup, directory: Path, certificates: Certificates, mode: str) -> str:
    """A name server and a broker that registers with it over TLS; the name server's address."""
    keys: dict[str, Any] = certificates.server_keys(mode)
    namesrv = start_twinlog_namesrv(directory / "namesrv", **keys)
    group.add(namesrv)
    dialling: dict[str, Any] = certificates.dialling_keys()
    broker = start_twinlog_broker(
        directory / "broker", namesrv=namesrv.address, **SMALL, **keys, **dialling
    )
    group.add(broker)
    namesrv.wait_for_text(f"address={broker.address}")
    return namesrv.address


@pytest.fixture(scope="module")
def enforcing(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[str]:
    with process_group() as group:
        yield start(group, tmp_path_factory.mktemp("enforcing"), certificates, "enforcing")


@pytest.fixture(scope="module")
def permissive(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[str]:
    with process_group() as group:
        yield start(group, tmp_path_factory.mktemp("permissive"), certificates, "permissive")


async def send_and_read(name_server: str, topic: str, **settings: Any) -> list[bytes]:
    """Large enough for several records of TLS in both directions."""
    bodies = [bytes([number]) * 100_000 for number in range(5)]
    async with (
        Producer(
            "pg", name_server=name_server, compression=None, send_timeout_ms=30_000, **settings
        ) as producer,
        PullConsumer("cg", name_server=name_server, **settings) as consumer,
    ):
        receipts = [await producer.send(Message(topic, body)) for body in bodies]
        assert all(receipt.is_acknowledged for receipt in receipts)
        read = [
            message.body
            for queue in {receipt.queue for receipt in receipts}
            for message in await read_queue(consumer, queue)
        ]
    assert sorted(read) == bodies
    return read


async def test_a_client_that_verifies_the_certificate_is_served(
    enforcing: str, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    await send_and_read(enforcing, "verified", tls=context)


async def test_a_client_that_trusts_another_authority_says_so(
    enforcing: str, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(other.authority))
    async with Producer("pg", name_server=enforcing, tls=context) as producer:
        with pytest.raises(ClientError, match="certificate verify failed"):
            await producer.send(Message("T", b"x"))


async def test_a_plain_client_is_refused_where_tls_is_demanded(enforcing: str) -> None:
    async with Producer("pg", name_server=enforcing) as producer:
        with pytest.raises(NameServerUnreachableError):
            await producer.send(Message("T", b"x"))


async def test_permissive_serves_plain_and_tls_on_one_port(
    permissive: str, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    await send_and_read(permissive, "plain")
    await send_and_read(permissive, "encrypted", tls=context)


async def test_a_tls_client_against_plain_servers_is_told(tmp_path: Path) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path)
        group.add(namesrv)
        async with Producer("pg", name_server=namesrv.address, tls=True) as producer:
            with pytest.raises(NameServerUnreachableError):
                await producer.send(Message("T", b"x"))
        namesrv.wait_for_text("TLS is not offered here")


@pytest.mark.parametrize("role", ["broker", "namesrv"])
@pytest.mark.parametrize("damage", ["no certificate", "not a certificate", "missing file"])
def test_tls_that_cannot_work_refuses_the_start(
    tmp_path: Path, certificates: Certificates, role: str, damage: str
) -> None:
    keys = certificates.server_keys("enforcing")
    if damage == "no certificate":
        keys = {"tls.server.mode": "enforcing"}
    elif damage == "not a certificate":
        keys["tls.server.certPath"] = certificates.key
    else:
        keys["tls.server.certPath"] = tmp_path / "nowhere.pem"
    file = write_properties(
        tmp_path / "server.conf", {"rocketmqHome": tmp_path, "storePathRootDir": tmp_path, **keys}
        if role == "broker" else {"rocketmqHome": tmp_path, **keys},
    )  # fmt: skip
    done = subprocess.run(
        [str(TWINLOG), role, "-c", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert "tls.server." in done.stderr
    assert "Traceback" not in done.stderr
