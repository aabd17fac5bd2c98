"""`twinlog debug bundle`: one archive for somebody who helps, without secrets.

Status and settings come from every server of the cluster. Logs, stacks and a short profile come
from the processes of `twinlog up` on this machine: a server writes its stacks to its log when it is
asked by SIGUSR1; twenty of them within a second are a profile.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import tarfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session, call
from twinlog.cli.exit_codes import FAILED, CommandError
from twinlog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.cli.local_cluster import Node
    from twinlog.cli.output import Report

LOG_BYTES_MAX = 2 << 20
STACKS = 20
STACK_STEP_SECONDS = 0.05
STACK_WAIT_SECONDS = 5.0
METRICS_SECONDS = 5.0
_NAMES = "secret|password|passwd|token|credential"
_SECRET = re.compile(rf"(?i)({_NAMES}|private)")
_WORD = rf"(?:{_NAMES})[\w.-]*"
# What may stand before a secret, and the secret itself: all of a quoted text, or up to a blank.
_IN_TEXT = [
    re.compile(rf"(?i)({_WORD}[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s&\"']+)"),
    re.compile(rf"(?i)(--[\w-]*{_WORD}\s+)(\"[^\"]*\"|'[^']*'|\S+)"),
    re.compile(r"(?i)((?:authorization\s*[=:]\s*(?:bearer|basic)?|bearer)\s+)(\S+)"),
    re.compile(r"(\w://[^\s/:@]*:)([^\s/@]+)(?=@)"),
]
_SETTING = re.compile(rf"(?im)^([^#\n=:]*(?:{_NAMES})[^\n=:]*[=:]).*$")
_FRAME = re.compile(r'  File "([^"]+)", line \d+ in (\S+)')
HIDDEN = "******"


@click.group(cls=LazyGroup, short_help="Collect status, logs and metrics for a support request.")
def debug() -> None:
    """Collect status, logs and metrics for a support request."""


@debug.command(epilog="Example: twinlog debug bundle --out problem.tar.gz")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The file to write (twinlog-debug-TIME.tar.gz).")  # fmt: skip
@click.option("--dir", "directory", type=click.Path(file_okay=False, path_type=Path),
              help="The local cluster whose logs and stacks are taken.")  # fmt: skip
@connection_options
def bundle(session: Session, out: Path | None, directory: Path | None) -> int:
    """Write one archive with what a support request needs.

    It has the status, settings without secrets, metrics, logs, stacks and a profile. If something
    cannot be collected, `manifest.json` in the archive says so.
    """
    file = out or Path(f"twinlog-debug-{datetime.now():%Y%m%d-%H%M%S}.tar.gz")
    collected = Bundle()
    _about_machine(collected)
    collected.try_to("cluster", lambda: call(session, lambda admin: _ask(collected, admin)))
    for node in _local_nodes(directory):
        _about_node(collected, node)
    try:
        collected.write(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}", FAILED) from error
    click.echo(f"{file}: {len(collected.files)} files, {file.stat().st_size} bytes")
    for what, why in collected.problems.items():
        click.echo(f"twinlog: not included: {what}: {why}", err=True)
    return 0


class Bundle:
    """Files by name, and what could not be had."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: dict[str, str] = {}

    def add(self, name: str, value: Any) -> None:
        """Text as it is, anything else as JSON; secrets are made unreadable."""
        if isinstance(value, str):
            text = hide_secrets(value)
        else:
            text = json.dumps(without_secrets(value), indent=2, default=str, ensure_ascii=False)
        self.files[name] = text.encode()

    def try_to(self, what: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except (CommandError, OSError, ValueError) as error:
            self.problems[what] = str(error)

    def write(self, file: Path) -> None:
        manifest = {"files": sorted(self.files), "problems": self.problems}
        self.add("manifest.json", manifest)
        stem = file.name.removesuffix(".tar.gz").removesuffix(".tgz")
        # Readable by its owner only: what is secret to somebody is not always called a secret.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, data in sorted(self.files.items()):
                entry = tarfile.TarInfo(f"{stem}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))


def hide_secrets(text: str) -> str:
    """A text in which what looks like a secret is unreadable: too much rather than too little."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\g<1>{HIDDEN}", text)
    return text


def without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: HIDDEN if _SECRET.search(str(key)) and item else without_secrets(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return hide_secrets(value) if isinstance(value, str) else value


# This machine


def _about_machine(collected: Bundle) -> None:
    from twinlog import __version__
    from twinlog.cli.version import surroundings

    facts: dict[str, Any] = {"twinlog": __version__, **surroundings(), "time": time.time()}
    facts["cpus"], facts["load"] = os.cpu_count(), os.getloadavg()
    collected.add("machine.json", facts)
    for name in ("/proc/meminfo", "/proc/self/limits"):
        collected.try_to(name, partial(_add_file, collected, name))


def _add_file(collected: Bundle, name: str) -> None:
    collected.add(f"machine/{Path(name).name}.txt", Path(name).read_text())


# The cluster


async def _ask(collected: Bundle, admin: Admin) -> None:
    from twinlog.cli.admin.broker import broker_report
    from twinlog.cli.admin.cluster import health_report
    from twinlog.cli.admin.ha import ha_report
    from twinlog.cli.doctor import examine

    await _report(collected, "health", health_report(admin))
    await _report(collected, "brokers", broker_report(admin, None))
    await _report(collected, "replication", ha_report(admin, None))
    await _report(collected, "doctor", examine(admin, None))
    await _tables(collected, admin)
    await _servers(collected, admin)


async def _report(collected: Bundle, name: str, asked: Any) -> None:
    from twinlog.client.errors import ClientError

    try:
        report: Report = await asked
    except (ClientError, CommandError) as error:
        collected.problems[name] = str(error)
        return
    collected.add(f"cluster/{name}.json", report.data)


async def _tables(collected: Bundle, admin: Admin) -> None:
    from twinlog.admin import groups, topics
    from twinlog.client.errors import ClientError

    try:
        collected.add("cluster/topics.json", await topics.list_topics(admin))
        found = await groups.list_groups(admin)
        collected.add("cluster/groups.json", {a: sorted(t) for a, t in found.values.items()})
    except ClientError as error:
        collected.problems["topics and groups"] = str(error)


async def _servers(collected: Bundle, admin: Admin) -> None:
    """Settings and statistics of each server, and what its metrics port says."""
    from twinlog.admin import brokers
    from twinlog.admin.client import gather

    addresses = (await admin.cluster()).addresses()
    configs = await gather(addresses, lambda a: brokers.broker_config(admin, a))
    runtime = await gather(addresses, lambda a: brokers.broker_runtime(admin, a))
    for address, values in configs.values.items():
        collected.add(f"config/{_name(address)}.json", values)
        port = values.get("metricsPromExporterPort", "")
        host = address.rpartition(":")[0]
        metrics = partial(_metrics, collected, host, port, address)
        collected.try_to(f"metrics of {address}", metrics)
    for address, values in runtime.values.items():
        collected.add(f"runtime/{_name(address)}.json", values)
    name_servers = await brokers.name_server_config(admin)
    for address, values in name_servers.values.items():
        collected.add(f"config/namesrv-{_name(address)}.json", values)
    for found in (configs, runtime, name_servers):
        collected.problems.update({a: str(error) for a, error in found.failures.items()})


def _metrics(collected: Bundle, host: str, port: str, address: str) -> None:
    if not port or port == "0":
        raise ValueError("no metrics port")
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=METRICS_SECONDS) as answer:
        collected.add(f"metrics/{_name(address)}.txt", answer.read().decode("utf-8", "replace"))


def _name(address: str) -> str:
    return re.sub(r"[^\w.-]", "_", address)


# Processes of `twinlog up`


def _local_nodes(directory: Path | None) -> list[Node]:
    from twinlog.cli.local import default_directory
    from twinlog.cli.local_cluster import ClusterError, load_cluster

    try:
        found = load_cluster(directory or default_directory())
    except ClusterError:
        return []
    return [] if found is None else found.nodes


def _about_node(collected: Bundle, node: Node) -> None:
    process = node.process()
    if process is not None and _answers_signal(process.pid):
        collected.try_to(f"stacks of {node.name}", lambda: _stacks(collected, node, process.pid))
    else:
        collected.problems[f"stacks of {node.name}"] = "it is not running, or is too old to say"
    collected.try_to(f"log of {node.name}", lambda: _log(collected, node))
    for file in sorted(Path(node.directory).glob("*.conf")):
        collected.try_to(str(file), partial(_conf, collected, node, file))


def _log(collected: Bundle, node: Node) -> None:
    with node.log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES_MAX))
        collected.add(f"logs/{node.name}.log", log.read().decode("utf-8", "replace"))


def _conf(collected: Bundle, node: Node, file: Path) -> None:
    # To the end of the line: a password may have blanks, commas and quotes.
    settings = _SETTING.sub(rf"\g<1>{HIDDEN}", file.read_text())
    collected.add(f"config/{node.name}-{file.name}", settings)


def _answers_signal(pid: int) -> bool:
    """Whether SIGUSR1 is caught: it would end a process that does not know it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    match = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def _stacks(collected: Bundle, node: Node, pid: int) -> None:
    start = node.log_path.stat().st_size
    for _ in range(STACKS):
        os.kill(pid, signal.SIGUSR1)
        time.sleep(STACK_STEP_SECONDS)
    text = _written(node.log_path, start)
    collected.add(f"stacks/{node.name}.txt", text)
    collected.add(f"profile/{node.name}.txt", profile(text))


def _written(path: Path, start: int) -> str:
    """What came to a log since; the last stack may take a moment."""
    deadline = time.monotonic() + STACK_WAIT_SECONDS
    while True:
        with path.open("rb") as log:
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        if text.count("(most recent call first)") >= STACKS or time.monotonic() > deadline:
            return text
        time.sleep(STACK_STEP_SECONDS)


def profile(stacks: str) -> str:
    """Of each function, in how many stacks it was at work itself, and in how many at all."""
    alone: Counter[str] = Counter()
    among: Counter[str] = Counter()
    samples = re.split(r"^(?:Stack|Current thread|Thread) .*$", stacks, flags=re.MULTILINE)[1:]
    for sample in samples:
        frames = [f"{_short(file)} {name}" for file, name in _FRAME.findall(sample)]
        alone.update(frames[:1])
        among.update(set(frames))
    lines = [f"{len(samples)} stacks", "  itself  in all  function"]
    order = sorted(among, key=lambda frame: (-alone[frame], -among[frame], frame))
    lines += (f"{alone[frame]:8}{among[frame]:8}  {frame}" for frame in order)
    return "\n".join(lines) + "\n"


def _short(file: str) -> str:
    parts = Path(file).parts
    return "/".join(parts[-3:]) if "twinlog" in parts else parts[-1]
