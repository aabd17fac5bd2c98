"""Tables that decay on disk, while a broker runs and while it is stopped."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from support.damage import flip_bit
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.table_check import Table, TableCheck
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.saving import TableSaver

SEEDS = range(25)


class OneTable:
    """A table of numbers with its file, as a broker has them."""

    def __init__(self, root: Path) -> None:
        self.disk = PosixDisk()
        self.check = TableCheck(self.disk, str(root))
        self.path = root / "config" / "numbers.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = ConfigFile(self.disk, str(self.path), self.check.is_decayed)
        self.saver = TableSaver("numbers", lambda: self.file.save(self.values))
        self.values: dict[str, int] = {}
        self.events: list[str] = []
        self.check.tables = [Table(self.file, self.saver)]
        self.check.on_event = lambda kind, **details: self.events.append(kind)

    async def put(self, **values: int) -> None:
        self.values |= values
        self.saver.touched()
        assert await self.saver.save() == ""

    def close(self) -> None:
        self.disk.close()


def decay(path: Path, rng: random.Random) -> None:
    """A bit of the medium flips: nobody has written, so the times stay."""
    times = path.stat()
    flip_bit(path, rng.randrange(times.st_size), rng)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("seed", SEEDS)
async def test_while_it_runs_memory_is_right(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = OneTable(tmp_path)
    await table.put(a=1)
    await table.put(b=rng.randrange(10**9))
    good = table.path.read_bytes()
    await table.check.run()
    assert table.events == []
    decay(table.path, rng)
    await table.check.run()
    assert table.events == ["table-healed"]
    assert table.path.read_bytes() == good == Path(f"{table.path}.bak").read_bytes()
    table.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("which", ["", ".bak"])
async def test_while_it_was_stopped_the_other_copy_is_right(
    tmp_path: Path, seed: int, which: str
) -> None:
    rng = random.Random(seed)
    table = OneTable(tmp_path)
    await table.put(a=rng.randrange(10**9))
    await table.put(b=rng.randrange(10**9))
    await table.check.leave()
    wanted = dict(table.values)
    table.close()
    decay(Path(f"{table.path}{which}"), rng)

    again = OneTable(tmp_path)
    loaded = again.file.load()
    assert loaded == wanted
    again.values = loaded
    await again.check.run()
    assert json.loads(again.path.read_bytes()) == wanted
    assert again.events == ([] if which else ["table-healed"])
    again.close()


async def test_what_somebody_has_written_is_taken(tmp_path: Path) -> None:
    table = OneTable(tmp_path)
    await table.put(a=1)
    await table.check.leave()
    table.close()
    before = table.path.stat().st_mtime_ns
    table.path.write_text('{"a": 2}')
    os.utime(table.path, ns=(before, before + 5_000_000_000))
    again = OneTable(tmp_path)
    assert again.file.load() == {"a": 2}
    again.close()
