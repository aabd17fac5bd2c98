"""The compiled parts, where they were built: each is a faster twin of a few Python functions.

`make setup` builds them beside their sources when there is a C compiler. Without them, or with
TWINLOG_PURE=1 in the environment, everything works the same and takes longer.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def load(name: str) -> Any | None:
    """The compiled module `name`, or None."""
    if os.environ.get("TWINLOG_PURE", "0") not in ("", "0"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
