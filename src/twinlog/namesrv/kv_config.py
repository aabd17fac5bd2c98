"""KV configuration of a name server, kept in `kvConfig.json`: answers to KVConfigManager.

The file is written whole after changes, before they are answered (`saver`): temporary file, sync,
rename, the old content as `.bak`. A file that cannot be read stops the start; it is never
overwritten unread.
"""

from __future__ import annotations

import msgspec

from twinlog.remoting import fastjson
from twinlog.runtime.disk import Disk, write_with_directory
from twinlog.runtime.saving import TableSaver

NAMESPACE_ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX = 100_000


class KVConfigError(Exception):
    """The file is there and cannot be read, or the table is full."""


class _KVConfigFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)


class KVConfigManager:
    """Namespaces of keys and values."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._table: dict[str, dict[str, str]] = {}
        self.saver = TableSaver("kvConfig", self._write)

    def load(self) -> None:
        """Read the file if there is one.

        Raises:
            KVConfigError: it cannot be parsed.
        """
        if not self._disk.exists(self._path):
            return
        data = self._disk.read_bytes(self._path)
        if not data.strip():
            return
        try:
            self._table = fastjson.loads_as(data, _KVConfigFile, is_forgiving=True).config_table
        except ValueError as error:
            raise KVConfigError(f"{self._path} cannot be read: {error}") from error

    def put(self, namespace: str, key: str, value: str) -> None:
        entries = sum(map(len, self._table.values()))
        if entries >= ENTRIES_MAX and key not in self._table.get(namespace, {}):
            raise KVConfigError(f"{ENTRIES_MAX} KV entries are stored: delete some first")
        self._table.setdefault(namespace, {})[key] = value
        self.saver.changed()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key; its namespace stays, as in RocketMQ. Unknown ones are no error."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.saver.changed()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All keys of a namespace; None when it was never used."""
        return self._table.get(namespace)

    async def _write(self) -> None:
        data = fastjson.dumps(_KVConfigFile(self._table))
        await self._disk.run(write_with_directory, self._disk, self._path, data, True)
