"""A process that puts as fast as it can and says what was acknowledged. Killed by the test.

Each line: physical offset, queue id, queue offset, number of the message, once the watermark that
its flush type promises has passed the record.
"""

from __future__ import annotations

import asyncio
import sys

from tests.support.stores import message

from twinlog.runtime.broker_config import BrokerConfig, FlushDiskType
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.watermark import Outcome
from twinlog.store.message_store import MessageStore

_PER_TURN = 20


async def main(root: str, flush_type: str, first: int) -> None:
    config = BrokerConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000,
        max_index_num=5000,
        flush_disk_type=FlushDiskType(flush_type),
    )
    disk = PosixDisk()
    store = MessageStore(config, disk=disk, clock=SystemClock(), delay_levels=config.delay_levels)
    await store.load()
    tasks = TaskOwner("writer")
    await store.start(tasks)
    is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    watermark = store.flushed if is_sync else store.appended
    waiting = 0

    def acknowledged(line: str, outcome: Outcome, _: str) -> None:
        nonlocal waiting
        waiting -= 1
        assert outcome is Outcome.REACHED
        sys.stdout.write(line)

    sys.stdout.write("ready\n")
    sys.stdout.flush()
    number = first
    while True:
        for _ in range(_PER_TURN):
            result = store.put(message(number, queue_id=number % 3, size=number % 300))
            line = f"{result.physical_offset} {number % 3} {result.queue_offset} {number}\n"
            waiting += 1
            watermark.wait(result.end_offset, 1 << 62, acknowledged, line)
            number += 1
        sys.stdout.flush()
        await asyncio.sleep(0.001 if waiting > 2000 else 0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
