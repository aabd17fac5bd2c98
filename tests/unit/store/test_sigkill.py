"""A real process, writing as fast as it can, killed at a random moment: nothing acknowledged is
lost. With both flush types, because the page cache survives SIGKILL.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.stores import small_config
from tests.unit.store.test_recovery import opened

from twinlog.message.record import decode_record

ROOT = Path(__file__).parents[3]
ROUNDS = 10  # Of each flush type.


def _run_and_kill(root: Path, flush_type: str, first: int, delay: float) -> list[list[int]]:
    """The acknowledgements of one life of the writer."""
    command = [sys.executable, "-m", "tests.unit.store.writer_process", str(root), flush_type]
    with (root.parent / f"out-{first}").open("w+b") as output:
        process = subprocess.Popen([*command, str(first)], cwd=ROOT, stdout=output)
        try:
            deadline = time.monotonic() + 60
            while output.seek(0, 2) < 100:
                assert process.poll() is None, "the writer ended by itself"
                assert time.monotonic() < deadline, "the writer does not get ready"
                time.sleep(0.005)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        output.seek(0)
        lines = output.read().decode().split("\n")
    # The last line may be cut; the first says that it is ready.
    return [[int(part) for part in line.split()] for line in lines[1:-1]]


@pytest.mark.parametrize("flush_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_every_acknowledged_record_is_there_after_sigkill(tmp_path, flush_type):
    root = tmp_path / "store"
    root.mkdir()
    rng = random.Random(20)
    config = small_config(
        root, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=20_000,
        max_hash_slot_num=1000, max_index_num=5000,
    )  # fmt: skip
    acknowledged: list[list[int]] = []
    for life in range(ROUNDS):
        first = life * 1_000_000
        acknowledged += _run_and_kill(root, flush_type, first, rng.random() * 0.1)
    assert len(acknowledged) > 20 * ROUNDS
    async with opened(config) as (store, report):
        assert not report.was_clean
        for physical_offset, queue_id, queue_offset, number in acknowledged:
            record = store.message_by_offset(physical_offset)
            assert record is not None, (physical_offset, store.appended.value)
            decoded = decode_record(record)
            assert decoded.body == (b"%08d" % number).ljust(number % 300, b".")
            queue = store.queue_table.get("T", queue_id)
            entry = queue.entry(store.queue_table.pool, queue_offset)
            assert entry[:2] == (physical_offset, len(record))
        for physical_offset, _, _, number in acknowledged[:: len(acknowledged) // 200 + 1]:
            found = store.query_message("T", f"{number:032X}", 32, 0, 1 << 62)
            assert physical_offset in found.physical_offsets
