"""Where the lines of logger `twinlog.audit` go in a server: a file of its own, only its owner's.

A thread writes, so a slow or full disk holds up nobody; what does not fit into the queue, or cannot
be written, is dropped and counted, and the count is the next line that can be written. The file is
opened with the first line, put aside at 16 MiB, five of them kept.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import logging.handlers
import os
import queue
from typing import Any

LOGGER = "twinlog.audit"
FILE_SIZE_MAX = 16 * 1024 * 1024
FILE_COUNT_MAX = 5
QUEUE_LENGTH_MAX = 10_000  # A few megabytes.
_LISTENERS: list[logging.handlers.QueueListener] = []


class _Queue(logging.handlers.QueueHandler):
    """Hands lines over to the thread; drops them when it does not keep up."""

    def __init__(self, lines: queue.Queue[Any], file: _File) -> None:
        super().__init__(lines)
        self._file = file

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._file.dropped += 1


class _File(logging.handlers.RotatingFileHandler):
    """The file, mode 0600."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path, maxBytes=FILE_SIZE_MAX, backupCount=FILE_COUNT_MAX, encoding="utf-8", delay=True
        )
        self.dropped = 0

    def _open(self) -> io.TextIOWrapper:
        os.makedirs(os.path.dirname(self.baseFilename), mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        os.fchmod(fd, 0o600)
        return open(fd, "a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        if self.dropped:
            count, self.dropped = self.dropped, 0
            text = f'{{"outcome":"{count} lines could not be written"}}'
            super().emit(logging.makeLogRecord({"name": LOGGER, "msg": text}))
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- logging's name.
        self.dropped += 1
        if self.stream is not None:
            # What is half written must not be tried again with every line that follows.
            stream, self.stream = self.stream, None
            with contextlib.suppress(OSError):
                stream.close()


def write_audit_to(path: str) -> None:
    """From now on the lines of the audit logger go to this file and nowhere else."""
    file = _File(path)
    lines: queue.Queue[Any] = queue.Queue(QUEUE_LENGTH_MAX)
    listener = logging.handlers.QueueListener(lines, file)
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [_Queue(lines, file)]
    logger.propagate = False
    logger.setLevel(logging.INFO)
    listener.start()
    _LISTENERS.append(listener)


@atexit.register
def finish_audit() -> None:
    """Write what is queued; a process that is replaced calls it before."""
    while _LISTENERS:
        _LISTENERS.pop().stop()
