"""How far replicas have confirmed the log, in `store/twinlog/confirmed`: 8 bytes, big-endian.

Has no counterpart in RocketMQ. Whoever reads a SYNC_MASTER's files (the Spark source) must not read
past what a failover would keep. Only a SYNC_MASTER writes it, once a replica has been counted;
what a slave has is on two machines already, so a slave has no such file.

The number never goes back, so a file that is late, or from before a power cut, is only careful.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable

from twinlog.broker.role import Role
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk, DiskFile

_LOG = logging.getLogger(__name__)
PUBLISH_INTERVAL_MS = 100
FILE_NAME = "confirmed"
_SIZE = 8


class ConfirmedFile:
    """Keeps the file up with the watermark."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        confirmed: Callable[[], int],
        role: Role,
    ) -> None:
        self._config = config
        self._role = role
        self._disk = disk
        self._confirmed = confirmed
        self._path = posixpath.join(config.store_path_root_dir, "twinlog", FILE_NAME)
        self._file: DiskFile | None = None
        self._written = 0

    def load(self, log_end: int) -> None:
        """Begin with what an earlier process published, or remove it where it has no meaning."""
        if not self._disk.exists(self._path):
            return
        if not self._role.is_sync:
            self._disk.unlink(self._path)
            return
        known = int.from_bytes(self._disk.read_bytes(self._path)[:_SIZE], "big")
        self._written = min(known, log_end)
        if self._written != known:
            self._write(self._written)

    def publish(self) -> None:
        """Write the number if it has grown."""
        value = self._confirmed()
        if not self._role.is_sync or value <= self._written:
            return
        try:
            self._write(value)
        except OSError as error:
            # A full disk: readers of the files stay where they were; the next turn tries again.
            _LOG.warning("confirmed offset not published path=%s error=%s", self._path, error)
            self._written = value

    def _write(self, value: int) -> None:
        if self._file is None:
            self._disk.make_directories(posixpath.dirname(self._path))
            self._file = self._disk.open(self._path, create=True)
        self._file.pwritev([value.to_bytes(_SIZE, "big")], 0)
        self._written = value

    def close(self) -> None:
        """Write the last number and let go of the file."""
        self.publish()
        if self._file is not None:
            self._file.close()
            self._file = None
