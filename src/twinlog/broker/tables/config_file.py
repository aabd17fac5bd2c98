"""A table kept as one JSON file with a backup next to it (RocketMQ's ConfigManager).

Saved with temp file, fsync and rename, so that a crash leaves the old table or the new one; what
was answered is on disk. Loaded as Apache does: the file, else its backup, else nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from twinlog.remoting import fastjson
from twinlog.runtime.disk import Disk, write_atomically

_LOG = logging.getLogger("twinlog.broker")


class ConfigFileError(Exception):
    """Neither the file nor its backup can be read as JSON."""


class ConfigFile:
    """One JSON file. `load` gives the object in it, `save` replaces it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path

    def load(self) -> dict[str, Any] | None:
        """The object in the file or in its backup; None when there is neither.

        Raises:
            ConfigFileError: there is text, and it is not JSON in the file or in the backup.
        """
        fault = None
        for path in (self.path, self.path + ".bak"):
            if not self._disk.exists(path):
                continue
            data = self._disk.read_bytes(path)
            if not data.strip():
                _LOG.warning("config file empty path=%s", path)
                continue
            try:
                value = fastjson.loads(data, is_forgiving=True)
            except ValueError as error:
                fault = f"{path} is not JSON: {error}"
                _LOG.warning("config file not readable path=%s error=%s", path, error)
                continue
            if isinstance(value, dict):
                return value
            fault = f"{path} holds no JSON object"
            _LOG.warning("config file not readable path=%s error=%s", path, "no JSON object")
        if fault is not None:
            raise ConfigFileError(f"{fault}; repair or remove it and its backup")
        return None

    async def save(self, value: dict[str, Any]) -> None:
        """Replace the file, keep what was there as the backup; the disk in a thread."""
        await self._disk.run(self._write, [fastjson.dumps_pretty(value)])

    async def save_parts(self, parts: Iterable[bytes]) -> None:
        """The same for a large text: a turn of the loop after each part."""
        texts = []
        for part in parts:
            texts.append(part)
            await asyncio.sleep(0)
        await self._disk.run(self._write, texts)

    async def save_table(self, version: dict[str, int], name: str, members: Sequence[str]) -> None:
        """The same for a versioned table whose members are text already."""
        await self._disk.run(self._write_table, version, name, members)

    def _write_table(self, version: dict[str, int], name: str, members: Sequence[str]) -> None:
        head = fastjson.dumps_pretty(version, level=1)
        text = ",".join(members).encode()
        self._write([b'{\n\t"dataVersion":%b,\n\t"%b":{%b\n\t}\n}' % (head, name.encode(), text)])

    def _write(self, parts: Sequence[bytes]) -> None:
        write_atomically(self._disk, self.path, b"".join(parts), keep_backup=True)
