"""The compiled parts, where they were built: each does what a few Python functions do.

`make setup` builds them beside their sources when there is a C compiler. Without them, or with
TWINLOG_PURE=1 in the environment, everything works the same and takes longer.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("twinlog")


def load(name: str) -> Any | None:
    """The compiled module `name`, or None."""
    if os.environ.get("TWINLOG_PURE", "0") not in ("", "0"):
        return None
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    if _is_stale(Path(spec.origin), name):
        _LOG.warning("%s is older than its source and not used: run `make setup`", spec.origin)
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:  # Of another Python, or another machine.
        _LOG.warning("%s is not used: %s", spec.origin, error)
        return None


def _is_stale(built: Path, name: str) -> bool:
    """In a work tree the source lies beside it, and may have changed since."""
    source = built.with_name(name.rpartition(".")[2] + ".pyx")
    return source.exists() and source.stat().st_mtime > built.stat().st_mtime
