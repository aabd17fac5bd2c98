"""How many topics and groups one client address may have created, by second.

Each is an entry of a table that is saved, copied to slaves and told to name servers, and a topic is
a directory for each queue. A client that makes up names could fill all of it. A bucket for each
address: it fills by the rate and holds twenty seconds of it, so a program that creates its ten
thousand topics at its start is not stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twinlog.broker.errors import BrokerError
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.clock import Clock

BURST_SECONDS = 20
ADDRESSES_MAX = 10_000


class CreationQuota:
    """Asked by the tables before an entry of a client is made. What the broker makes is free."""

    def __init__(
        self,
        clock: Clock,
        per_second: int,
        refused: Callable[[ServerConnection, int, str], None] = lambda *_: None,
    ) -> None:
        self._clock = clock
        self._refused = refused
        self._per_second = per_second
        self._capacity = per_second * BURST_SECONDS
        self._buckets: dict[str, tuple[float, int]] = {}  # What is left, and when that was so.
        # Whose request is being handled; None: the broker itself does something.
        self.client: ServerConnection | None = None

    @contextmanager
    def by(self, client: ServerConnection) -> Iterator[None]:
        """What is made inside is made for this client."""
        before, self.client = self.client, client
        try:
            yield
        finally:
            self.client = before

    def take(self) -> None:
        """One more entry. Raises BrokerError (2, SYSTEM_BUSY) when the client made too many."""
        if self.client is None or not self._per_second:
            return
        host, now_ms = self.client.remote_address[0], self._clock.monotonic_ms()
        left, since_ms = self._buckets.get(host, (float(self._capacity), now_ms))
        left = min(self._capacity, left + (now_ms - since_ms) * self._per_second / 1000)
        if left < 1:
            self._buckets[host] = (left, now_ms)
            remark = (
                f"[REJECTREQUEST]system busy, {host} creates more than {self._per_second} topics "
                "and groups per second (twinlogCreationsPerAddress)"
            )
            self._refused(self.client, 0, remark)
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)
        if len(self._buckets) >= ADDRESSES_MAX:
            self._buckets.pop(next(iter(self._buckets)))  # The oldest; most likely full again.
        self._buckets[host] = (left - 1, now_ms)
