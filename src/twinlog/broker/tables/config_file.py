"""A table kept as one JSON file with a backup next to it (RocketMQ's ConfigManager).

Saved with temp file, fsync and rename, so that a crash leaves the old table or the new one; what
was answered is on disk. Loaded as Apache does: the file, else its backup, else nothing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twinlog.remoting import fastjson
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.store.integrity.digests import digest_of

_LOG = logging.getLogger("twinlog.broker")


class Source(enum.Enum):
    """Where a table was loaded from."""

    FILE = "file"
    BACKUP = "backup"
    NOWHERE = "nowhere"


class ConfigFileError(Exception):
    """Neither the file nor its backup can be read as JSON."""


class ConfigFile:
    """One JSON file. `load` gives the object in it, `save` replaces it."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        is_decayed: Callable[[str, bytes], bool] = lambda path, data: False,
    ) -> None:
        self._disk = disk
        self.path = path
        self._is_decayed = is_decayed
        self._digest = b""  # Of what was written or loaded last.
        self.source = Source.NOWHERE
        self.fault = ""
        """Of the file itself, at the last load; empty when it is what was loaded."""

    def load(self) -> dict[str, Any] | None:
        """The object in the file or in its backup; None when there is neither.

        Raises:
            ConfigFileError: there is text, and it is not JSON in the file or in the backup.
        """
        fault = None
        self.source, self.fault = Source.NOWHERE, "is missing"
        for path, data in self._candidates():
            if not data.strip():
                _LOG.warning("config file empty path=%s", path)
                self._note_fault(path, "is empty")
                continue
            try:
                value = fastjson.loads(data, is_forgiving=True)
            except ValueError as error:
                fault = f"{path} is not JSON: {error}"
                _LOG.warning("config file not readable path=%s error=%s", path, error)
                self._note_fault(path, "is not JSON")
                continue
            if isinstance(value, dict):
                self._digest = digest_of(data)
                self._note_source(path)
                return value
            fault = f"{path} does not contain a JSON object"
            self._note_fault(path, "does not contain a JSON object")
            _LOG.warning("config file not readable path=%s error=%s", path, "no JSON object")
        if fault is not None:
            raise ConfigFileError(f"{fault}; repair or remove it and its backup")
        return None

    def _note_fault(self, path: str, fault: str) -> None:
        if path == self.path:
            self.fault = fault

    def _note_source(self, path: str) -> None:
        if path == self.path:
            self.source, self.fault = Source.FILE, ""
        else:
            self.source = Source.BACKUP

    @property
    def digest(self) -> str:
        """Of what was written or loaded last; empty before that."""
        return self._digest.hex()

    def _candidates(self) -> list[tuple[str, bytes]]:
        """The file and its backup; one that has decayed comes behind the other."""
        paths = [path for path in (self.path, self.path + ".bak") if self._disk.exists(path)]
        found = [(path, self._disk.read_bytes(path)) for path in paths]
        decayed = [self._is_decayed(path, data) for path, data in found]
        for (path, _), is_decayed in zip(found, decayed, strict=True):
            if is_decayed:
                _LOG.error("config file does not match what was written path=%s", path)
                self._note_fault(path, "is not what was written to it")
        return [found[n] for n in sorted(range(len(found)), key=lambda n: decayed[n])]

    def is_intact(self) -> bool:
        """Whether the file holds what was written to it, or loaded from it, last."""
        if not self._digest:
            return True
        return self._disk.exists(self.path) and (
            digest_of(self._disk.read_bytes(self.path)) == self._digest
        )

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
        data = b"".join(parts)
        write_atomically(self._disk, self.path, data, keep_backup=True)
        self._digest = digest_of(data)
