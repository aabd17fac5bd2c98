"""A master and a slave as real processes, and what a test does to them."""

from __future__ import annotations

from pathlib import Path

from support.ha_files import LogFiles
from support.ha_load import ha_status
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker

SEGMENT_SIZE = 256 * 1024


class Pair:
    """SYNC_MASTER and SLAVE without a name server; the slave may dial through a proxy."""

    master: TwinlogBroker
    slave: TwinlogBroker

    def __init__(self, directory: Path, **config: object) -> None:
        self.directory = directory
        self.config: dict[str, object] = {
            "twinlogHADialect": "classic",
            "mappedFileSizeCommitLog": SEGMENT_SIZE,
            "mappedFileSizeConsumeQueue": 6000,
            "maxHashSlotNum": 100,
            "maxIndexNum": 4000,
            **config,
        }

    def start(self, *, slave_dials: str | None = None, **slave_config: object) -> None:
        self.start_master()
        self.start_slave(slave_dials or f"127.0.0.1:{self.master.ha_port}", **slave_config)
        self.wait_in_sync()

    def start_master(self, **config: object) -> None:
        self.master = start_twinlog_broker(
            self.directory / "master", **{"brokerRole": "SYNC_MASTER", **self.config, **config}
        )

    def start_slave(self, master_address: str, **config: object) -> None:
        values = {
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": master_address,
            **self.config,
            **config,
        }
        self.slave = start_twinlog_broker(self.directory / "slave", **values)

    def wait_in_sync(self) -> None:
        def is_in_sync() -> bool:
            status = ha_status(self.master.address)
            return any(
                replica["twinlog"]["state"] == "TRANSFER" and replica["diff"] == 0
                for replica in status["haConnectionInfo"]
            )

        wait_until(is_in_sync, "the slave is in sync")

    def wait_caught_up(self) -> None:
        def is_equal() -> bool:
            end = ha_status(self.master.address)["masterCommitLogMaxOffset"]
            client = ha_status(self.slave.address)["haClientRuntimeInfo"]
            return bool(end == client["maxOffset"])

        wait_until(is_equal, "the slave has caught up")

    def stop_and_read(self) -> tuple[LogFiles, LogFiles]:
        """Clean stop of both, then their files."""
        assert self.slave.stop() == 0, self.slave.tail()
        assert self.master.stop() == 0, self.master.tail()
        return LogFiles(self.master.store), LogFiles(self.slave.store)

    def kill(self) -> None:
        for name in ("slave", "master"):
            if broker := getattr(self, name, None):
                broker.kill()
