"""`twinlogReseed=all`: a slave whose log has nothing in common with its master's starts over.

The whole store is moved aside to `store/twinlog/reseed-TIME/`, nothing is destroyed. It happens at
a start, before the store is opened, so no part of the broker holds what is being moved: whoever
finds out that it is needed leaves a note and restarts. Killed in the middle, the next start goes
on: the note stays until everything is moved.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence

from twinlog.runtime.disk import Disk, make_own_directory, write_atomically

_LOG = logging.getLogger("twinlog.broker")

# The tables too: offsets of another log mean nothing in the new one, and would only move forward.
_MOVED = ("commitlog", "consumequeue", "index", "checkpoint", "abort", "config")
_MOVED_OF_OURS = (
    "identity.json",
    "identity.json.bak",
    "metadata.json",
    "log-start",
    "producers",
    "promotion.json",
    "confirmed",
    "confirmed.mark",
    "digests",
    "format.json",
    "queues",
    "recovery",
    "replicas.json",
    "scrub.json",
)


def _note_path(root: str) -> str:
    return posixpath.join(root, "twinlog", "reseed")


def ask_for_reseed(disk: Disk, root: str, now_ms: int, reason: str) -> None:
    """Leave the note. Its first line is where the old files go."""
    make_own_directory(disk, root)
    text = f"reseed-{now_ms}\n{reason}\n"
    write_atomically(disk, _note_path(root), text.encode())


def reseed_if_asked(disk: Disk, root: str, log_paths: Sequence[str] = ()) -> str | None:
    """Move the old files aside when a note says so; returns where they are.

    `log_paths` are the directories of the commit log. One outside of `root`, on a disk of its own
    perhaps, is renamed where it is.
    """
    path = _note_path(root)
    if not disk.exists(path):
        return None
    name, _, reason = disk.read_bytes(path).decode("utf-8", "replace").partition("\n")
    name = posixpath.basename(name.strip()) or "reseed-unnamed"
    aside = posixpath.join(root, "twinlog", name)
    disk.make_directories(aside)
    disk.fsync_directory(posixpath.join(root, "twinlog"))
    for entry in _MOVED:
        _move(disk, posixpath.join(root, entry), posixpath.join(aside, entry))
    for entry in _MOVED_OF_OURS:
        _move(disk, posixpath.join(root, "twinlog", entry), posixpath.join(aside, entry))
    for directory in log_paths:
        _move(disk, directory, f"{directory}.{name}")
    disk.unlink(path)
    disk.fsync_directory(posixpath.join(root, "twinlog"))
    _LOG.warning("store moved aside to be copied again aside=%s reason=%s", aside, reason.strip())
    return aside


def _move(disk: Disk, source: str, target: str) -> None:
    """Nothing when it is not there: an earlier attempt has moved it."""
    if disk.exists(source):
        disk.rename(source, target)
        # The new name first: between the two a power cut may leave both, never none.
        disk.fsync_directory(posixpath.dirname(target))
        disk.fsync_directory(posixpath.dirname(source))
