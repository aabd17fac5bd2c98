"""Changing a name server's configuration while it runs: answers to UPDATE_NAMESRV_CONFIG.

Apache takes any key that is not on a black list, most of them without effect until a restart.
Here the declaration of a key says whether it may be changed; if so, it takes effect at once.
"""

from __future__ import annotations

import logging

from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.errors import CommandError
from twinlog.runtime.config import ConfigError, NamesrvConfig, update_config
from twinlog.runtime.config_format import parse_properties
from twinlog.runtime.config_key import fixed_reason, live_keys
from twinlog.runtime.disk import Disk, write_atomically

_LOG = logging.getLogger("twinlog.namesrv")
FORBIDDEN = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class ConfigUpdater:
    """Checks, applies and stores changes: all of a request's keys or none."""

    def __init__(self, config: NamesrvConfig, disk: Disk) -> None:
        self._config = config
        self._disk = disk

    def update(self, body: bytes) -> list[str]:
        """Apply `key=value` lines; return the attributes that changed.

        Raises:
            CommandError: 16 for a key that may not be changed, 1 for a value that cannot be.
        """
        try:
            changes = {entry.key: entry.value for entry in parse_properties(body)}
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
            self._store()
        return changed

    def _store(self) -> None:
        path = self._config.config_store_path
        directory = path.rpartition("/")[0]
        try:
            if directory:
                self._disk.make_directories(directory)
            write_atomically(self._disk, path, self._config.to_properties().encode("utf-8"))
        except OSError as error:
            # The change holds; only a restart would forget it.
            _LOG.warning("configuration not stored path=%s reason=%s", path, error)
            raise CommandError(f"changed, but {path} cannot be written: {error}") from error
