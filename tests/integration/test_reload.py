"""SIGHUP: certificates, access rules and log files are read again; no process ends by it."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import Certificates, make_certificates
from support.ha_load import Load
from support.processes import wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)

AGAIN = "read certificates and access rules again"
RULES = "accounts:\n- accessKey: rocketmq1\n  secretKey: 12345678\n  admin: true\n"
LATER = RULES.replace("rocketmq1", "rocketmq2")


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "tls")


@pytest.fixture(params=["namesrv", "broker"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates
) -> Iterator[TwinlogBroker | TwinlogNamesrv]:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    keys: dict[str, object] = {
        "rocketmqHome": home, "aclEnable": "true", "twinlogLogFile": tmp_path / "server.log",
        **certificates.server_keys("permissive"),
    }  # fmt: skip
    process: TwinlogBroker | TwinlogNamesrv
    if request.param == "namesrv":
        process = start_twinlog_namesrv(tmp_path / "n", **keys)
    else:
        process = start_twinlog_broker(
            tmp_path / "b", mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, **keys
        )
    yield process
    if process.is_alive:
        assert process.stop() == 0


def shown_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def hang_up(server: TwinlogBroker | TwinlogNamesrv, log: Path) -> None:
    before = text_of(log).count(AGAIN)
    os.kill(server.pid, signal.SIGHUP)
    wait_until(lambda: not server.is_alive or text_of(log).count(AGAIN) > before, "a line about it")
    assert server.is_alive, f"ended with {server.popen.returncode}"


def test_certificates_rules_and_logs_are_read_anew(
    server: TwinlogBroker | TwinlogNamesrv, tmp_path: Path, certificates: Certificates
) -> None:
    log = tmp_path / "server.log"
    first = shown_certificate(server.port)
    log.rename(tmp_path / "server.log.moved")
    make_certificates(tmp_path / "tls")  # The same paths, other keys.
    hang_up(server, log)
    assert shown_certificate(server.port) != first
    assert log.exists(), "the log goes on in a new file"


def test_what_cannot_be_read_stays_as_it_was(
    server: TwinlogBroker | TwinlogNamesrv, tmp_path: Path, certificates: Certificates
) -> None:
    log = tmp_path / "server.log"
    first = shown_certificate(server.port)
    certificates.certificate.write_text("no certificate")
    (tmp_path / "home" / "conf" / "plain_acl.yml").write_text("accounts: 7\n")
    hang_up(server, log)
    assert shown_certificate(server.port) == first
    said = text_of(log)
    assert "contained failure of reload of certificates" in said
    assert "contained failure of reload of access rules" in said
    make_certificates(tmp_path / "tls")
    hang_up(server, log)
    assert shown_certificate(server.port) != first


def test_hang_ups_while_it_starts_and_under_load_end_nothing(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    server = start_twinlog_broker(
        tmp_path / "b", wait=False, mappedFileSizeCommitLog=1 << 20, twinlogLogFile=log
    )
    wait_until(lambda: log.exists(), "logging is set up")
    for _ in range(3):
        os.kill(server.pid, signal.SIGHUP)
    try:
        server.wait_for_text("twinlog broker ready")
        load = Load(server.address)
        load.start()
        for _ in range(20):
            before = load.count()
            hang_up(server, log)
            wait_until(lambda b=before: load.count() > b, "sends go on")  # type: ignore[misc]
        load.finish()
        assert set(load.acked.values()) == {0}
        assert server.stop() == 0
    finally:
        server.kill()
