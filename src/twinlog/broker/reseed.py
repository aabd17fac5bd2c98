"""`twinlogReseed=all`: a slave whose log has nothing in common with its master's starts over.

The whole store is moved aside to `store/twinlog/reseed-TIME/`, nothing is destroyed. It happens at
a start, before the store is opened, so no part of the broker holds what is being moved: whoever
finds out that it is needed leaves a note and restarts. Killed in the middle, the next start goes
on: the note stays until everything is moved.
"""

from __future__ import annotations

import logging
import posixpath

from twinlog.runtime.disk import Disk, write_atomically

_LOG = logging.getLogger("twinlog.broker")

_MOVED = ("commitlog", "consumequeue", "index", "checkpoint", "abort")


def _note_path(root: str) -> str:
    return posixpath.join(root, "twinlog", "reseed")


def ask_for_reseed(disk: Disk, root: str, now_ms: int, reason: str) -> None:
    """Leave the note. Its first line is where the old files go."""
    disk.make_directories(posixpath.join(root, "twinlog"))
    text = f"reseed-{now_ms}\n{reason}\n"
    write_atomically(disk, _note_path(root), text.encode())


def reseed_if_asked(disk: Disk, root: str) -> str | None:
    """Move the old files aside when a note says so; returns where they are."""
    path = _note_path(root)
    if not disk.exists(path):
        return None
    name, _, reason = disk.read_bytes(path).decode("utf-8", "replace").partition("\n")
    aside = posixpath.join(root, "twinlog", name.strip() or "reseed-unnamed")
    disk.make_directories(aside)
    for entry in _MOVED:
        source = posixpath.join(root, entry)
        if disk.exists(source):
            disk.rename(source, posixpath.join(aside, entry))
    for leftover in ("identity.json", "metadata.json", "log-start", "producers"):
        source = posixpath.join(root, "twinlog", leftover)
        if disk.exists(source):
            disk.rename(source, posixpath.join(aside, leftover))
    disk.fsync_directory(aside)
    disk.fsync_directory(root)
    disk.unlink(path)
    disk.fsync_directory(posixpath.join(root, "twinlog"))
    _LOG.warning("store moved aside to be copied anew aside=%s reason=%s", aside, reason.strip())
    return aside
