"""Configuration from Apache's properties files: typed, checked, nothing silently ignored.

Corresponds to MixAll.properties2Object and BrokerStartup's parsing. Apache ignores a value that
does not parse; here it ends the start with one line that names file, key and value. An unknown key
is a warning with the nearest known name; what a known key does is said by its declaration.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from twinlog.runtime.broker_config import BrokerConfig, BrokerRole, FlushDiskType, HADialect, Reseed
from twinlog.runtime.config_format import (
    ConfigValueError,
    Entry,
    parse_delay_levels,
    parse_properties,
)
from twinlog.runtime.config_key import (
    Declaration,
    Effect,
    Finding,
    Origin,
    declarations,
    spellings,
    undone,
)
from twinlog.runtime.controller_config import ControllerConfig
from twinlog.runtime.namesrv_config import NamesrvConfig
from twinlog.runtime.small_file import read_small_file
from twinlog.runtime.tls import TlsConfig, is_tls_key, read_tls

__all__ = [
    "BrokerConfig",
    "BrokerRole",
    "ConfigError",
    "ControllerConfig",
    "FlushDiskType",
    "HADialect",
    "LoadedConfig",
    "NamesrvConfig",
    "Reseed",
    "TlsConfig",
    "load_broker_config",
    "load_controller_config",
    "load_namesrv_config",
    "parse_delay_levels",
    "update_config",
]

AnyConfig: TypeAlias = BrokerConfig | NamesrvConfig | ControllerConfig
Config = TypeVar("Config", BrokerConfig, NamesrvConfig, ControllerConfig)
# Read by Apache's start scripts or logging, not by the broker.
_FOREIGN = frozenset({"rmqAddressServerDomain", "rmqAddressServerSubGroup", "brokerConfigPath"})
_COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where, which key and value, and why."""

    source: str
    key: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f"={self.value}"
        key = f"{self.key}{shown}: " if self.key else ""
        return f"{self.source}: {key}{self.reason}"


class ConfigError(Exception):
    """A configuration that cannot be used: one line with file, key and value of the first fault.

    `faults` has all of them, `warnings` what else was found before it was given up.
    """

    def __init__(self, faults: list[Fault], warnings: Iterable[str] = ()) -> None:
        more = f" (and {len(faults) - 1} more, see twinlog config lint)" if faults[1:] else ""
        super().__init__(f"{faults[0]}{more}")
        self.faults = faults
        self.warnings = list(warnings)


@dataclass(frozen=True, slots=True)
class LoadedConfig(Generic[Config]):
    """A configuration, and what its owner should know about how it was read."""

    config: Config
    warnings: list[str]
    without_effect: list[Declaration]  # Keys that were given and have no effect here.
    given: frozenset[str]  # Attribute names that the file or the command line set.


def load_broker_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[BrokerConfig]:
    """The broker's configuration: defaults, then the file, then `overrides` (keys as in a file)."""
    variables = os.environ if environment is None else environment
    loaded = _load(BrokerConfig, path, overrides or {}, variables)
    config = loaded.config
    if config.namesrv_addr is None and variables.get("NAMESRV_ADDR"):
        config.namesrv_addr = variables["NAMESRV_ADDR"]
        config.origins["namesrvAddr"] = Origin.ENVIRONMENT
    if loaded.config.enable_controller_mode:
        _settle_group(loaded, path)
    return loaded


def _settle_group(loaded: LoadedConfig[BrokerConfig], path: str | None) -> None:
    """What a controlled group takes from keys that were not given, or given for nothing."""
    config = loaded.config
    if "broker_role" not in loaded.given:
        config.broker_role = BrokerRole.SYNC_MASTER
    if "all_ack_in_sync_state_set" in loaded.given and not config.all_ack_in_sync_state_set:
        reason = "with fewer acknowledgements an elected replica may lack what was acknowledged"
        fault = Fault(path or _COMMAND_LINE, "allAckInSyncStateSet", "false", reason)
        raise ConfigError([fault], loaded.warnings)


def load_namesrv_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[NamesrvConfig]:
    """The name server's configuration, by the same rules."""
    variables = os.environ if environment is None else environment
    return _load(NamesrvConfig, path, overrides or {}, variables)


