"""The tables on disk (topics, groups, offsets, ...) against what was written to them.

While a broker runs, its memory is right: a file that is not what was written last is written again.
While it is stopped, digests in `store/twinlog/digests/tables.json` say what was left: a file whose
bytes differ although nobody has written it since has decayed, and its backup is taken, which a
clean stop leaves equal. A file that somebody has written (an editor, an Apache broker) has another
time of change, and is taken as it is.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from twinlog.broker.tables.config_file import ConfigFile, Source
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.saving import TableSaver
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.integrity.digests import digest_of

_LOG = logging.getLogger("twinlog.broker")


class Left(msgspec.Struct):
    """A file as it was left."""

    digest: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Table:
    file: ConfigFile
    saver: TableSaver


class TableCheck:
    """All tables of one broker."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._directory = posixpath.join(root, "twinlog", "digests")
        self._path = posixpath.join(self._directory, "tables.json")
        self._left: dict[str, Left] | None = None
        self.tables: list[Table] = []
        self.healed_count = 0
        self.problems: dict[str, str] = {}
        """By the name of its file: what was wrong with a table at the start; for the status."""
        self.doubtful: set[str] = set()
        """Names of files whose tables may lack something: the log is asked for it."""
        self.on_event: Callable[..., None] = lambda kind, **details: None

    # At a start

    def is_decayed(self, path: str, data: bytes) -> bool:
        """Whether a file that nobody has written since a clean stop holds other bytes."""
        if self._left is None:
            self._left = self._load()
        left = self._left.get(posixpath.basename(path))
        if left is None or left.digest == digest_of(data).hex():
            return False
        return self._disk.modified_ms(path) == left.modified_ms

    def loaded(self, *, was_clean: bool) -> None:
        """All tables are loaded: name those that were not as they were left.

        A broker never removes a table, so one that was there at a clean stop must be there.
        """
        for table in self.tables:
            self._judge(table.file, was_clean=was_clean)

    def _judge(self, file: ConfigFile, *, was_clean: bool) -> None:
        if self._left is None:
            self._left = self._load()
        name = posixpath.basename(file.path)
        left = self._left.get(name)
        if file.source is Source.FILE:
            return
        if file.source is Source.NOWHERE:
            if left is None and file.fault == "is missing":
                return  # It was never there.
            outcome = "and has no backup that can be read: what it held is lost"
            self.doubtful.add(name)
        elif was_clean and left is not None and left.digest == file.digest:
            outcome = "and its backup, which holds the same, was taken"
        else:
            outcome = "and its backup, which may be older, was taken"
            self.doubtful.add(name)
        self.problems[name] = f"the file {file.fault} {outcome}"
        _LOG.error("table %s path=%s", self.problems[name], file.path)

    def status(self) -> dict[str, str]:
        return {f"tableProblem {name}": text for name, text in self.problems.items()}

    def recovered(self, name: str, count: int) -> None:
        """The log had `count` changes of a doubtful table, and they were applied."""
        self.problems[name] += f"; {count} changes were found in the log and applied"
        _LOG.warning("table rebuilt from the log name=%s changes=%d", name, count)

    def _load(self) -> dict[str, Left]:
        if not self._disk.exists(self._path):
            return {}
        try:
            return decode_saved(self._disk.read_bytes(self._path), dict[str, Left])
        except BrokenSealError as error:
            _LOG.warning("digests of tables not readable error=%s", error)
            return {}

    # While it runs

    async def run(self) -> None:
        """Look at every table once; write again what is not as it was written."""
        for table in self.tables:
            file = table.file
            if await table.saver.check(lambda file=file: self._disk.run(file.is_intact)):  # type: ignore[misc]
                continue
            self.healed_count += 1
            _LOG.warning("table did not match what was written, written again path=%s", file.path)
            self.on_event("table-healed", table=table.saver.name)

    # At a clean stop

    async def leave(self) -> None:
        """Make backups equal, and remember what is there."""
        for table in self.tables:
            if self._disk.exists(table.file.path):
                table.saver.touched()
                await table.saver.save()
        try:
            await self._disk.run(self._remember)
        except OSError as error:
            _LOG.warning("digests of tables not saved error=%s", error)

    def _remember(self) -> None:
        paths = [path for table in self.tables for path in _both(table.file.path)]
        left = {
            posixpath.basename(path): Left(
                digest_of(self._disk.read_bytes(path)).hex(), self._disk.modified_ms(path)
            )
            for path in paths
            if self._disk.exists(path)
        }
        self._disk.make_directories(self._directory)
        write_atomically(self._disk, self._path, encode_saved(left))


def _both(path: str) -> Iterable[str]:
    return (path, path + ".bak")
