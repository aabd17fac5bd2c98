"""Points in time as people write them: `10m` ago, `now`, a date, milliseconds since 1970."""

from __future__ import annotations

import re
import time
from datetime import datetime

from twinlog.cli.exit_codes import USAGE, CommandError

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)(?: ago)?\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_APACHE = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})\Z")  # mqadmin's own form.


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parse_duration(text: str) -> float:
    """`500ms`, `2s`, `10m` in seconds; a bare number is seconds."""
    match = _AGO.match(text.strip())
    if match:
        return float(match[1]) * _SECONDS[match[2]]
    try:
        return float(text)
    except ValueError:
        raise CommandError(
            f"{text!r} is no duration", USAGE, hint="write 500ms, 2s, 10m, 3h or 7d"
        ) from None


def parse_time(text: str, *, now: int | None = None) -> int:
    """Milliseconds since 1970."""
    text = text.strip()
    current = now_ms() if now is None else now
    if text == "now":
        return current
    match = _AGO.match(text)
    if match:
        return current - round(float(match[1]) * _SECONDS[match[2]] * 1000)
    if re.fullmatch(r"\d{10,}", text):
        return int(text)
    match = _APACHE.match(text)
    if match:
        text = f"{match[1]}T{match[2]}.{match[3]}"
    try:
        return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise CommandError(
            f"{text!r} is no time",
            USAGE,
            hint="write 10m (ago), now, 2026-11-15T12:00:00 or milliseconds since 1970",
        ) from None
