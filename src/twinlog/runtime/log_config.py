"""Log lines of a server: level, plain text or JSON, standard error or a file that is rotated.

Keys `twinlogLogLevel`, `twinlogLogFormat`, `twinlogLogFile`, `twinlogLogFileSize` and
`twinlogLogFileCount` of broker.conf and namesrv.conf. TWINLOG_LOG_LEVEL wins over the file.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Protocol

_PLAIN = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
_DATE = "%Y-%m-%d %H:%M:%S"


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    PLAIN = "plain"
    JSON = "json"


class LogSettings(Protocol):
    """The keys as both configurations have them."""

    twinlog_log_level: LogLevel
    twinlog_log_format: LogFormat
    twinlog_log_file: str
    twinlog_log_file_size: int
    twinlog_log_file_count: int


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MESSAGE_LENGTH_MAX = 8192  # A name of a peer can have 256 KiB.


class PlainFormatter(logging.Formatter):
    """One line a record, whatever a peer calls itself: it cannot write lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        text = record.message[:MESSAGE_LENGTH_MAX]
        if _CONTROL.search(text) is not None:
            text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        record.message = text
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object a line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage()[:MESSAGE_LENGTH_MAX],
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def reopen() -> None:
    """Open every log file again by its name: whoever rotates logs has moved the old one away."""
    for handler in _file_handlers():
        handler.acquire()
        try:
            if handler.stream is not None:
                handler.stream.close()
            handler.stream = handler._open()
        finally:
            handler.release()


def _file_handlers() -> Iterator[logging.FileHandler]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            yield from (h for h in logger.handlers if isinstance(h, logging.FileHandler))


def configure(settings: LogSettings, environment: Mapping[str, str]) -> None:
    """Set up logging for this process. Raises OSError when the file cannot be opened."""
    handler: logging.Handler
    if settings.twinlog_log_file:
        handler = logging.handlers.RotatingFileHandler(
            settings.twinlog_log_file, maxBytes=settings.twinlog_log_file_size,
            backupCount=settings.twinlog_log_file_count, encoding="utf-8",
            errors="backslashreplace",
        )  # fmt: skip
    else:
        handler = logging.StreamHandler(sys.stderr)
    is_json = settings.twinlog_log_format is LogFormat.JSON
    handler.setFormatter(JsonFormatter() if is_json else PlainFormatter(_PLAIN, _DATE))
    logging.basicConfig(handlers=[handler], force=True)
    given = environment.get("TWINLOG_LOG_LEVEL", "").upper()
    level = given if given in LogLevel.__members__ else settings.twinlog_log_level.value
    logging.getLogger("twinlog").setLevel(level)
