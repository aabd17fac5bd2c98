"""Edges of the twin dialect: a log that begins inside a file, damage on a full disk."""

from __future__ import annotations

import asyncio
import errno

from support.ha_fake_store import FakeLog
from support.ha_world import World, eventually
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record


def identity(replica_id: int) -> TwinIdentity:
    return TwinIdentity(
        cluster="c",
        group="g",
        replica_id=replica_id,
        store_id="" if replica_id else "s",
        replica_uid=f"u{replica_id}",
        new_nonce=lambda: "nonce",
        adopt_store_id=lambda _: None,
        classic_peers=frozenset(f"10.0.0.{n}" for n in range(1, 20)),
    )


def records(count: int) -> bytes:
    data = b""
    for number in range(count):
        data += encode_record(PutMessage("t", 0, b"body %d" % number), number, len(data), 1)
    return data


def test_an_empty_slave_begins_where_its_masters_log_does_also_inside_a_file() -> None:
    """A master that was the classic slave of another once begins where that one sent from."""
    world = World()
    log = FakeLog(data=b"x" * 1700, start=1300)
    master = world.master(log, twin=identity(0))
    slave = world.slave(FakeLog(), master, twin=identity(1))

    async def main() -> None:
        await eventually(lambda: slave.log.max_offset == log.max_offset)
        assert (slave.log.min_offset, slave.log.data) == (1300, log.data)

    world.run(main())


def test_damage_that_cannot_be_cut_yet_ends_nothing_and_is_cut_later() -> None:
    """What is cut is copied aside first, which a full disk does not allow."""
    world = World()
    log = FakeLog(segment_size=4096, data=records(12))
    ends = len(records(5))
    master = world.master(log, twin=identity(0))
    copy = FakeLog(segment_size=4096)
    slave = world.slave(copy, master, twin=identity(1))
    cut = copy.truncate_to

    def full(offset: int, *, reason: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def main() -> None:
        await eventually(lambda: copy.max_offset == log.max_offset)
        client = slave.ha.client
        assert client is not None
        copy.truncate_to = full  # type: ignore[method-assign]
        client.damage_found(ends, "not a record")
        await asyncio.sleep(3)
        assert client.link is None, "nothing may follow what is damaged"
        assert "cannot be cut yet" in client.status().last_disconnect_reason
        assert f"damage at {ends}" in client.status().damage
        copy.truncate_to = cut  # type: ignore[method-assign]
        await eventually(lambda: client.link is not None and copy.max_offset == log.max_offset)
        assert [offset for offset, _ in copy.cuts] == [ends]

    world.run(main())