def load_controller_config(
    path: str | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig[ControllerConfig]:
    """The controller's configuration, by the same rules."""
    variables = os.environ if environment is None else environment
    return _load(ControllerConfig, path, overrides or {}, variables)


def _load(
    struct: type[Config],
    path: str | None,
    overrides: Mapping[str, str],
    environment: Mapping[str, str],
) -> LoadedConfig[Config]:
    reader = _Reader(struct)
    if environment.get("ROCKETMQ_HOME"):
        reader.values["rocketmq_home"] = environment["ROCKETMQ_HOME"]
        reader.origins["rocketmqHome"] = Origin.ENVIRONMENT
    if path is not None:
        reader.read(path, _read_entries(path))
    reader.read(_COMMAND_LINE, (Entry(0, key, value) for key, value in overrides.items()))
    config = struct(**reader.values, tls=reader.tls_config(path), origins=reader.origins)
    for finding in _findings(config):
        reader.add(finding, path or _COMMAND_LINE)
    if reader.faults:
        raise ConfigError(reader.faults, reader.warnings)
    given = frozenset(reader.given)
    idle = [
        declared
        for name, declared in declarations(struct).items()
        if name in given and declared.says.effect is Effect.NO_EFFECT
    ]
    return LoadedConfig(config, reader.warnings, idle, given)


def _findings(config: AnyConfig) -> list[Finding]:
    return [*undone(config), *config.check()]


def _read_entries(path: str) -> list[Entry]:
    try:
        return list(parse_properties(read_small_file(path)))
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise ConfigError([Fault(path, "", None, reason)]) from error
    except ValueError as error:
        reason = f"is not a properties file: {error}"
        raise ConfigError([Fault(path, "", None, reason)]) from error


class _Reader:
    """Collects the values of all sources, of which the last one wins, and all that is wrong."""

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        self._known = spellings(struct)
        self.values: dict[str, Any] = {}
        self.given: set[str] = set()
        self.origins: dict[str, str] = {}
        self.warnings: list[str] = []
        self.faults: list[Fault] = []
        self._texts: dict[str, str] = {}
        self._sources: dict[str, str] = {}
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
        declared = self._known.get(entry.key)
        key = entry.key if declared is None else declared.key
        self._texts[key] = entry.value
        self._sources[key] = where
        if is_tls_key(entry.key):
            self._tls[entry.key] = entry.value
        elif declared is None:
            if entry.key not in _FOREIGN:
                self.warnings.append(self._unknown(where, entry.key))
        elif entry.value == "" and type(declared.default) is not str:
            self.warnings.append(f"{where}: {entry.key}: empty, the default is used")
        else:
            self._convert(declared, where, entry)

    def _convert(self, declared: Declaration, where: str, entry: Entry) -> None:
        try:
            self.values[declared.name] = declared.convert(entry.value)
            self.given.add(declared.name)
            is_typed = where == _COMMAND_LINE
            self.origins[declared.key] = Origin.COMMAND_LINE if is_typed else Origin.FILE
        except ConfigValueError as error:
            self.faults.append(Fault(where, entry.key, entry.value, error.reason))

    def _unknown(self, where: str, key: str) -> str:
        near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{where}: {key}: unknown key, ignored{hint}"

    def tls_config(self, path: str | None) -> TlsConfig:
        config, faults = read_tls(self._tls)
        for fault in faults:
            self.add(Finding(fault.key, fault.reason), path or _COMMAND_LINE)
        return config

    def add(self, finding: Finding, elsewhere: str) -> None:
        """Take a finding with the place that its key stands in, unless another caused it."""
        wrong = {self._canonical(fault.key) for fault in self.faults}
        if not wrong.isdisjoint((finding.key, *finding.about)):
            return
        if not finding.is_fault:
            self.warnings.append(f"{finding.key}: {finding.text}")
            return
        source = self._sources.get(finding.key, elsewhere)
        value = self._texts.get(finding.key)
        self.faults.append(Fault(source, finding.key, value, finding.text))

    def _canonical(self, key: str) -> str:
        declared = self._known.get(key)
        return key if declared is None else declared.key


def update_config(config: AnyConfig, changes: Mapping[str, str]) -> list[str]:
    """Apply `changes` (keys as in a file) while running: all of them, or none and ConfigError.

    Returns the attribute names that changed. Unknown keys are refused: mqadmin's user wants to
    know. Which keys may be changed without a restart is the caller's to check.
    """
    known = spellings(type(config))
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for key, text in changes.items():
        try:
            if key not in known:
                raise ConfigValueError(key, "unknown key")
            values[known[key].name] = known[key].convert(text)
        except ConfigValueError as error:
            faults.append(Fault("update", key, text, error.reason))
    if not faults:
        candidate = msgspec.structs.replace(config, **values)
        faults = [
            Fault("update", finding.key, changes.get(finding.key), finding.text)
            for finding in _findings(candidate)
            if finding.is_fault
        ]
    if faults:
        raise ConfigError(faults)
    changed = [name for name, value in values.items() if getattr(config, name) != value]
    keys = declarations(type(config))
    for name in changed:
        setattr(config, name, values[name])
        config.origins[keys[name].key] = Origin.RUN_TIME
    return changed
