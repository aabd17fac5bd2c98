"""fdatasync while the loop goes on: one thread that is woken, and answers, through pipes.

Has no counterpart in RocketMQ. A thread that comes back from a system call needs the interpreter's
lock to say so. The loop of a loaded broker gives the lock away for moments only, so that the thread
gets it when `sys.getswitchinterval()` is over: after 5 ms, ten times what the sync takes, and all
who wait for the disk wait for that. The compiled form (`_sync_thread.pyx`) never takes the lock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from typing import Any, Protocol

from twinlog.runtime.compiled import load

_BYTE = b"\0"
STOP = -2  # Instead of a descriptor; a file that is closed has -1.


class OpenFile(Protocol):
    def fileno(self) -> int:
        """The descriptor; -1 once the file is closed."""
        ...


class Worker(Protocol):
    """The thread: one sync at a time."""

    def begin(self, fd: int) -> None:
        """Sync `fd`; STOP: end."""
        ...

    def take(self) -> int:
        """What became of it, once a byte can be read: 0, or the number of the error."""
        ...

    def run(self) -> None:
        """What the thread does until STOP."""
        ...


class PythonWorker:
    """The reference."""

    def __init__(self, woken: int, answer: int, wake: int, answered: int) -> None:
        """Descriptors of the thread (to read, to write), and of its owner."""
        self._woken, self._answer, self._wake, self._answered = woken, answer, wake, answered
        self._fd = STOP
        self._error = 0

    def begin(self, fd: int) -> None:
        self._fd = fd
        os.write(self._wake, _BYTE)

    def take(self) -> int:
        os.read(self._answered, 1)
        return self._error

    def run(self) -> None:
        while os.read(self._woken, 1) and self._fd != STOP:
            try:
                os.fdatasync(self._fd)
                self._error = 0
            except OSError as error:
                self._error = error.errno or errno.EIO
            except ValueError:  # What Python says of the descriptor -1.
                self._error = errno.EBADF
            os.write(self._answer, _BYTE)


class SyncThread:
    """Lives on a loop, begins with the first sync; syncs are done in the order of the calls."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[OpenFile, asyncio.Future[int]]] = deque()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._pipes: list[int] = []

    def sync(self, file: OpenFile) -> asyncio.Future[int]:
        """The number of the error, 0 for none; EBADF if the file was closed before its turn came.

        Its descriptor is asked for only then: by that time another file may have its number.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self.close()
            self._start(loop)
        done: asyncio.Future[int] = loop.create_future()
        self._waiting.append((file, done))
        if len(self._waiting) == 1:
            self._begin()
        return done

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        woken, wake = os.pipe()
        answered, answer = os.pipe()
        self._pipes = [woken, wake, answered, answer]
        compiled: Any = load("twinlog.runtime._sync_thread")
        kind: type[Worker] = PythonWorker if compiled is None else compiled.Worker
        self._worker = kind(woken, answer, wake, answered)  # type: ignore[call-arg]
        self._thread = threading.Thread(
            target=self._worker.run, name="twinlog-fdatasync", daemon=True
        )
        self._thread.start()
        self._loop = loop
        loop.add_reader(answered, self._finished)

    def _begin(self) -> None:
        assert self._worker is not None
        self._worker.begin(self._waiting[0][0].fileno())

    def _finished(self) -> None:
        assert self._worker is not None
        error = self._worker.take()
        _, done = self._waiting.popleft()
        if self._waiting:
            self._begin()
        if not done.done():
            done.set_result(error)

    def close(self) -> None:
        """Wait for the sync that is under way, if any, and end the thread."""
        if self._worker is None or self._thread is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pipes[2])
        if self._waiting:
            self._worker.take()
            self._waiting.clear()
        self._worker.begin(STOP)
        self._thread.join()
        for pipe in self._pipes:
            os.close(pipe)
        self._worker = self._thread = self._loop = None
