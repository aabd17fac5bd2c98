"""Configuration from Apache's properties files: typed, checked, nothing silently ignored.

Answers to MixAll.properties2Object and BrokerStartup's parsing. Apache ignores a value that does
not parse; here it ends the start with one line that names file, key and value. An unknown key is
a warning with the nearest known name; a key of the JVM or of thread pools is accepted and listed
once as not applicable.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from twinlog.runtime.broker_config import (
    NOT_APPLICABLE,
    BrokerConfig,
    BrokerRole,
    FlushDiskType,
    HADialect,
    Reseed,
)
from twinlog.runtime.config_format import (
    ConfigValueError,
    Entry,
    key_of,
    parse_delay_levels,
    parse_properties,
    trailing_comment,
)
from twinlog.runtime.controller_config import CONTROLLER_NOT_APPLICABLE, ControllerConfig
from twinlog.runtime.namesrv_config import NAMESRV_NOT_APPLICABLE, NamesrvConfig
from twinlog.runtime.tls import TlsConfig, is_tls_key, tls_with

__all__ = [
    "BrokerConfig",
    "BrokerRole",
    "ConfigError",
    "FlushDiskType",
    "HADialect",
    "LoadedConfig",
    "NamesrvConfig",
    "Reseed",
    "TlsConfig",
    "broker_attribute",
    "load_broker_config",
    "load_namesrv_config",
    "namesrv_attribute",
    "parse_delay_levels",
    "update_config",
]

Config = TypeVar("Config", BrokerConfig, NamesrvConfig, ControllerConfig)
_ALIASES = {
    "enableBatchPush": "isEnableBatchPush",  # The name that Apache's setter answers to.
    "haMaxGapNotInSync": "haSlaveFallbehindMax",  # 5.x renamed it.
}
# Read by Apache's start scripts or logging, not by the broker.
_FOREIGN = frozenset({"rmqAddressServerDomain", "rmqAddressServerSubGroup", "brokerConfigPath"})
_COMMAND_LINE = "command line"


class ConfigError(Exception):
    """A configuration that cannot be used: one line with file, key and value."""

    def __init__(self, source: str, key: str, value: str | None, reason: str) -> None:
        shown = "" if value is None else f"={value}"
        super().__init__(f"{source}: {key}{shown}: {reason}" if key else f"{source}: {reason}")
        self.source = source
        self.key = key
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LoadedConfig(Generic[Config]):
    """A configuration, and what its owner should know about how it was read."""

    config: Config
    warnings: list[str]
    not_applicable: list[str]  # Keys that were given and have no effect here.
    given: frozenset[str]  # Attribute names that the file or the command line set.


class _Schema:
    """Which keys a struct has and what their values are."""

    def __init__(
        self, struct: type[BrokerConfig] | type[NamesrvConfig] | type[ControllerConfig]
    ) -> None:
        hints = get_type_hints(struct, include_extras=True)
        names = [name for name in struct.__struct_fields__ if name != "tls"]
        self.types = {key_of(name): hints[name] for name in names}
        self.names = {key_of(name): name for name in names}

    def known(self, key: str) -> str | None:
        """The spelling of `key` that the schema has; both of mapped and maped are accepted."""
        for spelling in (
            key,
            _ALIASES.get(key, key),
            key.replace("aped", "apped"),
            key.replace("apped", "aped"),
        ):
            if spelling in self.types:
                return spelling
        return None

    def convert(self, key: str, text: str) -> Any:
        """`text` as the type of `key`. Raises ConfigValueError."""
        comment = trailing_comment(text)
        if comment is not None:
            raise ConfigValueError(
                key, f"{comment!r} is not a comment here; put it on a line of its own"
            )
        kind = self.types[key]
        if kind in (str, str | None):
            return text
        try:
            return msgspec.convert(text.strip(), kind, strict=False)
        except msgspec.ValidationError as error:
            reason = str(error).replace("`", "").replace("Expected str", "Expected text")
            raise ConfigValueError(key, reason[:1].lower() + reason[1:]) from error


_BROKER = _Schema(BrokerConfig)
_NAMESRV = _Schema(NamesrvConfig)
_CONTROLLER = _Schema(ControllerConfig)
_ABSENT: dict[type, frozenset[str]] = {
    BrokerConfig: NOT_APPLICABLE,
    NamesrvConfig: NAMESRV_NOT_APPLICABLE,
    ControllerConfig: CONTROLLER_NOT_APPLICABLE,
}


def load_broker_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[BrokerConfig]:
    """The broker's configuration: defaults, then the file, then `overrides` (keys as in a file)."""
    variables = os.environ if environment is None else environment
    loaded = _load(BrokerConfig, _BROKER, path, overrides or {}, variables)
    if loaded.config.namesrv_addr is None:
        loaded.config.namesrv_addr = variables.get("NAMESRV_ADDR") or None
    return loaded


