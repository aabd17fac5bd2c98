"""The compiled parts, where they were built: each does what a few Python functions do.

`make setup` builds them next to their sources when there is a C compiler. Without them, or with
TWINLOG_PURE=1 in the environment, everything works the same and takes longer.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import posixpath
import sys
from typing import Any

_LOG = logging.getLogger("twinlog")

# Every compiled part there is: a test compares the list with the sources.
PARTS = (
    "twinlog.broker.pull._pull_lane",
    "twinlog.broker.put._reply_writer",
    "twinlog.broker.put._send_lane",
    "twinlog.broker.put._send_properties",
    "twinlog.broker.transaction._end_lane",
    "twinlog.client.producer._run",
    "twinlog.ha.twin._hot_frames",
    "twinlog.message._hashing",
    "twinlog.remoting._traffic",
    "twinlog.runtime._sync_thread",
    "twinlog.runtime._turn",
    "twinlog.spark.decode._decode",
    "twinlog.store.index._index",
    "twinlog.store.log._appender",
    "twinlog.store.log._batch",
    "twinlog.store.queue._gather",
    "twinlog.store.recovery._scan",
)


def is_pure_asked() -> bool:
    """Whether the environment asks for the Python reference."""
    return os.environ.get("TWINLOG_PURE", "0") not in ("", "0")


_refused: set[str] = set()
"""Parts that were built and could not be imported."""


def missing_parts() -> list[str]:
    """The parts that this process does without, by name."""
    return [name for name in PARTS if name in _refused or not _is_usable(name)]


def is_work_tree(missing: list[str]) -> bool:
    """Whether the sources of these parts are here, which no installation has."""
    folders = [os.path.join(path, "") for path in sys.path]
    sources = [name.replace(".", "/") + ".pyx" for name in missing]
    return any(os.path.exists(folder + source) for folder in folders for source in sources)


def code_tier() -> str:
    """What runs here, in one word or two: what start lines, status and metrics say."""
    missing = len(missing_parts())
    if missing == 0:
        return "compiled"
    return "pure" if missing == len(PARTS) else "partly-compiled"


def load(name: str) -> Any | None:
    """The compiled module `name`, or None."""
    origin = _origin(name)
    if origin is None:
        return None
    if _is_stale(origin, name):
        _LOG.warning("%s is older than its source and not used: run `make setup`", origin)
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as error:
        # Of another Python or machine; or built against another form of a part that it uses.
        _refused.add(name)
        _LOG.warning("%s is not used: %s", origin, error)
        return None


def _origin(name: str) -> str | None:
    """Where the built part lies, unless there is none or it is not wanted."""
    if is_pure_asked():
        return None
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin


def _is_usable(name: str) -> bool:
    origin = _origin(name)
    return origin is not None and not _is_stale(origin, name)


def _is_stale(built: str, name: str) -> bool:
    """In a work tree the source lies next to it, and may have changed since. Every command comes
    here, so this does without pathlib."""
    source = posixpath.join(posixpath.dirname(built), name.rpartition(".")[2] + ".pyx")
    return os.path.exists(source) and os.path.getmtime(source) > os.path.getmtime(built)
