"""`twinlog ha forget`: a stopped master stops waiting for slaves that never return."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, show
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.output import Report
from twinlog.runtime.clock import SystemClock

if TYPE_CHECKING:
    from twinlog.ha.twin.forget import Known
    from twinlog.runtime.config import BrokerConfig
    from twinlog.runtime.disk import Disk


@click.command("forget", epilog="Example: twinlog ha forget -c broker.conf --dry-run")
@click.option("-c", "--configFile", "path", required=True,
              help="The properties file of the stopped broker.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be given up; change nothing.")
@click.option("--force", metavar="BROKER", help="Really do it: type the name of the group.")
@once_options
def forget(session: Session, path: str, dry_run: bool, force: str | None) -> int:
    """Let a stopped broker accept sends again, although slaves that it counted are lost.

    A master that lost power, or whose log ends before what was confirmed, refuses sends until a
    slave has given it the rest. Start every replica that is left first: one of them may have it. If
    none has, this moves the stored confirmed offset and the list of counted slaves aside. The
    broker then continues with what it has, and the rest is lost.
    """
    from twinlog.runtime.disk import DiskLockedError, PosixDisk

    config = _config(path)
    if force is not None and force != config.broker_name:
        text = f"--force {force}: the name of the group is {config.broker_name}"
        raise CommandError(text, USAGE)
    root = os.path.abspath(config.store_path_root_dir)
    disk = PosixDisk()
    try:
        lock = disk.lock(posixpath.join(root, "lock"))
        try:
            return _forget(session, disk, config, root, force is not None and not dry_run, dry_run)
        finally:
            lock.release()
    except DiskLockedError as error:
        raise CommandError(f"{root} is in use: stop the broker first", FAILED) from error
    except OSError as error:
        raise CommandError(f"the store cannot be read: {error}", NOT_FOUND) from error
    finally:
        disk.close()


def _config(path: str) -> BrokerConfig:
    from twinlog.runtime.config import ConfigError, load_broker_config

    try:
        return load_broker_config(path, {}).config
    except ConfigError as error:
        raise CommandError(str(error), USAGE) from error


def _forget(
    session: Session, disk: Disk, config: BrokerConfig, root: str, is_wanted: bool, is_dry: bool
) -> int:
    from twinlog.ha.twin import forget as files

    known = files.look(disk, root, [os.path.abspath(path) for path in config.commit_log_paths])
    aside = files.forget(disk, root, SystemClock().now_ms()) if is_wanted else None
    report = _report(config.broker_name, known, aside)
    show(session, report)
    if aside is None and not is_dry and known.is_something:
        raise CommandError("nothing was changed", FAILED,
                           hint=f"--force {config.broker_name} gives it up")  # fmt: skip
    return 0


def _report(name: str, known: Known, aside: str | None) -> Report:
    if not known.is_something:
        sentence = (
            f"{name} does not wait for any replica: no counted slaves or confirmed bytes are known"
        )
    else:
        slaves = ", ".join(map(str, known.replicas)) or "none"
        sentence = (
            f"{name} was confirmed up to {known.confirmed} and its log ends at {known.log_end};"
            f" counted slaves: {slaves}. {_risk(known)}"
        )
    if aside is not None:
        sentence += f" The files were moved to {aside}."
    return Report(
        [],
        fields={
            "broker": name,
            "confirmed": known.confirmed,
            "log_end": known.log_end,
            "missing_bytes": known.missing_bytes,
            "counted_slaves": list(known.replicas),
            "is_in_doubt": known.is_in_doubt,
            "moved_to": aside,
        },
        sentence=sentence,
        is_healthy=True,
    )


def _risk(known: Known) -> str:
    if known.missing_bytes:
        return f"{known.missing_bytes} bytes that were acknowledged are lost if no slave has them."
    if known.is_in_doubt:
        return (
            "It lost power: what it had acknowledged and not synced is lost if no slave has it, and"
            " nobody here can say how much that is."
        )
    return "Nothing is missing here."
