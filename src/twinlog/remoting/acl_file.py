"""`conf/plain_acl.yml` and `conf/acl/*.yml`: read at start, watched, changed by admin requests.

A damaged file refuses the start. A damaged reload keeps the rules that were there and says so: an
editor that saves half a file must not open or close a server.
"""

from __future__ import annotations

import logging
import posixpath
from typing import Any

from twinlog.remoting.acl import AclConfigError, AclRules, merge_rules, parse_rules
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.numbers import number_of

_LOG = logging.getLogger("twinlog.acl")


class AclFiles:
    """The rule files of one server and the rules that hold now."""

    def __init__(self, disk: Disk, main_path: str, extra_directory: str) -> None:
        self._disk = disk
        self.main_path = main_path
        self._extra_directory = extra_directory
        self._seen: dict[str, tuple[int, int]] = {}
        self.rules = AclRules()
        self.last_problem: str | None = None

    def load(self) -> None:
        """Read everything. Raises AclConfigError when a file is missing or damaged."""
        paths = self._paths()
        if not paths:
            raise AclConfigError(
                f"aclEnable=true needs {self.main_path}; create it with at least one account"
            )
        self.rules = merge_rules(parse_rules(self._read(path), source=path) for path in paths)
        for path in paths:
            if self._disk.mode(path) & 0o077:
                _LOG.warning("acl file with secrets is open to others: chmod 600 path=%s", path)
        self._seen = self._stamps(paths)

    def reload_if_changed(self) -> bool:
        """Called by a timer. True when new rules hold from now on."""
        try:
            stamps = self._stamps(self._paths())
            if stamps == self._seen:
                return False
            self._seen = stamps
            self.load()
        except (AclConfigError, OSError) as error:
            self.last_problem = str(error)
            _LOG.error("acl reload refused, the old rules stay reason=%s", error)
            return False
        self.last_problem = None
        _LOG.info("acl reloaded accounts=%d", len(self.rules.accounts))
        return True

    def _paths(self) -> list[str]:
        main = [self.main_path] if self._disk.exists(self.main_path) else []
        extra = [
            f"{self._extra_directory}/{name}"
            for name in self._disk.list(self._extra_directory)
            if name.endswith((".yml", ".yaml"))
        ]
        return main + extra

    def _stamps(self, paths: list[str]) -> dict[str, tuple[int, int]]:
        return {path: (self._disk.modified_ms(path), self._disk.file_size(path)) for path in paths}

    def _read(self, path: str) -> Any:
        import yaml  # Where there is no file, nobody waits for it to load.

        try:
            # libyaml's, where it is there: the other takes ten times as long, and on the loop.
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            return yaml.load(self._disk.read_bytes(path), loader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark is not None else ""
            raise AclConfigError(f"{path}: not valid YAML{where}") from error

    # ---- changes by admin requests: the main file is rewritten, then loaded

    def update_account(self, account: dict[str, Any], now_ms: int) -> None:
        data = self._main_data()
        accounts = [
            entry for entry in data.get("accounts") or []
            if entry.get("accessKey") != account.get("accessKey")
        ]  # fmt: skip
        old = [e for e in data.get("accounts") or [] if e not in accounts]
        data["accounts"] = [*accounts, {**(old[0] if old else {}), **account}]
        self._save(data, now_ms)

    def delete_account(self, access_key: str, now_ms: int) -> bool:
        data = self._main_data()
        before = data.get("accounts") or []
        after = [entry for entry in before if entry.get("accessKey") != access_key]
        if len(after) == len(before):
            return False
        data["accounts"] = after
        self._save(data, now_ms)
        return True

    def update_global_white(self, addresses: list[str], now_ms: int) -> None:
        data = self._main_data()
        data["globalWhiteRemoteAddresses"] = addresses
        self._save(data, now_ms)

    def listing(self) -> tuple[list[str], list[dict[str, Any]]]:
        """White addresses and accounts of all files as they are written, secrets and all."""
        data = [self._read(path) or {} for path in self._paths()]
        white = [str(a) for part in data for a in part.get("globalWhiteRemoteAddresses") or ()]
        accounts: dict[str, dict[str, Any]] = {}
        for part in data:
            for entry in part.get("accounts") or ():
                accounts.setdefault(str(entry.get("accessKey")), entry)
        return white, list(accounts.values())

    def data_version(self) -> dict[str, int]:
        versions = self._main_data().get("dataVersion") or [{"counter": 0, "timestamp": 0}]
        return {name: number_of(versions[0][name]) for name in ("counter", "timestamp")}

    def _main_data(self) -> dict[str, Any]:
        data = self._read(self.main_path) if self._disk.exists(self.main_path) else {}
        return dict(data or {})

    def _save(self, data: dict[str, Any], now_ms: int) -> None:
        """Check first, then replace the file: a change that makes no sense changes nothing."""
        parse_rules(data, source=self.main_path)
        counter = number_of((data.get("dataVersion") or [{"counter": 0}])[0].get("counter", 0))
        data["dataVersion"] = [{"counter": counter + 1, "timestamp": now_ms}]
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        text = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True)
        write_atomically(
            self._disk, self.main_path, text.encode(), keep_backup=True, is_secret=True
        )
        self.load()


def rule_files(disk: Disk, home: str | None) -> AclFiles:
    """The files where Apache looks for them: `conf` below `rocketmqHome`."""
    directory = posixpath.join(home or ".", "conf")
    return AclFiles(
        disk, posixpath.join(directory, "plain_acl.yml"), posixpath.join(directory, "acl")
    )
