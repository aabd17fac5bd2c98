"""A store without its log: refused before anything is touched.

Queues, index, checkpoint and tables follow from the log or belong to it. When they are there and
the log is not, it was not deleted by anybody who knew what it is: most often its disk is not
mounted. To go on with an empty log would remove the queues, forget every offset, and leave a store
that fits neither the lost log nor the new one. The same holds for a restore that was interrupted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from twinlog.runtime.disk import Disk
from twinlog.store.errors import StoreLayoutError

RESTORING: Final = "restoring"  # What a restore has not finished yet is below this name.
_WITNESSES: Final = ("consumequeue", "index", "checkpoint", "abort", "config")


def check_log_is_there(disk: Disk, root: str, log_directories: Sequence[str]) -> None:
    """Raise StoreLayoutError when `root` holds a store and none of the log's directories exists.

    An empty root is a fresh start. Apache, too, makes the directory of the log at its first start.
    """
    if any(disk.is_directory(directory) for directory in log_directories):
        return
    if disk.list(posixpath.join(root, RESTORING)):
        raise StoreLayoutError(
            f"{root} holds a restore that was interrupted, and no log: delete everything in it and "
            "call `twinlog backup restore` again"
        )
    paths = {name: posixpath.join(root, name) for name in _WITNESSES}
    found = [name for name, path in paths.items() if _is_used(disk, path)]
    if found:
        raise missing_log(log_directories, f"{root} has {', '.join(found)} of a store")


def missing_log(log_directories: Sequence[str], why: str) -> StoreLayoutError:
    return StoreLayoutError(
        f"the commit log is missing: there is no file in {', '.join(log_directories)}, but {why}. "
        "Nothing was changed. Is its disk mounted, and is storePathCommitLog right? To start with "
        "an empty log, move the rest of the store away, too"
    )


def _is_used(disk: Disk, path: str) -> bool:
    return bool(disk.list(path)) if disk.is_directory(path) else disk.exists(path)
