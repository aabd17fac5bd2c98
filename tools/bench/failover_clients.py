"""The clients of the failover rows, by name: how each is started and what it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from failover_groups import TOPIC
from failover_load import Acknowledged, ClientLoad, NoLoad, ProgramLoad, RawLoad

from interop.foreign import cpp, javascript
from interop.java_story import JAVA_DEFAULTS
from support.java_driver import Driver

_MANY = 10_000_000
_PAUSE_MS = 5  # Between two sends of a client program.
# What a 4.9 producer waits for an answer when nobody tells it otherwise.
_JAVA = {"topic": TOPIC, "count": _MANY, "pauseMs": _PAUSE_MS, "timeoutMs": 3000}


@asynccontextmanager
async def running(
    client: str, name_server: str, directory: Path, rate: int
) -> AsyncIterator[Acknowledged]:
    started = _STARTED.get(client, _foreign)
    async with started(client, name_server, directory, rate) as load:
        await load.start()
        try:
            yield load
        finally:
            await load.stop()


@asynccontextmanager
async def _none(client: str, name_server: str, _: Path, rate: int) -> AsyncIterator[Acknowledged]:
    yield NoLoad()


@asynccontextmanager
async def _raw(client: str, name_server: str, _: Path, rate: int) -> AsyncIterator[Acknowledged]:
    yield (RawLoad if client == "raw" else ClientLoad)(name_server, rate)


@asynccontextmanager
async def _java(client: str, name_server: str, place: Path, _: int) -> AsyncIterator[Acknowledged]:
    driver = Driver(place / "java")
    routes = {**JAVA_DEFAULTS, "routeMs": 1000} if client == "java-1s" else JAVA_DEFAULTS
    job = driver.start("send", namesrv=name_server, prefix="m", **_JAVA, **routes)
    try:
        yield ProgramLoad("m", lambda: _events(_taken(job.events)))
    finally:
        driver.kill()


@asynccontextmanager
async def _foreign(
    client: str, name_server: str, place: Path, _: int
) -> AsyncIterator[Acknowledged]:
    start = {"cpp": cpp, "javascript": javascript}[client]
    words = [name_server, "send", TOPIC, "sync", str(_MANY), "m", f"pause={_PAUSE_MS}"]
    program = start([*words, "timeout=3000"], place / f"{client}.log", {})
    try:
        yield ProgramLoad("m", lambda: _events(program.news()))
    finally:
        program.popen.kill()
        program.close()


_STARTED = {"none": _none, "raw": _raw, "ours": _raw, "java": _java, "java-1s": _java}


def _taken(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """Out of the list that the driver's thread fills."""
    count = len(events)
    taken = events[:count]
    del events[:count]
    return taken


def _events(events: list[dict[str, object]]) -> list[tuple[str, int, str]]:
    return [
        (str(e["event"]), int(str(e.get("n", 0))), str(e.get("status") or e.get("text") or ""))
        for e in events
    ]
