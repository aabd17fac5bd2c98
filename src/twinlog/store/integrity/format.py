"""Which release wrote the files of `store/twinlog/`, and which may still read them.

`store/twinlog/format.json` holds the version of our own files. Apache's files have no version, and
are what they always were. A release that changes a file of ours in a way that an older one would
misread raises `oldest_reader`; the older one then refuses to start, and says why.

| version | since | what changed |
|---|---|---|
| 1 | before this file | identity, recovery, queues, producers, log-start; no such file |
| 2 | this file | digests/, scrub.json, format.json; version 1 ignores them |
"""

from __future__ import annotations

import posixpath
from typing import Final

import msgspec

from twinlog import __version__
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.errors import StoreError, StoreLayoutError

FORMAT: Final = 2
OLDEST_READER: Final = 1


class StoreFormat(msgspec.Struct, rename="camel"):
    """The content of the file."""

    version: int = 1
    oldest_reader: int = 1
    written_by: str = ""


def read_format(disk: Disk, root: str) -> StoreFormat:
    """Version 1 where there is no file, or it cannot be read: nothing is refused for that."""
    path = _path(root)
    if not disk.exists(path):
        return StoreFormat()
    try:
        return decode_saved(disk.read_bytes(path), StoreFormat)
    except BrokenSealError:
        return StoreFormat()


def check_format(disk: Disk, root: str) -> None:
    """Before the store is opened. Raises StoreLayoutError when it is too new for this release."""
    found = read_format(disk, root)
    if found.oldest_reader > FORMAT:
        raise StoreLayoutError(
            f"the store {root} was written by twinlog {found.written_by} in format "
            f"{found.version}, which needs a release that reads {found.oldest_reader}; this one "
            f"({__version__}) reads {FORMAT}: start that release, or restore a backup"
        )


def write_format(disk: Disk, root: str) -> None:
    """This release has opened the store."""
    wanted, path = encode_saved(StoreFormat(FORMAT, OLDEST_READER, __version__)), _path(root)
    if not disk.exists(path) or disk.read_bytes(path) != wanted:
        try:
            write_atomically(disk, path, wanted)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error}") from error


def _path(root: str) -> str:
    return posixpath.join(root, "twinlog", "format.json")
