"""Makes background work raise, once each: in this process, or in a server started through here.

`python fault_injector.py FILE KIND NAMES -- broker -c broker.conf` runs that command. What is
spawned is taken from the code as it runs, so a new task is covered without being named anywhere.
Of `KIND` (`vital`, `contained`) those in `NAMES` (commas, or `*`) raise. One line of JSON goes to
`FILE` for each event: `spawned`, `raised`, `again`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

from twinlog.runtime.tasks import TaskOwner

INTERVAL_MS_MAX = 30  # Timers of minutes come round within the test.


class InjectedFault(Exception):
    """What nobody foresaw."""


async def broken(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run `coroutine`, but at the first place where it waits an exception comes instead."""
    return await _driven(coroutine)


@types.coroutine
def _driven(coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        waited_for = coroutine.send(None)
    except StopIteration:  # It never waits: then at its end.
        raise InjectedFault("injected") from None
    if type(waited_for) is asyncio.Future:  # Neither a task nor what gathers several.
        waited_for.cancel()  # Nobody waits any more: a socket is not watched by its old number.
    try:
        yielded = coroutine.throw(InjectedFault("injected"))
        while True:
            try:
                sent = yield yielded
            except BaseException as error:
                yielded = coroutine.throw(error)
            else:
                yielded = coroutine.send(sent)
    except StopIteration as end:
        return end.value


class Injector:
    """Stands before the methods of TaskOwner that start something."""

    def __init__(self, told: Callable[[str, str, str], None], kind: str, names: str) -> None:
        self._told = told
        self._kind = kind
        self._names = None if names == "*" else set(names.split(","))
        self._raised: set[str] = set()

    def must_raise(self, kind: str, name: str) -> bool:
        """Whether this is the first time of one that is to raise."""
        if kind != self._kind or (self._names is not None and name not in self._names):
            return False
        if name in self._raised:
            self._told("again", kind, name)
            return False
        self._raised.add(name)
        self._told("raised", kind, name)
        return True

    def install(self, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        vital, contained, rounds, job = (
            TaskOwner.vital, TaskOwner.contained, TaskOwner.round, TaskOwner.job,
        )  # fmt: skip

        def factory_of(kind: str, name: str, factory: Any) -> Any:
            self._told("spawned", kind, name)

            def make() -> Any:
                coroutine = factory()
                return broken(coroutine) if self.must_raise(kind, name) else coroutine

            return make

        def new_vital(owner: TaskOwner, name: str, factory: Any) -> Any:
            return vital(owner, name, factory_of("vital", name, factory))

        def new_contained(owner: TaskOwner, name: str, factory: Any, **more: Any) -> Any:
            return contained(owner, name, factory_of("contained", name, factory), **more)

        def new_round(owner: TaskOwner, name: str, interval_ms: Any, action: Any) -> Any:
            self._told("spawned", "contained", name)

            def act() -> Any:
                if self.must_raise("contained", name):
                    raise InjectedFault("injected")
                return action()

            return rounds(owner, name, lambda: min(interval_ms(), INTERVAL_MS_MAX), act)

        def new_job(owner: TaskOwner, name: str, coroutine: Any, **more: Any) -> Any:
            self._told("spawned", "job", name)
            if self._kind == "contained" and self.must_raise_job(name):
                coroutine = broken(coroutine)
            return job(owner, name, coroutine, **more)

        patch(TaskOwner, "vital", new_vital)
        patch(TaskOwner, "contained", new_contained)
        patch(TaskOwner, "round", new_round)
        patch(TaskOwner, "job", new_job)

    def must_raise_job(self, name: str) -> bool:
        if f"job {name}" in self._raised or self._names is not None:
            return False
        self._raised.add(f"job {name}")
        self._told("raised", "job", name)
        return True


def events(path: Path) -> list[tuple[str, str, str]]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [tuple(json.loads(line)) for line in lines[:-1]]  # The last may be half written.


def main() -> None:
    path, kind, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    assert sys.argv[4] == "--"

    def told(event: str, of_kind: str, name: str) -> None:
        with path.open("a") as file:
            file.write(json.dumps([event, of_kind, name]) + "\n")

    Injector(told, kind, names).install()
    from twinlog.cli.main import main as run

    run(sys.argv[5:])


if __name__ == "__main__":
    main()
