"""The thread that syncs the log, in Python and compiled: what it answers, in which order, and that
it ends."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.tiers import TIERS
from twinlog.runtime.compiled import load
from twinlog.runtime.disk import DiskSyncError, PosixDisk
from twinlog.runtime.sync_thread import STOP, OpenFile, SyncThread

DEADLINE_S = 30


@pytest.fixture(params=TIERS)
def thread(request: Any, monkeypatch: Any) -> Iterator[SyncThread]:
    if request.param == "pure":
        monkeypatch.setenv("TWINLOG_PURE", "1")
    started = SyncThread()
    yield started
    started.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OpenFile]:
    with open(tmp_path / "file", "wb") as opened:
        yield opened


class NotOpen:
    def fileno(self) -> int:
        return 1 << 20


async def in_time(answer: asyncio.Future[int]) -> int:
    return await asyncio.wait_for(answer, DEADLINE_S)


async def test_a_sync_answers_with_the_number_of_its_error(
    thread: SyncThread, file: OpenFile
) -> None:
    os.write(file.fileno(), b"bytes")
    assert await in_time(thread.sync(file)) == 0
    assert await in_time(thread.sync(NotOpen())) == errno.EBADF
    assert await in_time(thread.sync(file)) == 0


async def test_many_syncs_are_answered_in_their_order(thread: SyncThread, file: OpenFile) -> None:
    answered: list[int] = []
    answers = [thread.sync(file if number % 3 else NotOpen()) for number in range(20)]
    for number, answer in enumerate(answers):
        answer.add_done_callback(lambda _, number=number: answered.append(number))
    errors = await asyncio.wait_for(asyncio.gather(*answers), DEADLINE_S)
    assert answered == list(range(20))
    assert errors == [0 if number % 3 else errno.EBADF for number in range(20)]


async def test_a_file_that_is_closed_while_it_waits_is_not_taken_for_another(
    thread: SyncThread, file: OpenFile, tmp_path: Path
) -> None:
    disk = PosixDisk()
    closed = disk.open(str(tmp_path / "closed"), create=True)
    first, second = thread.sync(file), thread.sync(closed)
    number = closed.fileno()
    closed.close()
    other = disk.open(str(tmp_path / "other"), create=True)
    assert other.fileno() == number
    assert [await in_time(first), await in_time(second)] == [0, errno.EBADF]
    other.close()
    disk.close()


async def test_one_who_has_stopped_waiting_holds_up_nobody(
    thread: SyncThread, file: OpenFile
) -> None:
    left = thread.sync(file)
    next_one = thread.sync(file)
    left.cancel()
    assert await in_time(next_one) == 0


def test_another_loop_has_a_thread_of_its_own(thread: SyncThread, file: OpenFile) -> None:
    async def leave() -> None:
        thread.sync(file)  # The loop ends before the answer.

    async def once() -> int:
        return await in_time(thread.sync(file))

    asyncio.run(leave())
    assert asyncio.run(once()) == 0
    before = threading.active_count()
    assert asyncio.run(once()) == 0
    assert threading.active_count() == before


def test_closing_ends_the_thread_and_gives_back_its_pipes(
    thread: SyncThread, file: OpenFile
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    before = threading.active_count()

    async def begin() -> None:
        thread.sync(file)
        thread.sync(file)
        thread.close()

    for _ in range(3):
        asyncio.run(begin())
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == open_before


async def test_a_failed_sync_of_a_file_says_so(tmp_path: Path) -> None:
    disk = PosixDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    await file.fdatasync_async()
    file.close()
    with pytest.raises(DiskSyncError, match="fdatasync failed") as caught:
        await file.fdatasync_async()
    assert caught.value.errno == errno.EBADF
    disk.close()


@pytest.mark.compiled
def test_the_compiled_thread_needs_no_lock_of_the_interpreter(file: OpenFile) -> None:
    """It answers while another thread runs Python all the time."""
    compiled = load("twinlog.runtime._sync_thread")
    assert compiled is not None
    (woken, wake), (answered, answer) = os.pipe(), os.pipe()
    worker = compiled.Worker(woken, answer, wake, answered)
    running = threading.Thread(target=worker.run)
    poll = ctypes.PyDLL(None).poll  # Called with the lock held.
    look = ctypes.create_string_buffer(struct.pack("=ihh", answered, 1, 0))  # POLLIN
    interval = sys.getswitchinterval()
    running.start()
    sys.setswitchinterval(1000)  # Nobody gets the lock who is not given it.
    try:
        worker.begin(file.fileno())
        assert poll(look, 1, DEADLINE_S * 1000) == 1
        assert worker.take() == 0
    finally:
        sys.setswitchinterval(interval)
        worker.begin(STOP)
        running.join()
        for fd in (woken, wake, answered, answer):
            os.close(fd)
