"""Two real brokers, twin dialect over TLS: certificates prove both ends, nothing else passes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bit_flipper import BitFlipper
from support.certificates import Certificates, make_certificates
from support.ha_files import assert_identical, assert_queues_dense, numbers_in
from support.ha_load import SEND_OK, Load, ha_status
from support.ha_pair import Pair
from support.processes import wait_until
from support.properties import write_properties
from support.twinlog_servers import TWINLOG


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return make_certificates(tmp_path_factory.mktemp("theirs"), "another authority")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, twinlogHADialect="twin")
    yield pair
    pair.kill()


def master_keys(shown: Certificates, trusted: Certificates) -> dict[str, object]:
    return {
        "twinlogHATLS": "true",
        "tls.server.certPath": shown.certificate,
        "tls.server.keyPath": shown.key,
        "tls.server.trustCertPath": trusted.authority,
    }


def slave_keys(shown: Certificates, trusted: Certificates) -> dict[str, object]:
    return {
        "twinlogHATLS": "true",
        "tls.client.certPath": shown.certificate,
        "tls.client.keyPath": shown.key,
        "tls.client.trustCertPath": trusted.authority,
    }


def test_replication_over_tls_with_kills_and_flipped_bits(pair: Pair, ours: Certificates) -> None:
    """A bit flipped on the way breaks a record of TLS: the slave connects again and loses none."""
    pair.start_master(**master_keys(ours, ours))
    flipper = BitFlipper(("127.0.0.1", pair.master.ha_port), seed=2, every_bytes=400_000)
    try:
        pair.start_slave(flipper.address, **slave_keys(ours, ours))
        pair.wait_in_sync()
        load = Load(pair.master.address)
        load.start()
        wait_until(lambda: load.count() > 1000 and flipper.flip_count > 1, "flips under load")
        # A frame of a megabyte would never get through whole, and the log grows meanwhile.
        flipper.calm()
        pair.slave.kill()
        pair.slave = pair.slave.restart()
        goal = load.count() + 1000
        wait_until(lambda: load.count() > goal, "1000 more")
        load.finish()
        pair.wait_caught_up()
        master, slave = pair.stop_and_read()
        assert_identical(master, slave)
        assert master.end == slave.end
        assert_queues_dense(slave)
        assert numbers_in(slave) >= {n for n, code in load.acked.items() if code == SEND_OK}
    finally:
        flipper.close()


@pytest.mark.parametrize(
    ("who", "slave_says", "master_says"),
    [
        ("foreign slave", "refused this slave's certificate", "CERTIFICATE_VERIFY_FAILED"),
        ("foreign master", "certificate verify failed", "may not trust this certificate"),
        ("plain slave", "over TLS only", "over TLS only"),
        ("plain master", "is twinlogHATLS on at the master", "twinlogHATLS is off here"),
    ],
)
def test_who_cannot_prove_itself_is_told_why_at_both_ends(
    pair: Pair,
    ours: Certificates,
    theirs: Certificates,
    who: str,
    slave_says: str,
    master_says: str,
) -> None:
    shown = theirs if who == "foreign master" else ours
    master = {} if who == "plain master" else master_keys(shown, ours)
    shown = theirs if who == "foreign slave" else ours
    slave = {} if who == "plain slave" else slave_keys(shown, ours)
    pair.start_master(**master)
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}", **slave)

    def slave_reason() -> str:
        client = ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]
        return str(client["lastDisconnectReason"])

    wait_until(lambda: slave_says in slave_reason(), "the slave's status says why")
    wait_until(lambda: slave_says in pair.slave.output(), "the slave's log says why")
    wait_until(lambda: master_says in pair.master.output(), "the master's log says why")
    departed = ha_status(pair.master.address)["twinlog"]["departed"]
    assert any(master_says in entry["reason"] for entry in departed)
    assert list((pair.slave.store / "commitlog").iterdir()) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"brokerRole": "SYNC_MASTER"}, "a master needs tls.server.certPath"),
        ({"brokerRole": "SLAVE", "brokerId": 1}, "a slave needs tls.client.certPath"),
        ({"twinlogHADialect": "classic"}, "twinlogHADialect=classic has no TLS"),
    ],
)
def test_a_configuration_without_certificates_does_not_start(
    tmp_path: Path, keys: dict[str, object], words: str
) -> None:
    file = tmp_path / "broker.conf"
    write_properties(file, {"storePathRootDir": tmp_path / "s", "twinlogHATLS": "true", **keys})
    done = subprocess.run(
        [str(TWINLOG), "broker", "-c", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "twinlogHATLS" in done.stderr
    assert words in done.stderr
