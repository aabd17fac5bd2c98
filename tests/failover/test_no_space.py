"""A disk that is full for real: the kernel refuses the next file of the log."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.failover_group import Load, first_send, read_all, running_group, switch
from support.processes import wait_until
from twinlog.client import Producer

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system"),
]
SEGMENT, SPACE_MB = 1 << 20, 48


@contextmanager
def small_disk(store: Path) -> Iterator[None]:
    """A file system of its own for a store that is there already."""
    aside = store.with_name("aside")
    store.rename(aside)
    store.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SPACE_MB}m", "tmpfs", str(store)]
    subprocess.run(mount, check=True)
    try:
        shutil.copytree(aside, store, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(store)], check=True)


async def test_a_master_whose_disk_refuses_a_file_gives_way_and_comes_back(tmp_path: Path) -> None:
    """Nothing acknowledged is lost; with room again it is a member again, by itself. Nobody looks
    at how full the disk is meanwhile: a refused write is what is noticed."""
    config = {
        "mappedFileSizeCommitLog": SEGMENT, "diskSpaceWarningLevelRatio": 99,
        "cleanResourceInterval": 600_000, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
    }  # fmt: skip
    with running_group(tmp_path, 2, **config) as group:
        slave = next(broker for broker in group.brokers if broker is not group.master)
        group.wait_in_sync()
        assert slave.stop() == 0
        with small_disk(slave.store):
            group.restart(slave)
            async with Producer("load", name_server=group.namesrv.address) as producer:
                await first_send(producer)
                await asyncio.to_thread(group.wait_in_sync)
                await switch(group)
                full = group.master
                assert full.directory == slave.directory
                filler = full.store / "filler"
                left = shutil.disk_usage(full.store).free - 2 * SEGMENT
                filler.write_bytes(bytes(left))
                load = Load(producer, per_second=100, padding=random.Random(1).randbytes(20_000))
                running = asyncio.create_task(load.run())
                await asyncio.to_thread(
                    wait_until, lambda: group.master is not full, "another one leads",
                    deadline_s=60,
                )  # fmt: skip
                assert "No space left on device" in full.output()
                await load.goes_on()
                filler.unlink()
                await asyncio.to_thread(group.wait_in_sync, deadline_s=60)
                assert full.is_alive
                await load.goes_on()
                load.stop()
                await running
            wanted = set(load.acknowledged)
            found = await read_all(group.namesrv.address, wanted)
            assert wanted - set(found) == set()
            group.end()