def load_namesrv_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[NamesrvConfig]:
    """The name server's configuration, by the same rules."""
    variables = os.environ if environment is None else environment
    return _load(NamesrvConfig, _NAMESRV, path, overrides or {}, variables)


def load_controller_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[ControllerConfig]:
    """The controller's configuration, by the same rules."""
    variables = os.environ if environment is None else environment
    return _load(ControllerConfig, _CONTROLLER, path, overrides or {}, variables)


def _load(
    struct: type[Config],
    schema: _Schema,
    path: str | None,
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
) -> LoadedConfig[Config]:
    reader = _Reader(schema)
    if environment.get("ROCKETMQ_HOME"):
        reader.values["rocketmq_home"] = environment["ROCKETMQ_HOME"]
    if path is not None:
        reader.read(path, _read_entries(path))
    reader.read(_COMMAND_LINE, (Entry(0, key, value) for key, value in overrides.items()))
    try:
        config = struct(**reader.values, tls=reader.tls_config())
        warnings = reader.warnings + config.check()
    except ConfigValueError as error:
        source = reader.sources.get(error.key, path or _COMMAND_LINE)
        raise ConfigError(source, error.key, reader.texts.get(error.key), error.reason) from error
    given = frozenset(reader.given)
    not_applicable = sorted(key_of(name) for name in given & _ABSENT[struct])
    return LoadedConfig(config, warnings, not_applicable, given)


def _read_entries(path: str) -> list[Entry]:
    try:
        with open(path, "rb") as file:
            return list(parse_properties(file.read()))
    except OSError as error:
        raise ConfigError(path, "", None, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(path, "", None, f"is no properties file: {error}") from error


class _Reader:
    """Collects the values of all sources; the last one wins."""

    def __init__(self, schema: _Schema) -> None:
        self._schema = schema
        self.values: dict[str, Any] = {}
        self.given: set[str] = set()
        self.texts: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.warnings: list[str] = []
        self._tls: dict[str, str] = {}

    def read(self, source: str, entries: Iterable[Entry]) -> None:
        lines: dict[str, int] = {}
        for entry in entries:
            where = f"{source}:{entry.line}" if entry.line else source
            if entry.key in lines:
                self.warnings.append(
                    f"{where}: {entry.key}: given again, line {lines[entry.key]} has no effect"
                )
            lines[entry.key] = entry.line
            self._take(where, entry)

    def _take(self, where: str, entry: Entry) -> None:
        key = self._schema.known(entry.key)
        self.texts[entry.key] = self.texts[key or entry.key] = entry.value
        self.sources[entry.key] = self.sources[key or entry.key] = where
        if is_tls_key(entry.key):
            self._tls[entry.key] = entry.value
        elif key is None:
            if entry.key not in _FOREIGN:
                self.warnings.append(self._unknown(where, entry.key))
        elif entry.value == "" and self._schema.types[key] is not str:
            self.warnings.append(f"{where}: {entry.key}: empty, the default is used")
        else:
            try:
                value = self._schema.convert(key, entry.value)
            except ConfigValueError as error:
                raise ConfigError(where, entry.key, entry.value, error.reason) from error
            self.values[self._schema.names[key]] = value
            self.given.add(self._schema.names[key])

    def _unknown(self, where: str, key: str) -> str:
        near = difflib.get_close_matches(key, self._schema.types, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{where}: {key}: unknown key, ignored{hint}"

    def tls_config(self) -> TlsConfig:
        return tls_with(self._tls)


def broker_attribute(key: str) -> str | None:
    """The attribute of BrokerConfig that a key of the file sets; None when there is none."""
    known = _BROKER.known(key)
    return None if known is None else _BROKER.names[known]


def namesrv_attribute(key: str) -> str | None:
    """The same of NamesrvConfig."""
    known = _NAMESRV.known(key)
    return None if known is None else _NAMESRV.names[known]


def update_config(config: BrokerConfig | NamesrvConfig, changes: Mapping[str, str]) -> list[str]:
    """Apply `changes` (keys as in a file) while running: all of them, or none and ConfigError.

    Returns the attribute names that changed. Unknown keys are refused: mqadmin's user wants to
    know. What takes effect without a restart is the owner's business.
    """
    schema = _BROKER if isinstance(config, BrokerConfig) else _NAMESRV
    values: dict[str, Any] = {}
    for given, text in changes.items():
        key = schema.known(given)
        try:
            if key is None:
                raise ConfigValueError(given, "unknown key")
            values[schema.names[key]] = schema.convert(key, text)
        except ConfigValueError as error:
            raise ConfigError("update", given, text, error.reason) from error
    changed = [name for name, value in values.items() if getattr(config, name) != value]
    candidate = msgspec.structs.replace(config, **values)
    try:
        candidate.check()
    except ConfigValueError as error:
        raise ConfigError("update", error.key, changes.get(error.key), error.reason) from error
    for name in changed:
        setattr(config, name, values[name])
    return changed
