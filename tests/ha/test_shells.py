"""HAService, HAConnection and HAClient with each other, on virtual time."""

from __future__ import annotations

import asyncio

from support.ha_fake_store import FakeLog
from support.ha_world import World, eventually
from twinlog.store.status import PutMessageStatus


def data(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


def test_a_slave_follows_its_master() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2500)))
    slave = world.slave(FakeLog(), master)

    async def main() -> None:
        await eventually(lambda: slave.log.max_offset == 2500)
        assert slave.log.start == 2000
        assert world.loop.now_s < 1.0
        for size in (1, 300, 5000):
            end = master.log.put(data(size))
            await eventually(lambda end=end: master.ha.confirmed.value == end)
        assert slave.log.data == master.log.data[2000:]

    world.run(main())


def test_sync_put_knows_why() -> None:
    world = World()
    master = world.master(FakeLog(data=data(2500)))

    async def main() -> None:
        await asyncio.sleep(1)
        status, reason = master.ha.check_sync(2500)
        assert status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert reason.startswith("no slave connected since 2023-11-14T")
        slave = world.slave(FakeLog(data=data(2500)), master)
        await eventually(lambda: master.ha.check_sync(2500) == (None, ""))
        world.loop.kill(slave.host)
        await eventually(lambda: master.ha.check_sync(2500)[0])
        assert f"last {slave.host.address}:" in master.ha.check_sync(2500)[1]

    world.run(main())
