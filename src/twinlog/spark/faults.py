"""Named points at which tests stop a process, to see what a crash there leaves behind.

With TWINLOG_SPARK_FAULT=point:marker the first process to reach the point makes the file `marker`
and waits to be killed; with point:marker:raise it raises. Without the variable a point costs one
dictionary look-up.
"""

from __future__ import annotations

import os
import time

WAIT_SECONDS = 120


def point(name: str) -> None:
    """Stop here if a test asks for it."""
    wanted = os.environ.get("TWINLOG_SPARK_FAULT")
    if not wanted:
        return
    place, marker, *action = wanted.split(":")
    if place != name:
        return
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if action == ["raise"]:
        raise RuntimeError(f"injected at {name}")
    time.sleep(WAIT_SECONDS)
