"""The broker's configuration and housekeeping: 25, 26, 306, 316, 329.

Only keys that are declared as live change while running, and take effect at once. The others are
refused with 16: a silent "ok" for a key that does nothing until the next start would mislead.
"""

from __future__ import annotations

import logging
import threading
from difflib import get_close_matches
from typing import TYPE_CHECKING

from twinlog.broker.errors import BrokerError
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import GetBrokerConfigRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config import BrokerConfig, ConfigError, update_config
from twinlog.runtime.config_format import holds_secrets, parse_update
from twinlog.runtime.config_key import fixed_reason, live_keys, spellings
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.saving import TableSaver

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")
_REASONS_MAX = 16  # The search for a similar key takes a millisecond each.
_NEAR_LENGTH_MAX = 100  # And longer for a longer key.
_writing = threading.Lock()  # A file is read, changed and written again by one at a time.


class AdminConfigProcessor:
    """Handlers of the codes above."""

    def __init__(self, broker: Broker, *, config_path: str | None) -> None:
        self._config = broker.config
        self._role = broker.role
        self._store = broker.store
        self._topics = broker.topics
        self._clock = broker.clock
        self._disk = broker.disk
        self._tasks = broker.tasks
        self._config_path = config_path
        self._changed = broker.config_changed
        self._unwritten: dict[str, str] = {}
        self._saver = TableSaver("configuration", self._write)
        self.data_version = DataVersion(timestamp=broker.clock.now_ms())

    def update(self, connection: ServerConnection, request: Request) -> None:
        """UPDATE_BROKER_CONFIG (25): all of the lines or none."""
        try:
            entries = parse_update(request.body)
        except ValueError as error:
            remark = f"string2Properties error: {error}"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark) from None
        live = live_keys(BrokerConfig)
        refused = sorted(set(entries) - live)
        black = {k for k in self._config.config_black_list.split(";") if k}
        refused += sorted(set(entries) & live & black)
        if refused:
            reasons = "; ".join(refusal(key) for key in refused[:_REASONS_MAX])
            if len(refused) > _REASONS_MAX:
                reasons += f"; and {len(refused) - _REASONS_MAX} more"
            remark = f"Can not update config in black list. Nothing is changed: {reasons}"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)
        self._check_role(entries.get("brokerRole"))
        try:
            names = update_config(self._config, entries)
        except ConfigError as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        self.data_version = self.data_version.following(self._clock.now_ms())
        for key, value in entries.items():
            _LOG.info("config changed key=%s value=%s peer=%s", key, value, connection.remote_text)
        self._changed(names)
        if self._config_path is None:
            connection.reply(request)
            return
        self._unwritten.update(entries)
        self._saver.touched()
        saving = self._answer_when_saved(connection, request)
        self._tasks.job("save-config", saving, failed=connection.refuse(request))

    async def _answer_when_saved(self, connection: ServerConnection, request: Request) -> None:
        """Many changes share a write: on the loop a thousand of them would stop everyone."""
        reason = await self._saver.save()
        if reason:
            remark = (
                "the change is in effect, but holds only until the next start, as it cannot "
                f"be saved in {self._config_path}: {reason}"
            )
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
        else:
            connection.reply(request)

    async def _write(self) -> None:
        """Put the changes into the file that the broker was started with."""
        assert self._config_path is not None
        entries, self._unwritten = self._unwritten, {}
        try:
            await self._disk.run(write_values, self._disk, self._config_path, entries)
        except (OSError, ValueError):
            self._unwritten = {**entries, **self._unwritten}  # The next change tries them again.
            raise

    def _check_role(self, role: str | None) -> None:
        """SYNC and ASYNC may be exchanged; master and slave are not a matter of a key."""
        if role is not None and (role == "SLAVE" or not self._role.is_master):
            remark = "brokerRole: only ASYNC_MASTER and SYNC_MASTER may be exchanged"
            raise BrokerError(ResponseCode.NO_PERMISSION, remark)

    def get(self, connection: ServerConnection, request: Request) -> None:
        """GET_BROKER_CONFIG (26)."""
        header = {"version": fastjson.dumps(self.data_version.to_json()).decode()}
        if request.header(GetBrokerConfigRequestHeader).twinlog_origins:
            origins = {key: str(origin) for key, origin in self._config.origins.items()}
            header["twinlogOrigins"] = fastjson.dumps(origins).decode()
        connection.reply(request, header=header, body=self._config.to_properties().encode())

    def clean_expired_queues(self, connection: ServerConnection, request: Request) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306)."""
        self._store.clean_expired_consume_queues()
        connection.reply(request)

    def clean_unused_topics(self, connection: ServerConnection, request: Request) -> None:
        """CLEAN_UNUSED_TOPIC (316)."""
        self._store.clean_unused_topics(set(self._topics.table))
        connection.reply(request)

    def delete_expired_log(self, connection: ServerConnection, request: Request) -> None:
        """DELETE_EXPIRED_COMMITLOG (329)."""
        self._store.cleaner.execute_delete_files_manually()
        connection.reply(request)


def refusal(key: str) -> str:
    """Why a key cannot be changed while the broker runs."""
    live = live_keys(BrokerConfig)
    if key in live:
        return f"{key} is in configBlackList"
    reason = fixed_reason(BrokerConfig, "broker", key)
    is_misspelt = key not in spellings(BrokerConfig) and len(key) <= _NEAR_LENGTH_MAX
    near = get_close_matches(key, live, n=1) if is_misspelt else []
    return f"{reason}, did you mean {near[0]}?" if near else reason


def write_values(disk: Disk, path: str, entries: dict[str, str]) -> None:
    """Set these keys in a configuration file. Raises OSError, UnicodeDecodeError."""
    with _writing:
        text = disk.read_bytes(path).decode("utf-8")
        data = with_values(text, entries).encode("utf-8")
        write_atomically(disk, path, data, keep_backup=True, is_secret=holds_secrets(text))


def with_values(text: str, entries: dict[str, str]) -> str:
    """A properties text with these values: lines of known keys changed, new keys at the end."""
    left = dict(entries)
    lines = []
    for line in text.splitlines():
        key = line.partition("=")[0].strip()
        if key in entries:
            if key in left:
                lines.append(f"{key}={left.pop(key)}")
            continue
        lines.append(line)
    lines += [f"{key}={value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"
