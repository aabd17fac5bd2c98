"""Cancel a coroutine at each place where it waits."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

DEADLINE_S = 60.0


@types.coroutine
def _counted(
    coroutine: Coroutine[Any, Any, Any], place: int, cancel: Any, *, when_done: bool
) -> Generator[Any, None, Any]:
    """Run it; at its wait number `place`, cancel: at once, or together with what it waits for."""
    steps = coroutine.__await__()
    error: BaseException | None = None
    number = 0
    while True:
        try:
            waited = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        error = None
        if number == place:
            if when_done and waited is not None:
                waited.add_done_callback(lambda _: cancel())
            else:
                asyncio.get_running_loop().call_soon(cancel)
        number += 1
        try:
            yield waited
        except BaseException as thrown:
            error = thrown


async def cancelled_at(
    coroutine: Coroutine[Any, Any, Any], place: int, *, when_done: bool = False
) -> bool:
    """Whether it was cancelled at that place; False: it ended before, or in spite of it."""

    async def run() -> None:
        await _counted(coroutine, place, lambda: task.cancel(), when_done=when_done)

    task = asyncio.ensure_future(run())
    done, _ = await asyncio.wait([task], timeout=DEADLINE_S)
    assert done, f"still runs after it was cancelled at place {place}: {task!r}"
    if task.cancelled():
        return True
    task.result()
    return False
