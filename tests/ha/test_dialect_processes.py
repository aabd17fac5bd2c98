"""A slave knows what its master is before it dials, or does not dial."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ha_files import LogFiles, assert_identical
from support.ha_load import SEND_OK, Connection, ha_status, send_command
from support.processes import Process, ProcessGroup, process_group, wait_until
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker, start_twinlog_namesrv

SLAVE_NOT_AVAILABLE = 11


def send(broker: TwinlogBroker, *bodies: bytes) -> list[int]:
    connection = Connection(broker.address)
    codes = []
    for body in bodies:
        connection.send(send_command(body, topic="T"))
        codes.append(connection.receive().code)
    connection.close()
    return codes


def is_followed(broker: TwinlogBroker) -> bool:
    replicas = ha_status(broker.address)["haConnectionInfo"]
    return any(
        replica["twinlog"]["state"] == "TRANSFER" and replica["diff"] == 0 for replica in replicas
    )


@pytest.mark.parametrize("has_name_server", [True, False])
def test_a_tail_of_the_same_size_is_cut_and_not_continued(
    has_name_server: bool, tmp_path: Path
) -> None:
    """The records of both tails have the same length: in the classic dialect the logs would differ
    forever, with SEND_OK for every message that follows."""
    with process_group() as group:
        namesrv = None
        if has_name_server:
            started = start_twinlog_namesrv(tmp_path / "n")
            group.add(started)
            namesrv = started.address
        first = start_twinlog_broker(tmp_path / "1", namesrv=namesrv, brokerRole="SYNC_MASTER")
        group.add(first)
        slave = {"brokerRole": "SLAVE", "brokerId": 1}
        second = start_twinlog_broker(
            tmp_path / "2", namesrv=namesrv, **slave, haMasterAddress=f"127.0.0.1:{first.ha_port}"
        )
        group.add(second)
        wait_until(lambda: is_followed(first), "the slave follows")
        assert set(send(first, b"common-00", b"common-01")) == {SEND_OK}
        assert second.stop() == 0
        wait_until(lambda: not ha_status(first.address)["haConnectionInfo"], "the slave is gone")
        tail = [b"only-1-%02d" % n for n in range(4)]
        assert set(send(first, *tail)) == {SLAVE_NOT_AVAILABLE}
        first.kill()
        second = _again(group, second, brokerRole="SYNC_MASTER", brokerId=0, haMasterAddress="")
        send(second, *(b"only-2-%02d" % n for n in range(40)))
        first = _again(group, first, **slave, haMasterAddress=f"127.0.0.1:{second.ha_port}")
        wait_until(lambda: is_followed(second), "the old master follows")
        assert set(send(second, b"common-99")) == {SEND_OK}
        status = ha_status(second.address)["haConnectionInfo"]
        assert [replica["twinlog"]["dialect"] for replica in status] == ["twin"]
        assert first.stop() == 0
        assert second.stop() == 0
        assert_identical(LogFiles(second.store), LogFiles(first.store))


def _again(group: ProcessGroup, broker: TwinlogBroker, **changes: object) -> TwinlogBroker:
    again = broker.restart(**changes)
    group.add(again)
    return again


def test_a_master_that_starts_late_is_waited_for_and_never_dialled_in_classic(
    tmp_path: Path,
) -> None:
    with process_group() as group:
        master = start_twinlog_broker(tmp_path / "m", brokerRole="SYNC_MASTER")
        group.add(master)
        send(master, b"before")
        assert master.stop() == 0
        slave: Process = group.add(
            start_twinlog_broker(
                tmp_path / "s", brokerRole="SLAVE", brokerId=1,
                haMasterAddress=f"127.0.0.1:{master.ha_port}",
            )
        )  # fmt: skip
        slave.wait_for_text("the master has not said yet")
        master = _again(group, master)
        wait_until(lambda: is_followed(master), "the slave follows")
        assert send(master, b"after") == [SEND_OK]
        assert "master is twinlog" in slave.output()
