"""The walk over entries that a pull makes, compiled: `queue_scan.py` has the Python form."""

from collections.abc import Callable
from typing import Any

from twinlog.runtime.disk import FileBytes

def gather(
    entries: bytes,
    segment: FileBytes,
    base: int,
    log_min: int,
    log_max: int,
    recent_from: int,
    recent: tuple[int, int],
    old: tuple[int, int],
    wanted: Any,
    checked: tuple[Callable[[Any], int], bytes | None, int, int] | None,
) -> tuple[list[Any], int, int, int, bool] | None: ...
