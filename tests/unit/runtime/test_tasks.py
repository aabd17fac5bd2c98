"""A background task that dies takes its owner down, with its reason; a cancelled one does not."""

from __future__ import annotations

import asyncio

import pytest

from twinlog.cli.serve import Lifetime
from twinlog.runtime.tasks import TaskOwner


async def forever() -> None:
    await asyncio.Event().wait()


async def die(reason: str) -> None:
    await asyncio.sleep(0)
    raise OSError(reason)


async def test_the_first_reason_is_kept_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []
    owner = TaskOwner("store", on_failure=lambda name, error: told.append((name, str(error))))
    flush = owner.spawn("flush", die("disk gone"))
    clean = owner.spawn("clean", die("later"))
    await asyncio.wait([flush, clean])
    assert owner.failed is not None
    assert (owner.failed[0], str(owner.failed[1])) == ("store/flush", "disk gone")
    assert told == [("store/flush", "disk gone"), ("store/clean", "later")]
    assert "task died name=store/flush error=OSError('disk gone')" in caplog.text
    await owner.stop()


async def test_a_stop_ends_every_task_and_is_no_failure() -> None:
    told: list[str] = []
    owner = TaskOwner("store", on_failure=lambda name, error: told.append(name))
    tasks = [owner.spawn("a", forever()), owner.spawn("b", forever())]
    await asyncio.sleep(0)
    await owner.stop()
    assert all(task.cancelled() for task in tasks)
    assert (owner.count, owner.failed, told) == (0, None, [])


async def test_a_process_ends_with_the_first_reason() -> None:
    lifetime = Lifetime()
    owner = TaskOwner("broker", on_failure=lambda name, error: lifetime.fail(f"{name}: {error}"))
    owner.spawn("flush", die("disk gone"))
    async with asyncio.timeout(30):
        await lifetime.ended()
    lifetime.fail("something that follows from it")
    assert lifetime.failure == "broker/flush: disk gone"
    await owner.stop()
