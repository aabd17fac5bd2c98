"""`twinlog backup ...`: copies of a store while its broker serves, and stores made from them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import (
    OUTPUTS,
    Column,
    Report,
    Table,
    counted,
    render,
    show_bytes,
    show_time,
    terminal_width,
)
from twinlog.cli.store import Progress
from twinlog.cli.times import parse_time

if TYPE_CHECKING:
    from twinlog.store.integrity.backup import Backups
    from twinlog.store.integrity.manifest import Manifest

ARCHIVE = ".tar.zst"
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="table", help="Form of the output."
)
_PLACE = click.argument("place", metavar="DIR|FILE.tar.zst", type=click.Path(path_type=Path))


@click.group(cls=LazyGroup, short_help="Back up a broker's store, and restore it.")
def backup() -> None:
    """Back up the store of a master or a slave while its broker runs, and restore it."""


@backup.command(
    epilog="Example: twinlog backup create --store /var/lib/twinlog/store /backups/broker-a"
)
@_PLACE
@click.option("--store", "root", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="The broker's storePathRootDir.")  # fmt: skip
@click.option("--commit-log", type=click.Path(exists=True, file_okay=False),
              help="Directory of the log, if it is not below the store.")  # fmt: skip
@_OUTPUT
def create(place: Path, root: Path, commit_log: str | None, output: str) -> int:
    """Copy the present contents of a store.

    In a directory full segments are shared by all backups, so that the next one copies what is new.
    A file is one whole backup, packed with Zstandard.
    """
    if not (root / "commitlog").is_dir() and commit_log is None:
        raise CommandError(f"{root} does not contain a store", NOT_FOUND)
    with _writable(place) as directory, _backups(directory) as backups, _shared(directory, backups):
        manifest = backups.create(str(root), time.time_ns() // 1_000_000, commit_log)
    for path in backups.damaged:
        text = "was copied as it is, and is damaged: see twinlog store verify"
        click.echo(f"twinlog: {path} {text}", err=True)
    return _show(output, [manifest], f"backup {manifest.id} up to offset {manifest.mark}")


@backup.command("list", epilog="Example: twinlog backup list /backups/broker-a -o json")
@_PLACE
@_OUTPUT
def list_command(place: Path, output: str) -> int:
    """List the backups in a directory, oldest first. Exit code 1: some cannot be read."""
    with _readable(place) as directory, _backups(directory) as backups:
        found, broken = backups.find()
        stores = [backups.store_of(manifest) for manifest in found]
    for fault in broken.values():
        click.echo(f"twinlog: {fault}", err=True)
    _show(output, found, "", stores)
    return FAILED if broken else OK


@backup.command(epilog="Example: twinlog backup verify /backups/broker-a")
@_PLACE
@click.option("--id", "name", help="Only this backup; by default all of them.")
@_OUTPUT
def verify(place: Path, name: str | None, output: str) -> int:
    """Check every byte of a backup. Nothing is restored."""
    with _readable(place) as directory, _backups(directory) as backups:
        chosen, broken = ([backups.read(name)], {}) if name else backups.find()
        if not chosen and not broken:
            raise CommandError(f"no backup in {place}", NOT_FOUND)
        rows = [{"id": name, "finding": fault} for name, fault in broken.items()]
        rows += [
            {"id": manifest.id, "finding": fault}
            for manifest in chosen
            for fault in backups.verify(manifest)
        ]
    sentence = counted(len(chosen), "backup is", "backups are") + " sound"
    if rows:
        sentence = counted(len(rows), "place is", "places are") + " damaged"
    columns = [Column("id"), Column("finding")]
    tables = [Table(columns, rows, "findings")] if rows else []
    report = Report(tables, sentence=sentence, is_healthy=not rows)
    click.echo(render(report, output, color=False, width=terminal_width()), nl=False)
    return FAILED if rows else OK


@backup.command(
    epilog="Example: twinlog backup restore /backups/broker-a /var/lib/twinlog/new --to 12:30"
)
@_PLACE
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--id", "name", help="Which backup; by default the newest, if all are of one store.")
@click.option(
    "--to", "until", metavar="TIME", help="Only messages that were stored until this time."
)
@click.option(
    "--to-offset", "offset", metavar="OFFSET", type=click.IntRange(min=0),
    help="Only messages that end at or before this offset of the log.",
)  # fmt: skip
@click.option("--keep-identity", is_flag=True,
              help="Keep the old ids; only when no other broker has them.")  # fmt: skip
@_OUTPUT
def restore(
    place: Path,
    target: Path,
    name: str | None,
    until: str | None,
    offset: int | None,
    keep_identity: bool,
    output: str,
) -> int:
    """Restore a backup into TARGET, an empty directory. Then start a broker on it.

    The restored store gets ids of its own unless --keep-identity is given, so that slaves of the
    old broker do not take it for their master. The first start builds queues and index from the
    log.
    """
    from twinlog.store.integrity.log_end import Until

    bound = Until(time_ms=None if until is None else parse_time(until), offset=offset)
    with _readable(place) as directory, _backups(directory) as backups:
        manifest = backups.read(name) if name else backups.newest()
        if manifest is None:
            raise CommandError(f"no backup in {place}", NOT_FOUND)
        target.mkdir(parents=True, exist_ok=True)
        end = backups.restore(manifest, str(target), keeps_identity=keep_identity, until=bound)
    return _show(output, [manifest], f"restored to {target}, the log ends at {end}")


@backup.command(epilog="Example: twinlog backup remove /backups/broker-a --keep 7")
@click.argument("place", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--keep", type=click.IntRange(min=1), help="Keep the newest N of each store.", metavar="N"
)
@click.option("--id", "name", help="Remove this one.")
@_OUTPUT
def remove(place: Path, keep: int | None, name: str | None, output: str) -> int:
    """Remove backups, and the segments that no other backup in the directory needs."""
    if (keep is None) == (name is None):
        raise CommandError("give either --keep or --id", USAGE)
    if not place.is_dir():
        raise CommandError(f"{place} does not exist", NOT_FOUND)
    with _backups(place) as backups, _alone(place):
        backups.remove_unfinished()
        _, broken = backups.find()
        if broken:
            # What it needs is not known, and may be what another one would take away.
            raise CommandError(f"nothing is removed: {'; '.join(broken.values())}", FAILED)
        gone = backups.all_but(keep) if keep else [backups.read(name or "")]
        count = backups.remove([manifest.id for manifest in gone])
    removed = f"{counted(len(gone), 'backup')} and {counted(count, 'segment')} removed"
    return _show(output, gone, removed)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """While nobody makes, reads or removes backups there."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise CommandError(f"another command is running in {directory}", FAILED) from error
    finally:
        os.close(lock)


