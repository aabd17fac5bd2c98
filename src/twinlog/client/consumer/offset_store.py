"""Where a group's progress is kept. Corresponds to RemoteBrokerOffsetStore and
LocalFileOffsetStore.

Clustering groups commit to the broker: every few seconds without waiting, and once more, waiting,
when a queue is let go and at the end. Broadcasting consumers keep a file of their own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from twinlog.client.errors import ClientError
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance
from twinlog.client.queues import MessageQueue
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import queue_from_answer
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.numbers import number_of

_LOG = logging.getLogger("twinlog.client")


class OffsetStore(Protocol):
    """Offsets by queue. `update` is cheap; `commit` makes them last."""

    def update(self, queue: MessageQueue, offset: int) -> None: ...

    def position(self, queue: MessageQueue) -> int | None:
        """What was updated last, committed or not."""
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """What is committed; None when nothing is. Raises when it cannot be known."""
        ...

    async def commit(self, queues: list[MessageQueue] | None = None, *, wait: bool) -> None: ...

    def forget(self, queue: MessageQueue) -> None: ...


class RemoteOffsetStore:
    """Offsets of a clustering group, on the brokers."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def position(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        return await calls.query_consumer_offset(self._instance, self._group, queue)

    async def commit(self, queues: list[MessageQueue] | None = None, *, wait: bool) -> None:
        """Commit what changed, or with `wait` everything: a broker may have forgotten."""
        chosen = list(self._offsets) if queues is None else queues
        due = [
            (queue, self._offsets[queue])
            for queue in chosen
            if queue in self._offsets
            and (wait or self._committed.get(queue) != self._offsets[queue])
        ]
        results = await asyncio.gather(*(self._commit_one(q, o, wait) for q, o in due))
        errors = [error for error in results if error is not None]
        if wait and errors:
            raise errors[0]

    async def _commit_one(self, queue: MessageQueue, offset: int, wait: bool) -> ClientError | None:
        try:
            await calls.commit_offset(self._instance, self._group, queue, offset, wait=wait)
        except ClientError as error:
            _LOG.warning("offset not committed queue=%s offset=%d reason=%s", queue, offset, error)
            return error
        self._committed[queue] = offset
        return None

    def forget_committed(self) -> None:
        """A broker came back: it may know less than we told the one before it."""
        self._committed.clear()

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._committed.pop(queue, None)


class LocalOffsetStore:
    """Offsets of one broadcasting consumer, in a file that Java's client can read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        self._stored: dict[MessageQueue, int] = {}

    def load(self) -> None:
        if not self._disk.exists(self._path):
            return
        try:
            table = fastjson.loads(self._disk.read_bytes(self._path))["offsetTable"]
            self._stored = {
                queue_from_answer(fastjson.loads(key)): number_of(value)
                for key, value in table.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise ClientError(
                f"{self._path} is not a file of offsets ({error!r}): move it away to start without "
                "offsets"
            ) from error

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def position(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def read(self, queue: MessageQueue) -> int | None:
        return self._stored.get(queue)

    async def commit(self, queues: list[MessageQueue] | None = None, *, wait: bool) -> None:
        merged = {**self._stored, **self._offsets}
        if merged == self._stored:
            return
        table: dict[str, Any] = {
            fastjson.dumps(queue.wire()).decode(): offset for queue, offset in merged.items()
        }
        self._disk.make_directories(self._path.rpartition("/")[0])
        write_atomically(self._disk, self._path, fastjson.dumps({"offsetTable": table}))
        self._stored = merged

    def forget(self, queue: MessageQueue) -> None:
        """A broadcasting consumer never loses a queue to another; what it has read stays."""
