"""The comparison of the index with the log, while files fill, expire and are removed: generated."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.stores import ManualClock, message, running_store, small_config
from twinlog.runtime.disk import PosixDisk
from twinlog.store.integrity.damage import place_of
from twinlog.store.integrity.index_check import IndexCheck
from twinlog.store.message_store import MessageStore


class BusyDisk(PosixDisk):
    """Something else happens before and after each piece of work in a thread."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.meanwhile()
        result = await super().run(function, *arguments)
        self.meanwhile()
        return result


class Life:
    """What else goes on in a store: puts, retention, a log that begins anew."""

    def __init__(self, store: MessageStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._number = 0

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            self._store.put(message(self._number, size=self._rng.randrange(20, 300)))
        self._store.write_pending()
        assert self._store.index is not None
        self._store.index.drain()

    def go_on(self) -> None:
        index = self._store.index
        assert index is not None
        chance = self._rng.random()
        if chance < 0.3:
            self.fill(self._rng.randrange(1, 120))
        elif chance < 0.5 and len(self._store.commit_log.segments.segments) > 3:
            self._store.commit_log.remove_first()
            index.remove_expired(self._store.commit_log.min_offset)
        elif chance < 0.52:
            index.remove_all()
        elif chance < 0.6:
            at = self._store.commit_log.max_offset - self._rng.randrange(1000, 30_000)
            self._store.damage.found(place_of(at, 100, "somewhere"))
            self._store.damage.gone(place_of(at - 1, 100, "elsewhere"))


@pytest.mark.parametrize("seed", range(15))
async def test_files_come_and_go_while_they_are_compared(tmp_path: Path, seed: int) -> None:
    """No look at the index fails, and none takes what is right for damaged."""
    rng, clock, disk = random.Random(seed), ManualClock(), BusyDisk()
    config = small_config(tmp_path, mapped_file_size_commit_log=65536)
    async with running_store(config, disk, clock) as store:
        life = Life(store, rng)
        life.fill(1000)

        async def rest(size: int, busy_ms: int) -> None:
            disk.meanwhile()

        check = IndexCheck(store, disk, clock, str(tmp_path / "twinlog"), rest)  # type: ignore[arg-type]
        differing: list[str] = []
        check.on_event = lambda kind, **details: differing.append(kind)
        disk.meanwhile = life.go_on
        for _ in range(4):
            await check.run()
        disk.meanwhile = lambda: None
        store.damage.places.clear()
        await check.run()
        assert (check.healed_count, differing, check.unchecked) == (0, [], [])
    disk.close()