@contextlib.contextmanager
def _backups(directory: Path) -> Iterator[Backups]:
    from twinlog.runtime.disk import PosixDisk
    from twinlog.store.errors import StoreError
    from twinlog.store.integrity.backup import Backups

    disk, progress = PosixDisk(), Progress()
    try:
        yield Backups(disk, str(directory), progress.tell)
    except StoreError as error:
        raise CommandError(str(error), FAILED) from error
    except OSError as error:
        where = "" if error.filename else f" ({directory})"
        raise CommandError(f"not done: {error}{where}", FAILED) from error
    finally:
        progress.end()
        disk.close()


@contextlib.contextmanager
def _shared(directory: Path, backups: Backups | None = None) -> Iterator[None]:
    """Several may make and read backups at once; whoever is alone, and may, removes what killed
    ones left."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        if backups is not None:
            with contextlib.suppress(OSError):  # A file system without locks is swept by hand.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                backups.remove_unfinished()
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _writable(place: Path) -> Iterator[Path]:
    """The directory to write to; for a file, one that is packed into it at the end."""
    if not place.name.endswith(ARCHIVE):
        with _errors_named(place):
            place.mkdir(parents=True, exist_ok=True)
        yield place
        return
    if place.exists():
        raise CommandError(f"{place} exists; choose another name", USAGE)
    with _errors_named(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(place) as directory:
        yield directory / "backup"
        packed = directory / place.name
        _run(["tar", "--zstd", "-cf", str(packed), "-C", str(directory / "backup"), "."])
        with packed.open("rb") as file:
            os.fsync(file.fileno())
        packed.rename(place)
        _sync_directory(place.parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextlib.contextmanager
def _readable(place: Path) -> Iterator[Path]:
    if not place.exists():
        raise CommandError(f"{place} does not exist", NOT_FOUND)
    if place.is_dir():
        with _shared(place):
            yield place
        return
    with _temporary(place) as directory:
        target = directory / "backup"
        _run(["tar", "--zstd", "--no-same-owner", "-xf", str(place), "-C", str(target)])
        for path in target.rglob("*"):
            # Whoever made the archive must not choose what else is read, or wait for.
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                name = path.relative_to(target)
                raise CommandError(f"{place} holds {name}, which is not a plain file", FAILED)
        yield target


@contextlib.contextmanager
def _temporary(place: Path) -> Iterator[Path]:
    """A directory next to the archive, with `backup` in it. SIGTERM removes it, too."""
    near = place.parent if os.access(place.parent, os.W_OK) else None  # Else a read-only medium.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with _errors_named(place), tempfile.TemporaryDirectory(dir=near, prefix=".backup-") as name:
        Path(name, "backup").mkdir()
        yield Path(name)


@contextlib.contextmanager
def _errors_named(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"{place}: {error}", FAILED) from error


def _run(command: list[str]) -> None:
    for tool in ("tar", "zstd"):
        if shutil.which(tool) is None:
            raise CommandError(f"{tool} is not installed; write to a directory instead", FAILED)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{command[0]} failed: {done.stderr.strip()}", FAILED)


def _show(
    output: str, manifests: list[Manifest], sentence: str, stores: list[str] | None = None
) -> int:
    rows: list[dict[str, Any]] = [
        {
            "id": manifest.id,
            "created_ms": manifest.created_ms,
            "mark": manifest.mark,
            "bytes": manifest.size,
            "segments": len(manifest.segments),
            "newest_ms": manifest.newest_ms,
            "source": manifest.source,
        }
        for manifest in manifests
    ]
    columns = [
        Column("id"), Column("created_ms", "CREATED", show_time), Column("mark", is_right=True),
        Column("bytes", "SIZE", show_bytes, is_right=True), Column("segments", is_right=True),
        Column("newest_ms", "NEWEST MESSAGE", show_time), Column("source", is_wide=True),
    ]  # fmt: skip
    if stores is not None:
        columns.append(Column("store", is_wide=True))
        for row, store in zip(rows, stores, strict=True):
            row["store"] = store
    report = Report([Table(columns, rows, "backups", empty="no backup")], sentence=sentence)
    click.echo(render(report, output, color=False, width=terminal_width()), nl=False)
    return OK
