"""Changing a name server's configuration while it runs: answers to UPDATE_NAMESRV_CONFIG.

Apache takes any key that is not on a black list, most of them without effect until a restart.
Here the declaration of a key says whether it may be changed; if so, it takes effect at once.
"""

from __future__ import annotations

from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.errors import CommandError
from twinlog.runtime.config import ConfigError, NamesrvConfig, update_config
from twinlog.runtime.config_format import parse_update
from twinlog.runtime.config_key import fixed_reason, live_keys
from twinlog.runtime.disk import Disk, write_with_directory
from twinlog.runtime.saving import TableSaver

FORBIDDEN = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class ConfigUpdater:
    """Checks, applies and stores changes: all of a request's keys or none."""

    def __init__(self, config: NamesrvConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self.saver = TableSaver("configuration", self._write)

    def update(self, body: bytes) -> list[str]:
        """Apply `key=value` lines; return the attributes that changed. `saver` stores them.

        Raises:
            CommandError: 16 for a key that may not be changed, 1 for a value that cannot be.
        """
        try:
            changes = parse_update(body)
        except ValueError as error:
            raise CommandError(f"string2Properties error: {error}") from error
        black_list = FORBIDDEN | set(self._config.config_black_list.split(";"))
        if not black_list.isdisjoint(changes):
            raise CommandError("Can not update config path", ResponseCode.NO_PERMISSION)
        fixed = sorted(set(changes) - live_keys(NamesrvConfig))
        if fixed:
            remark = "; ".join(fixed_reason(NamesrvConfig, "name server", key) for key in fixed)
            raise CommandError(remark, ResponseCode.NO_PERMISSION)
        try:
            changed = update_config(self._config, changes)
        except ConfigError as error:
            raise CommandError(str(error)) from error
        if changed:
            self.saver.changed()
        return changed

    async def _write(self) -> None:
        path, text = self._config.config_store_path, self._config.to_properties()
        await self._disk.run(write_with_directory, self._disk, path, text.encode("utf-8"))
