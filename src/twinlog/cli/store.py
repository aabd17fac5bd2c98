"""`twinlog store ...`: the files of a store, with or without the broker that serves from them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, call, show
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, counted, show_bytes

if TYPE_CHECKING:
    from twinlog.store.integrity.verify import Verification

_PROGRESS_SECONDS = 1.0


@click.group(cls=LazyGroup, short_help="Check the files of a store; give up lost records.")
def store() -> None:
    """Check the files of a store, and give up records that are lost."""


@store.command(
    epilog="Examples: twinlog store verify --deep ~/store; twinlog store verify --online broker-a"
)
@click.argument("place", metavar="PATH|BROKER")
@click.option("--deep", is_flag=True, help="Also check every entry of the queues and of the index.")
@click.option(
    "--online", is_flag=True, help="Let a running broker check its store now, and report."
)
@click.option("--commit-log", type=click.Path(exists=True, file_okay=False),
              help="Directory of the log, if it is not below PATH.")  # fmt: skip
@once_options
def verify(session: Session, place: str, deep: bool, online: bool, commit_log: str | None) -> int:
    """Check that a store is intact. Exit code 0: it is; 1: it is not, and where.

    Offline it reads the files below PATH and changes nothing; a broker may be serving from them.
    With --online a broker walks over its whole store, heals what it can from replicas, and says
    what is left; it is named by its address or its name.
    """
    if online:
        _refuse_offline_options(deep, commit_log)
        return _verify_online(session, place)
    root = Path(place)
    if not root.is_dir():
        raise CommandError(f"{root} is not a directory", NOT_FOUND)
    return _shown(session, _offline(root, deep, commit_log))


@store.command("give-up", epilog="Example: twinlog store give-up /var/lib/twinlog/store --yes")
@click.argument("root", metavar="PATH", type=click.Path(file_okay=False, path_type=Path))
@click.option("--yes", is_flag=True, help="Give them up; without this option they are listed only.")
@click.option("--commit-log", type=click.Path(exists=True, file_okay=False),
              help="Directory of the log, if it is not below PATH.")  # fmt: skip
@once_options
def give_up(session: Session, root: Path, yes: bool, commit_log: str | None) -> int:
    """Give up damaged records of which no copy exists. The broker must be stopped.

    First start the broker with its replicas: what one of them has is healed by the scrub. What is
    left is named and never served, but no slave can copy it. This command puts an empty record in
    its place, which belongs to no queue, and keeps the damaged bytes aside. Messages there are
    lost.
    """
    from twinlog.runtime.clock import SystemClock
    from twinlog.runtime.disk import DiskLockedError, PosixDisk
    from twinlog.store.errors import StoreError
    from twinlog.store.integrity.give_up import GiveUp

    if not root.is_dir():
        raise CommandError(f"{root} is not a directory", NOT_FOUND)
    disk = PosixDisk()
    try:
        lock = disk.lock(str(root / "lock"))
        try:
            work = GiveUp(disk, str(root), commit_log)
            places = work.find()
            for place in places if yes else ():
                work.give_up(place, SystemClock().now_ms())
        finally:
            lock.release()
    except DiskLockedError as error:
        raise CommandError(f"{root} is in use: stop the broker first", FAILED) from error
    except StoreError as error:
        raise CommandError(str(error), NOT_FOUND) from error
    except OSError as error:
        raise CommandError(f"not done: {error}", FAILED) from error
    finally:
        disk.close()
    rows = [{"place": place.text} for place in places]
    done = "given up" if yes else "damaged; nothing was changed, --yes gives them up"
    places_are = counted(len(rows), "place is", "places are")
    sentence = f"{places_are} {done}" if rows else "no record is damaged"
    tables = [Table([Column("place")], rows, "places")] if rows else []
    show(session, Report(tables, sentence=sentence))
    return FAILED if rows and not yes else OK


def _refuse_offline_options(is_deep: bool, log_directory: str | None) -> None:
    for option, is_given in (("--deep", is_deep), ("--commit-log", log_directory is not None)):
        if is_given:
            raise CommandError(
                f"{option} does not go with --online: the broker knows where its files are, and"
                " checks queues and index in the same walk", USAGE,
            )  # fmt: skip


def _shown(session: Session, report: Report) -> int:
    show(session, report)
    return OK if report.is_healthy else FAILED


def _offline(root: Path, is_deep: bool, log_directory: str | None) -> Report:
    from twinlog.runtime.disk import PosixDisk
    from twinlog.store.errors import StoreError
    from twinlog.store.integrity.files import NoLogError
    from twinlog.store.integrity.verify import Verifier

    progress = Progress()
    disk = PosixDisk()
    try:
        verifier = Verifier(disk, str(root), is_deep=is_deep, progress=progress.tell)
        result = verifier.run(log_directory)
    except NoLogError as error:
        raise CommandError(str(error), NOT_FOUND) from error
    except StoreError as error:
        raise CommandError(str(error), FAILED) from error
    except NotADirectoryError as error:
        raise CommandError(f"{error.filename} is a file and must be a directory") from error
    except IsADirectoryError as error:
        raise CommandError(f"{error.filename} is a directory and must be a file") from error
    except OSError as error:
        raise CommandError(f"the store cannot be read: {error}", FAILED) from error
    finally:
        disk.close()
        progress.end()
    for name in _damaged_tables(root):
        result.add(name)
    return _report(result)


def _damaged_tables(root: Path) -> list[str]:
    """Tables of the broker that are no JSON; each has a copy that is used then."""
    from twinlog.remoting import fastjson

    found = []
    for path in sorted(filter(Path.is_file, (root / "config").glob("*.json"))):
        try:
            fastjson.loads(path.read_bytes())
        except ValueError as error:
            found.append(f"{path} is not readable: {error}")
    return found


def _report(result: Verification) -> Report:
    fields: dict[str, Any] = {
        "log_start": result.log_start,
        "log_end": result.log_end,
        "records": result.record_count,
        "digests": result.digest_count,
        "queues": result.queue_count,
        "entries": result.entry_count,
        "index_files": result.index_count,
        "damage": len(result.findings),
    }
    rows = [{"finding": text} for text in result.findings]
    size = show_bytes(result.checked_bytes)
    sentence = f"{counted(result.record_count, 'record')}, {size}: sound"
    if rows:
        sentence = _damaged(rows)
    tables = [Table([Column("finding")], rows, "findings")] if rows else []
    return Report(tables, fields, sentence=sentence, is_healthy=not rows)


def _damaged(rows: list[dict[str, Any]]) -> str:
    return f"{counted(len(rows), 'place is', 'places are')} damaged"


class Progress:
    """Percent and an estimate of the rest, on a terminal's standard error."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._told = self._began
        self._is_shown = sys.stderr.isatty()

    def tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._told < _PROGRESS_SECONDS or not done:
            return
        self._told = now
        left = (now - self._began) * max(0, total - done) / done
        click.echo(
            f"\r{100 * done // max(total, 1)} %, about {left:.0f} s left   ", nl=False, err=True
        )

    def end(self) -> None:
        if self._is_shown and self._told > self._began:
            click.echo("", err=True)


def _verify_online(session: Session, place: str) -> int:
    from twinlog.admin.integrity import FINDINGS, find_broker, found_by, scrub
    from twinlog.client.errors import UsageError

    async def begin(admin: Any) -> tuple[str, dict[str, Any]]:
        try:
            address = await find_broker(admin, place)
        except UsageError as error:
            raise CommandError(str(error), NOT_FOUND) from error
        return address, await scrub(admin, address, begin=True)

    address, status = call(session, begin)
    passes, progress = status["passes"], Progress()
    while status["passes"] == passes:
        time.sleep(0.2)
        status = call(session, lambda admin: scrub(admin, address))
        progress.tell(status["position"] - status["start"], status["end"] - status["start"])
    progress.end()
    rows = [{"finding": text} for text in found_by(status)]
    sentence = f"{address}: {_damaged(rows) if rows else 'sound'}"
    fields = {key: value for key, value in status.items() if key not in FINDINGS}
    tables = [Table([Column("finding")], rows, "findings")] if rows else []
    return _shown(session, Report(tables, fields, sentence=sentence, is_healthy=not rows))
