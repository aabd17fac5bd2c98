"""Tables saved off the loop: nobody is told too early, and a save that fails is tried again."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from twinlog.runtime.saving import HeldForSave, SaveService, TableSaver, TableText
from twinlog.runtime.tasks import TaskOwner
from twinlog.testing.manual_clock import ManualClock

TURNS_MAX = 10_000


class Table:
    """A counter; what is on `disk` is the counter as it was when a write began."""

    def __init__(self) -> None:
        self.value = 0
        self.disk = 0
        self.turns = 0
        self.error: Exception | None = None
        self.saver = TableSaver("table", self._write)

    async def _write(self) -> None:
        value = self.value
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.disk = value

    def change(self, *created: str) -> None:
        self.value += 1
        self.saver.changed(created)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def world():
    table, clock, tasks = Table(), ManualClock(), TaskOwner("test")
    service = SaveService(clock, [table.saver])
    service.start(tasks)
    yield table, clock, service
    await tasks.stop()
    assert tasks.failed is None


async def test_changes_of_one_turn_and_those_during_a_save_share_one(world) -> None:
    table, _, _ = world
    table.turns = 5
    told: list[str] = []
    for _ in range(1000):
        table.change()
        table.saver.when_saved(told.append)
    await turns(3)
    for _ in range(1000):
        table.change()
        table.saver.when_saved(told.append)
    await turns(40)
    assert told == [""] * 2000
    assert table.saver.save_count == 2
    assert table.disk == 2000


async def test_who_waits_is_told_why_and_the_table_is_tried_again_with_growing_pauses(
    world,
) -> None:
    table, clock, service = world
    table.error = OSError(errno.ENOSPC, "No space left on device")
    table.change("made")
    with pytest.raises(HeldForSave):
        table.saver.hold("made")
    assert "No space" in await table.saver.saved()
    table.saver.hold("made")  # No use in waiting now.
    assert table.saver.is_refused("made")
    assert service.problems == {"table": str(table.error)}
    pauses = []
    for _ in range(8):
        tries, waited = table.saver.failure_count, 0
        while table.saver.failure_count == tries:
            clock.advance(50)
            waited += 50
            await turns()
        pauses.append(waited)
    assert pauses == sorted(pauses)
    assert pauses[0] <= 200
    assert pauses[-1] == 5000
    table.error = None
    clock.advance(5000)
    await turns()
    assert service.problems == {}
    assert table.disk == table.value
    assert not table.saver.is_refused("made")


async def test_a_table_whose_text_cannot_be_made_ends_nothing(world) -> None:
    table, _, service = world
    table.error = UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
    table.change()
    assert "surrogates" in await table.saver.saved()
    assert list(service.problems) == ["table"]


@pytest.mark.parametrize("seed", range(100))
async def test_nobody_is_told_before_its_change_is_on_disk(seed: int, world) -> None:
    table, clock, _ = world
    rng = random.Random(seed)
    waiting: dict[int, str] = {}
    asked = 0

    def ask() -> None:
        nonlocal asked
        number, value = asked, table.value
        asked += 1

        def told(reason: str) -> None:
            assert number not in waiting, "told twice"
            waiting[number] = reason
            assert reason or table.disk >= value

        table.saver.when_saved(told)

    for _ in range(200):
        kind = rng.randrange(8)
        if kind < 3:
            table.change(*rng.sample("abc", rng.randrange(2)))
        elif kind < 5:
            ask()
        elif kind == 5:
            table.error = OSError(errno.EIO, "broken") if rng.random() < 0.5 else None
            table.turns = rng.randrange(4)
        elif kind == 6:
            clock.advance(rng.randrange(3000))
        else:
            await turns(rng.randrange(6))
    table.error = None
    clock.advance(10_000)
    await turns(50)
    assert len(waiting) == asked
    assert table.disk == table.value
    assert not table.saver.is_dirty


async def test_text_is_made_again_only_for_what_changed() -> None:
    made: list[str] = []

    def text(value: str) -> str:
        made.append(value)
        return value.upper()

    table = {name: name for name in "abcdefgh"}
    texts = TableText(text)
    assert await texts.pieces(lambda: table) == list("ABCDEFGH")
    table["a"] = "x"
    texts.forget("a")
    del table["h"]
    texts.forget("h")
    assert await texts.pieces(lambda: table) == list("XBCDEFG")
    assert made == [*"abcdefgh", "x"]
