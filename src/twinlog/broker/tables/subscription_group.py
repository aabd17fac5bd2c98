"""Consumer groups and what they may do (RocketMQ's SubscriptionGroupManager).

Owns `config/subscriptionGroup.json`, saved at every change; who answers waits for it (`saver`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from twinlog.broker.names import spoils_path
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message import names
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import DataVersion, version_of
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig, group_from_json
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.saving import TableSaver, TableText

_LOG = logging.getLogger("twinlog.broker")


class SubscriptionGroupManager:
    """The group table."""

    def __init__(self, config: BrokerConfig, file: ConfigFile, clock: Clock) -> None:
        self._config = config
        self.file = file
        self._clock = clock
        # Called before a group is made that was not there; may raise that it must not be.
        self.before_creation: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self.saver = TableSaver("groups", self._write)
        self._texts = TableText(_pretty_text)
        self.data_version = DataVersion(timestamp=clock.now_ms())
        self.table = {name: SubscriptionGroupConfig(name) for name in names.BOOT_GROUPS}

    def load(self) -> None:
        data = self.file.load()
        if data is None:
            return
        self.data_version = version_of(data.get("dataVersion"), self.data_version)
        for name, value in (data.get("subscriptionGroupTable") or {}).items():
            self.table[name] = group_from_json({**value, "groupName": name})

    async def _write(self) -> None:
        members = await self._texts.pieces(lambda: self.table)
        await self.file.save_table(self.data_version.to_json(), "subscriptionGroupTable", members)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's config, created with defaults when that is allowed; None when not."""
        config = self.table.get(group)
        if config is None and group and self._may_create(group):
            config = SubscriptionGroupConfig(group)
            _LOG.info("group created group=%s", group)
            self.update(config)
        return config

    def update(self, config: SubscriptionGroupConfig) -> None:
        name = config.group_name
        created = () if name in self.table else (name,)
        if created:
            self.before_creation()
        self.table[name] = config
        self._changed((name,), created)

    def delete(self, group: str) -> bool:
        if self.table.pop(group, None) is None:
            return False
        _LOG.info("group deleted group=%s", group)
        self._changed((group,))
        return True

    def replace(self, table: Mapping[str, SubscriptionGroupConfig], version: Any) -> None:
        """Take over a master's table and its version (a slave does)."""
        self.table = dict(table)
        self._texts.clear()
        self.data_version = version_of(version, self.data_version)
        self.saver.changed()

    def _may_create(self, group: str) -> bool:
        # Its retry topic becomes a directory: a name must not lead out of the store.
        return not spoils_path(group) and (
            self._config.auto_create_subscription_group
            or group.startswith(names.SYSTEM_GROUP_PREFIX)
        )

    def subscribe(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call `listener` with the names that changed, after each change."""
        self._listeners.append(listener)

    def _changed(self, names: Collection[str], created: Iterable[str] = ()) -> None:
        self._texts.forget(names)
        self.data_version = self.data_version.following(self._clock.now_ms())
        self.saver.changed(created)
        for listener in self._listeners:
            listener(names)


def _pretty_text(group: SubscriptionGroupConfig) -> str:
    """The member of the table in the file."""
    return fastjson.dumps_pretty({group.group_name: group}, level=1)[1:-3].decode()
