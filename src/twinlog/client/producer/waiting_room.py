"""Messages whose queue follows from the route of their topic, while that route is not known.

They are placed in the order in which they came, and whoever comes while others wait joins them:
otherwise a message sent just after the route came would overtake those from before. One task looks
for the route of a topic, however many wait for it, until the time of the last of them is up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from twinlog.client.errors import ClientError, NoWritableQueueError
from twinlog.client.net.instance import ClientInstance, no_answer
from twinlog.client.producer.retry import backoff_ms, is_unlimited
from twinlog.client.queues import MessageQueue


class Guest(NamedTuple):
    """One message that waits."""

    deadline_ms: float
    size: int
    ticket: Any
    place: Callable[[list[MessageQueue]], None]  # Called with the queues of the topic.


class WaitingRoom:
    """Guests by topic. `tell` gives a ticket its error, `changed` says that somebody left."""

    def __init__(
        self,
        instance: ClientInstance,
        *,
        tell: Callable[[Any, ClientError], None],
        changed: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._tell = tell
        self._changed = changed
        self._guests: dict[str, deque[Guest]] = {}
        self.size = 0
        self.count = 0

    def has(self, topic: str) -> bool:
        """Whether somebody waits for this topic's route: who comes now must wait behind them."""
        return topic in self._guests

    def add(self, topic: str, guest: Guest) -> None:
        self.size += guest.size
        self.count += 1
        waiting = self._guests.get(topic)
        if waiting is not None:
            waiting.append(guest)
            return
        self._guests[topic] = deque((guest,))
        self._instance.tasks.contained("first send", lambda: self._wait(topic), about=topic)

    async def _wait(self, topic: str) -> None:
        attempt = 0
        earlier: ClientError | None = None
        while topic in self._guests:
            deadline_ms = min(guest.deadline_ms for guest in self._guests[topic])
            try:
                queues = await find_queues(self._instance, topic, deadline_ms, earlier)
            except ClientError as error:
                attempt += 1
                earlier = error
                self._dismiss(topic, error, only_late=is_unlimited(error))
                self._changed()
                left_ms = int(deadline_ms - self._instance.clock.monotonic_ms())
                await self._instance.clock.sleep_ms(min(backoff_ms(attempt), max(1, left_ms)))
            else:
                self._place(topic, queues)
                self._changed()

    def _place(self, topic: str, queues: list[MessageQueue]) -> None:
        for guest in self._leave(topic):
            try:
                guest.place(queues)
            except ClientError as error:
                self._tell(guest.ticket, error)

    def _dismiss(self, topic: str, error: ClientError, *, only_late: bool) -> None:
        now_ms = self._instance.clock.monotonic_ms()
        staying: deque[Guest] = deque()
        for guest in self._leave(topic):
            if only_late and guest.deadline_ms > now_ms:
                staying.append(guest)
            else:
                self._tell(guest.ticket, error)
        if staying:
            self._guests[topic] = staying
            self.size += sum(guest.size for guest in staying)
            self.count += len(staying)

    def _leave(self, topic: str) -> deque[Guest]:
        guests = self._guests.pop(topic, deque())
        self.size -= sum(guest.size for guest in guests)
        self.count -= len(guests)
        return guests

    def fail_all(self, error: ClientError) -> None:
        """The producer is closed: who waits is told so."""
        for topic in list(self._guests):
            self._dismiss(topic, error, only_late=False)


async def find_queues(
    instance: ClientInstance, topic: str, deadline_ms: float, earlier: ClientError | None = None
) -> list[MessageQueue]:
    """The queues of a topic that take messages, whether or not their master is there now.

    One attempt, which takes no longer than until the deadline. Raises ClientError: the one of an
    `earlier` attempt if the time is up before this one has a reason of its own.
    """
    known = instance.cached_route(topic)
    queues = known.write_queues(topic, with_master_only=False) if known else []
    if not queues:
        left_ms = max(1.0, deadline_ms - instance.clock.monotonic_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                route = await instance.refresh_route(topic, create=True)
        except TimeoutError:
            raise earlier or no_answer(instance, topic) from None
        queues = route.write_queues(topic, with_master_only=False)
    if not queues:
        raise NoWritableQueueError(
            f"topic {topic!r} has no queue that accepts messages at the moment"
        )
    return queues


async def find_queues_until(
    instance: ClientInstance, topic: str, deadline_ms: float
) -> list[MessageQueue]:
    """The same, tried until the deadline while the reason is one that passes."""
    attempt = 0
    earlier: ClientError | None = None
    while True:
        try:
            return await find_queues(instance, topic, deadline_ms, earlier)
        except ClientError as error:
            left_ms = deadline_ms - instance.clock.monotonic_ms()
            if not is_unlimited(error) or left_ms <= 0:
                raise
            earlier = error
            attempt += 1
            await instance.clock.sleep_ms(min(backoff_ms(attempt), max(1, int(left_ms))))
