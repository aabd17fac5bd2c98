"""The pipeline as one archive that workers elsewhere need nothing else but Python for.

    twinlog-env.tar.gz: twinlog/ pyspark_twinlog*/ pyarrow/ numpy/ ... side by side

Spark unpacks it next to each executor (`spark.archives`) and PYTHONPATH names that directory. Their
Python must be of the same minor version and platform as this one, because of the compiled parts.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

NAME = "twinlog_env"
# Needed, and taken along where they are installed.
PACKAGES = ("msgspec", "numpy", "pyarrow", "typing_extensions", "lark", "javaproperties")
OPTIONAL = ("isal", "lz4", "zstandard", "fastavro", "protobuf")
OWN = ("twinlog", "pyspark_twinlog", "pyspark_twinlog_delta")
LEFT_OUT = ("__pycache__", "tests", "include", ".pyx", ".c", ".cpp", ".h", ".pxd", ".a")


def packed(directory: Path | None = None) -> Path:
    """Make the archive, or return the one that was made of the same versions.

    Args:
        directory: where to keep it; a directory of this user in the temporary one by default.
    """
    home = directory or Path(tempfile.gettempdir()) / f"twinlog-spark-{os.getuid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = home / f"{NAME}-{_fingerprint()}.tar.gz"
    if not target.exists():
        temporary = target.with_suffix(f".{os.getpid()}")
        with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
            for name, path in _files():
                archive.add(path, name, recursive=False)
        temporary.replace(target)
    return target


def _own_files() -> Iterator[tuple[str, Path]]:
    for package in OWN:
        root = Path(__import__(package).__path__[0])
        for path in sorted(root.rglob("*")):
            if path.is_file() and not _is_left_out(path):
                yield f"{package}/{path.relative_to(root)}", path


def _files() -> Iterator[tuple[str, Path]]:
    yield from _own_files()
    for package in (*PACKAGES, *OPTIONAL):
        try:
            found = importlib.metadata.files(package) or ()
        except importlib.metadata.PackageNotFoundError:
            if package in PACKAGES:
                raise
            continue
        for entry in found:
            path = Path(str(entry.locate()))
            if ".." not in entry.parts and path.is_file() and not _is_left_out(path):
                yield str(entry), path


def _is_left_out(path: Path) -> bool:
    return path.suffix in LEFT_OUT or any(part in LEFT_OUT for part in path.parts)


def _fingerprint() -> str:
    """Name what is inside: versions of packages, and our own files by size and time."""
    digest = hashlib.sha256(sys.version.encode())
    for package in (*PACKAGES, *OPTIONAL):
        try:
            digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
        except importlib.metadata.PackageNotFoundError:
            continue
    for name, path in _own_files():
        facts = path.stat()
        digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def settings_of(archive: Path) -> dict[str, str]:
    """Return the settings of Spark that give executors the archive."""
    return {
        "spark.archives": f"{archive}#{NAME}",
        "spark.executorEnv.PYTHONPATH": f"./{NAME}",
    }
