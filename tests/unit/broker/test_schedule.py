"""Delayed delivery: what is parked in one turn of the loop comes out, all of it and in order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from support.processes import free_broker_port
from twinlog.broker.delay import delayed
from twinlog.broker.server import build_broker
from twinlog.message.model import PutMessage
from twinlog.runtime.config import BrokerConfig


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
            host = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
            message = PutMessage("T", 0, b"m%d" % number, b"", born_host=host, store_host=host)
            broker.store.put(delayed(message, {}, 1, {1: 1000}))
        async with asyncio.timeout(30):
            await delivered.wait()
    finally:
        await broker.stop()
