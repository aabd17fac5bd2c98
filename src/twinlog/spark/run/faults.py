"""Named points at which tests stop a process, to see what a crash there leaves behind.

TWINLOG_SPARK_FAULTS names a control file. While it holds "POINT ACTION", the first process to
reach the point takes the file away (so it acts once), leaves its process id in FILE.pid, and
raises, kills itself, or waits to be killed or until FILE.go exists. Without the variable a point
costs one look-up.
"""

from __future__ import annotations

import os
import signal
import time

VARIABLE = "TWINLOG_SPARK_FAULTS"
WAIT_SECONDS = 120


def is_watched() -> bool:
    """Whether a test may ask for a fault."""
    return VARIABLE in os.environ


def point(name: str) -> None:
    """Stop here if a test asks for it."""
    control = os.environ.get(VARIABLE)
    if not control:
        return
    try:
        with open(control, encoding="utf-8") as file:
            place, _, action = file.read().partition(" ")
        if place != name:
            return
        os.rename(control, f"{control}.taken")
        with open(f"{control}.pid", "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileNotFoundError:
        return
    if action == "raise":
        raise RuntimeError(f"injected at {name}")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end and not os.path.exists(f"{control}.go"):
        time.sleep(0.05)
