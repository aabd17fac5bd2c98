"""Points in time as people write them: `10m ago`, `yesterday 14:00`, a date, milliseconds."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from twinlog.cli.exit_codes import USAGE, CommandError

_UNITS = {
    "ms": 0.001, "millisecond": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0,
    "d": 86_400.0, "day": 86_400.0,
    "w": 604_800.0, "week": 604_800.0,
}  # fmt: skip
_PART = r"(?:\d+(?:\.\d+)?\s*|\ban?\s+)[a-z]+"
_SPAN = re.compile(rf"-?({_PART}(?:(?:\s*,\s*|\s+and\s+|\s*){_PART})*?)(?:\s+ago)?\Z")
_PARTS = re.compile(r"(\d+(?:\.\d+)?|\ban?(?=\s))\s*([a-z]+)")
_APACHE = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})\Z")  # mqadmin's own form.
_DAY = re.compile(r"(today|yesterday)?(?:\s*(?:at\s+)?(\d{1,2}):(\d\d)(?::(\d\d))?)?\Z")
_DAYS_BACK = {None: 0, "today": 0, "yesterday": 1}
ACCEPTED_TIMES = (
    "write now, 10m ago, 2 hours ago, 14:00, yesterday 14:00, 2026-11-15, 2026-11-15 12:00:00 "
    "or seconds (10 digits) or milliseconds since 1970"
)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _span(text: str) -> float | None:
    """`1h30m`, `10 minutes ago` in seconds; None when it is something else."""
    match = _SPAN.match(text.lower())
    if match is None:
        return None
    seconds = 0.0
    for amount, name in _PARTS.findall(match[1]):
        unit = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
        if unit is None:
            return None
        seconds += unit * (1.0 if amount in ("a", "an") else float(amount))
    return seconds


def parse_duration(text: str) -> float:
    """`500ms`, `2s`, `1h30m` in seconds; a bare number is seconds."""
    seconds = _span(text.strip())
    if seconds is not None and not text.strip().startswith("-"):
        return seconds
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CommandError(
            f"{text!r} is not a duration", USAGE, hint="write 500ms, 2s, 10m, 1h30m or 7d"
        )
    return value


def parse_time(text: str, *, now: int | None = None) -> int:
    """Milliseconds since 1970; without a zone, in that of this machine."""
    text = text.strip()
    current = now_ms() if now is None else now
    if text.lower() == "now":
        return current
    seconds = _span(text)
    if seconds is not None:
        return max(0, current - round(seconds * 1000))
    if re.fullmatch(r"[0-9]{10,18}", text):  # What a request can carry.
        # Ten digits are what `date +%s` prints; as milliseconds they would be in spring 1970.
        return int(text) * (1000 if len(text) == 10 else 1)
    try:
        return _day_time(text.lower(), current) or _date(text)
    except (ValueError, OverflowError):
        raise CommandError(f"{text!r} is not a time", USAGE, hint=ACCEPTED_TIMES) from None


def _day_time(text: str, now: int) -> int | None:
    match = _DAY.match(text)
    if match is None or not text:
        return None
    day, hour, minute, second = match.groups()
    moment = datetime.fromtimestamp(now / 1000) - timedelta(days=_DAYS_BACK[day])
    moment = moment.replace(hour=int(hour or 0), minute=int(minute or 0), second=int(second or 0),
                            microsecond=0)  # fmt: skip
    return round(moment.astimezone().timestamp() * 1000)


def _date(text: str) -> int:
    match = _APACHE.match(text)
    if match:
        text = f"{match[1]}T{match[2]}.{match[3]}"
    return round(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
