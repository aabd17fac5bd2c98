"""Where data lies: local directories, and what `pyarrow.fs` reaches by a URI.

    /data/x, file:///data/x      this machine, or a file system that is mounted on it
    s3, s3a, gs, abfss, hdfs     tables of `archive --format delta|iceberg`, and dead letters

Credentials and endpoints come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...),
which executors on other machines need too. A scheme that nobody here understands is refused: taken
for a relative path it would make a directory of that name and call the work done.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from twinlog.spark.errors import OptionError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")
# What users write, and what Arrow calls it.
REMOTE = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs",
          "abfss": "abfss", "hdfs": "hdfs"}  # fmt: skip


def scheme_of(place: str | Path) -> str:
    """Return the scheme of a place; nothing for a plain path."""
    found = _SCHEME.match(str(place))
    return found[1].lower() if found else ""


def is_local(place: str | Path) -> bool:
    """Say whether a place is a path of this machine.

    Raises:
        OptionError: its scheme is not known.
    """
    scheme = scheme_of(place)
    if scheme in ("", "file"):
        return True
    if scheme in REMOTE:
        return False
    known = ", ".join(sorted({"file", *REMOTE}))
    raise OptionError("BAD_PLACE", f"{place}: the scheme {scheme!r} is not one of {known}")


def local_path(place: str | Path, what: str) -> Path:
    """Return a place that must be a local directory.

    Raises:
        OptionError: it is somewhere else.
    """
    if not is_local(place):
        raise OptionError(
            "BAD_PLACE", f"{what} {place} must be a directory that is mounted here, not a URI"
        )
    if scheme_of(place) == "file":
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(str(place)).path))
    return Path(place)


def open_place(place: str | Path) -> tuple[FileSystem, str]:
    """Return the file system of a place and the path in it."""
    from pyarrow import fs

    if is_local(place):
        return fs.LocalFileSystem(), str(local_path(place, "the place").absolute())
    uri = table_uri(place)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if uri.startswith("s3:") and endpoint:
        parts = urllib.parse.urlsplit(endpoint)
        system = fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme)
        return system, uri.partition("://")[2]
    found: tuple[FileSystem, str] = fs.FileSystem.from_uri(uri)
    return found


def table_uri(place: str | Path) -> str:
    """Return how table libraries want a place: an absolute path, or a URI without Hadoop's a."""
    if is_local(place):
        return str(local_path(place, "the table").absolute())
    scheme = scheme_of(place)
    return REMOTE[scheme] + str(place)[len(scheme) :]
