"""maxHATransferByteInSecond on a twin link: bytes of a real connection, counted as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from support.ha_fake_store import FakeLog, FakeStore
from twinlog.ha.dialect import TWIN, Verdict
from twinlog.ha.service import HAService
from twinlog.ha.settings import HASettings
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.runtime.broker_config import BrokerConfig, BrokerRole
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.tasks import TaskOwner

LIMIT = 400_000
SIZE = 2 * LIMIT
SEGMENT_SIZE = 1 << 20
BESIDES = 8_192  # The handshake, and the heads of frames: the budget is asked for bodies.


class Relay:
    """Between slave and master. Notes how many bytes the master had sent by when."""

    def __init__(self, clock: SystemClock, port: int) -> None:
        self.clock = clock
        self.port = port
        self.began_ms = 0
        self.seen: list[tuple[int, int]] = []
        self.total = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.began_ms = self.began_ms or self.clock.monotonic_ms()
        back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, forth))
                both.create_task(self._copy(back, writer, is_counted=True))
        except* OSError:
            pass
        finally:
            forth.close()
            writer.close()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_counted: bool = False
    ) -> None:
        while data := await source.read(1 << 16):
            if is_counted:
                self.total += len(data)
                self.seen.append((self.clock.monotonic_ms(), self.total))
            target.write(data)
            await target.drain()
        target.close()


def identity(replica_id: int) -> TwinIdentity:
    return TwinIdentity(
        cluster="c", group="g", replica_id=replica_id, replica_uid=f"u{replica_id}",
        store_id="" if replica_id else "s", new_nonce=lambda: "nonce",
        adopt_store_id=lambda _: None,
    )  # fmt: skip


async def twin(_: str) -> Verdict:
    return TWIN


@asynccontextmanager
async def replication(log: FakeLog, settings: HASettings, replica_id: int) -> AsyncIterator[int]:
    """One end of the link; its port."""
    tasks = TaskOwner(f"replica {replica_id}")
    service = HAService(
        settings, FakeStore(log), SystemClock(), tasks, twin=identity(replica_id), ask_dialect=twin
    )
    port = await service.start()
    try:
        yield port
    finally:
        await service.stop()
        await tasks.stop()


@pytest.mark.parametrize("is_limited", [True, False])
async def test_a_twin_slave_is_never_sent_more_than_the_limit_allows(is_limited: bool) -> None:
    config = BrokerConfig(
        broker_role=BrokerRole.ASYNC_MASTER,
        ha_flow_control_enable=is_limited,
        max_ha_transfer_byte_in_second=LIMIT,
    )
    clock = SystemClock()
    content = bytes(i % 251 for i in range(SIZE))
    source, copy = FakeLog(SEGMENT_SIZE, content), FakeLog(SEGMENT_SIZE)
    is_copied = asyncio.Event()
    copy.appended.subscribe(lambda end: is_copied.set() if end >= SIZE else None)
    async with replication(source, HASettings().changed(config), 0) as port:
        relay = Relay(clock, port)
        server = await asyncio.start_server(relay.serve, "127.0.0.1")
        address = "{}:{}".format(*server.sockets[0].getsockname())
        slave = HASettings(role="SLAVE", master_address=address)
        async with replication(copy, slave, 1), asyncio.timeout(120):
            await is_copied.wait()
        server.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 10)
    assert copy.data == source.data
    # A bucket of one second's worth, full when the connection is made, and filled at the limit.
    # What comes late only lowers what is seen, so this holds on the slowest machine.
    allowed = [
        seen <= LIMIT + LIMIT * (at_ms - relay.began_ms + 1) / 1000 + BESIDES
        for at_ms, seen in relay.seen
    ]
    assert relay.total > SIZE
    assert all(allowed) or not is_limited
