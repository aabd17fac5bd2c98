"""Delayed delivery: what is parked in one turn of the loop comes out, all of it and in order."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

from support.processes import free_broker_port
from twinlog.broker.delay.levels import delayed
from twinlog.broker.server import build_broker
from twinlog.message.model import PutMessage
from twinlog.runtime.config import BrokerConfig

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
EXTENSION_BEGIN = -(1 << 63)  # The first place in `consumequeue_ext`, as Apache writes it.


async def test_several_messages_parked_in_one_turn_are_all_delivered(tmp_path: Path) -> None:
    config = BrokerConfig(
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=1 << 20,
        message_delay_level="1s",
        listen_port=free_broker_port(),
    )
    broker = build_broker(config, rng=random.Random(1))
    await broker.start()
    try:
        delivered = asyncio.Event()

        def moved(_keys: object) -> None:
            if broker.store.max_offset_in_queue("T", 0) == 3:
                delivered.set()

        broker.store.add_dispatch_listener(moved)
        await asyncio.sleep(0)  # The empty level has looked at its queue and gone to sleep.
        for number in range(3):
            message = PutMessage("T", 0, b"m%d" % number, b"", born_host=HOST, store_host=HOST)
            broker.store.put(delayed(message, {}, 1, {1: 1000}))
        async with asyncio.timeout(30):
            await delivered.wait()
    finally:
        await broker.stop()


async def test_an_entry_whose_time_is_in_apaches_extension_is_due_by_its_record(
    tmp_path: Path,
) -> None:
    config = BrokerConfig(
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=1 << 20,
        message_delay_level="1h 1s",
        listen_port=free_broker_port(),
    )
    broker = build_broker(config, rng=random.Random(1))
    await broker.start()
    levels = {1: 3_600_000, 2: 1000}
    for level in levels:
        message = PutMessage("T", 0, b"level %d" % level, b"", born_host=HOST, store_host=HOST)
        broker.store.put(delayed(message, {}, level, levels))
    await broker.stop()
    for queue in (0, 1):
        path = tmp_path / f"store/consumequeue/SCHEDULE_TOPIC_XXXX/{queue}/{0:020d}"
        with path.open("r+b") as file:
            file.seek(12)
            file.write(struct.pack(">q", EXTENSION_BEGIN))
    broker = build_broker(config, rng=random.Random(1))
    delivered = asyncio.Event()
    broker.store.add_dispatch_listener(lambda keys: delivered.set() if ("T", 0) in keys else None)
    await broker.start()
    try:
        async with asyncio.timeout(30):
            await delivered.wait()
        assert b"level 2" in broker.store.get_message("T", 0, 0, 32).buffers[0]
        assert broker.store.max_offset_in_queue("T", 0) == 1
    finally:
        await broker.stop()
