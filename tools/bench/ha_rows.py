"""Rows about replication itself: what it costs, how fast an empty slave fills, how late a copy is.

A compiled proxy (`load proxy`) stands between slave and master where a delay is wanted or where the
slave's acknowledgements are to be timed.
"""

from __future__ import annotations

import bisect
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import clusters
import pair_rows
from clusters import MAKES, PAIRS, QUEUES
from harness import Context, Metric, Row, Subject

from support.processes import ProcessGroup, wait_until

_PAIR = struct.Struct(">qq")
_COPY_BYTES = 800_000_000
_SHAPES = ((128, 16, 16), (1024, 16, 16), (1024, 1, 1))


def _seconds(context: Context) -> float:
    return max(2.0, 3.0 * min(1.0, context.scale))


# What waiting for the slave costs


def _sync_cost(make: str, size: int, connections: int, depth: int) -> Subject:
    """One SYNC_MASTER pair; without WAIT a send is answered as an ASYNC_MASTER does."""

    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, "SYNC_MASTER", context.directory, scale=context.scale)
        common = {
            "addr": pair.master.address, "topic": f"cost{size}", "size": size, "queues": QUEUES,
            "conns": connections, "depth": depth, "seconds": _seconds(context),
        }  # fmt: skip
        rates = {
            name: clusters.run_load("send", **common, wait=wait)["msg_s"]
            for name, wait in (("async", False), ("sync", True))
        }
        return {**rates, "ratio": rates["sync"] / rates["async"]}

    return run


def _sync_cost_row(size: int, connections: int, depth: int) -> Row:
    label = f"{size} B" if size < 1024 else f"{size // 1024} KiB"
    return Row(
        f"sync-cost-{size}-{connections}x{depth}",
        f"sync against async on one pair, {label}, {connections} x {depth}",
        [
            Metric("async", "msg/s without WAIT", "higher"),
            Metric("sync", "msg/s with WAIT", "higher"),
            Metric("ratio", "sync of async", "higher"),
        ],
        {make: _sync_cost(make, size, connections, depth) for make in MAKES},
    )


# A pair with a proxy in the middle


class ProxiedPair:
    """Master, proxy, slave. The slave may be started later, and again."""

    def __init__(
        self, make: str, directory: Path, *, delay_ms: float = 0, **config: object
    ) -> None:
        self._group = ProcessGroup()
        if make == "twinlog":  # The master's service port, which says it, is not next to the proxy.
            config["twinlogHADialect"] = "twin"
        self._make, self._directory, self._config = make, directory, config
        self.reports = directory / "reports"
        directory.mkdir(parents=True, exist_ok=True)
        self.master = clusters.start_broker(make, directory / "master", **config)
        self._group.add(self.master)
        self.proxy = subprocess.Popen(
            [
                clusters.load_generator(), "proxy", "-addr=127.0.0.1:0", f"-delay={delay_ms}",
                f"-target=127.0.0.1:{self.master.ha_port}", f"-reports={self.reports}",
            ],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.proxy.stdout is not None
        self.proxy_address = self.proxy.stdout.readline().strip()

    def start_slave(self, *, wait: bool = True) -> Any:
        config = {**self._config, "brokerRole": "SLAVE", "brokerId": 1}
        self.slave = clusters.start_broker(
            self._make, self._directory / "slave", wait=wait, haMasterAddress=self.proxy_address,
            **config,
        )  # fmt: skip
        return self._group.add(self.slave)

    def wait_sync(self) -> None:
        wait_until(
            lambda: clusters.try_send(self.master.port) == 0, "sends are acknowledged",
            deadline_s=120,
        )  # fmt: skip

    def stop(self) -> None:
        self._group.kill_all()
        self.proxy.kill()
        self.proxy.wait()
        assert self.proxy.stdout is not None
        self.proxy.stdout.close()


def _kept(context: Context, make: str, delay_ms: float = 0, **config: object) -> ProxiedPair:
    """The pair of this subject, made by its first round."""
    if "pair" not in context.state:
        pair = ProxiedPair(make, context.directory / "pair", delay_ms=delay_ms, **config)
        context.state["pair"] = pair
        pair.start_slave()
        pair.wait_sync()
        seconds = clusters.warm_up_seconds(make, context.scale)
        clusters.run_load("send", addr=pair.master.address, topic="warmup", seconds=seconds)
    found: ProxiedPair = context.state["pair"]
    return found


def _stop(context: Context) -> None:
    for name in ("pair", "master"):
        if name in context.state:
            part = context.state.pop(name)
            part.stop() if name == "pair" else part.kill()


def _proxied_sends(make: str, delay_ms: float) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        pair = _kept(context, make, delay_ms, brokerRole="SYNC_MASTER")
        rates = {}
        for senders in (1, 64):
            report = clusters.run_load(
                "send", addr=pair.master.address, topic="far", size=1024, conns=senders, depth=1,
                seconds=_seconds(context),
            )  # fmt: skip
            rates[f"rate_{senders}"] = report["msg_s"]
        return rates

    return run


def _delay(make: str) -> Subject:
    """From the reply of an async send to the slave's report that covers it, at half of capacity."""

    def run(context: Context) -> Mapping[str, float]:
        pair = _kept(context, make, brokerRole="ASYNC_MASTER")
        common = {"addr": pair.master.address, "topic": "late", "size": 1024, "queues": QUEUES}
        if "capacity" not in context.state:
            report = clusters.run_load("send", **common, conns=16, depth=16, seconds=3)
            context.state["capacity"] = report["msg_s"]
        replies = context.directory / "replies"
        rate = context.state["capacity"] / 2
        clusters.run_load(
            "send", **common, conns=16, depth=64, rate=rate, seconds=_seconds(context),
            replies=replies,
        )  # fmt: skip
        time.sleep(1)  # The last reports, and the proxy's buffer.
        delays = _delays(_pairs(replies), _pairs(pair.reports))
        return {
            "offered": rate,
            "p50": delays[len(delays) // 2],
            "p99": delays[int(len(delays) * 0.99)],
        }

    return run


def _pairs(file: Path) -> list[tuple[int, int]]:
    data = file.read_bytes()
    return list(_PAIR.iter_unpack(data[: len(data) - len(data) % _PAIR.size]))


def _delays(replies: list[tuple[int, int]], reports: list[tuple[int, int]]) -> list[float]:
    """Milliseconds, sorted; a report that came before the reply is no delay."""
    offsets = [offset for _, offset in reports]
    delays = []
    for replied_ns, offset in replies:
        index = bisect.bisect_right(offsets, offset)
        if offset >= 0 and index < len(reports):
            delays.append(max(0.0, (reports[index][0] - replied_ns) / 1e6))
    if not delays:
        raise RuntimeError(f"no report covers any of {len(replies)} replies")
    return sorted(delays)


# An empty slave


def _fill(context: Context, make: str, size: int, **config: object) -> Any:
    """A master whose log, one file, holds messages of `size` bytes; `last` is its last record."""
    if "master" in context.state:
        return context.state["master"]
    master = clusters.start_broker(make, context.directory / "master", **config)
    context.state["master"] = master
    file = master.store / "commitlog" / f"{0:020d}"
    last = sent = 0
    while last < _COPY_BYTES * min(1.0, context.scale):
        report = clusters.run_load(
            "send", addr=master.address, topic="fill", size=size, depth=8, seconds=1, queues=QUEUES
        )
        sent += int(report["messages"])
        last = clusters.last_record(file, last)
    context.state.update(last=last, sent=sent)
    return master


def _copy(
    context: Context, make: str, master: Any, address: str, **config: object
) -> dict[str, float]:
    """One slave from its start to the last byte and the last consume queue entry."""
    directory = context.directory / "slave"
    shutil.rmtree(directory, ignore_errors=True)
    last = context.state["last"]
    cpu = _cpu_s(master.pid)
    started = time.perf_counter()
    slave = clusters.start_broker(
        make, directory, wait=False, brokerRole="SLAVE", brokerId=1, haMasterAddress=address,
        **config,
    )  # fmt: skip
    try:
        file = slave.store / "commitlog" / f"{0:020d}"
        first = clusters.timed(lambda: clusters.size_at(file, 0), started)
        end = clusters.timed(lambda: clusters.size_at(file, last), started)
        cpu = _cpu_s(master.pid) - cpu
        queues = slave.store / "consumequeue" / "fill"
        dispatched = clusters.timed(lambda: _entries(queues) >= context.state["sent"], started)
    finally:
        slave.kill()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "first_byte": first,
        "rate": last / 1e6 / max(end - first, 1e-3),
        "master_cpu": cpu * 1e3 / (last / 1e6),
        "dispatch_rate": context.state["sent"] / max(dispatched - first, 1e-3),
        "dispatch_after": max(0.0, dispatched - end),
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _entries(topic: Path) -> int:
    """Entries of all queues of a topic: up to the first one of size 0, found by halving."""
    return sum(_file_entries(file) for file in topic.glob("*/*")) if topic.is_dir() else 0


def _file_entries(file: Path) -> int:
    low, high = 0, file.stat().st_size // 20
    with file.open("rb") as stream:
        while low < high:
            middle = (low + high) // 2
            stream.seek(middle * 20 + 8)
            if stream.read(4) in (b"", b"\0\0\0\0"):
                high = middle
            else:
                low = middle + 1
    return low


def _copy_subject(make: str, size: int, **slave_config: object) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        master = _fill(context, make, size)
        return _copy(context, make, master, f"127.0.0.1:{master.ha_port}", **slave_config)

    return run


def _cp(size: int) -> Subject:
    """`cp` of the same number of bytes on the same disk."""

    def run(context: Context) -> Mapping[str, float]:
        source, target = context.directory / "source", context.directory / "target"
        bytes_wanted = int(_COPY_BYTES * min(1.0, context.scale))
        if not source.exists():
            with source.open("wb") as stream:
                for _ in range(bytes_wanted // 1_000_000):
                    stream.write(bytes(1_000_000))
        target.unlink(missing_ok=True)
        started = time.perf_counter()
        subprocess.run(["cp", str(source), str(target)], check=True)
        return {"rate": source.stat().st_size / 1e6 / (time.perf_counter() - started)}

    return run


def _far_copy(delay_ms: float) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        master = _fill(context, "twinlog", 16 * 1024)
        if "proxy" not in context.state:
            process = subprocess.Popen(
                [
                    clusters.load_generator(), "proxy", "-addr=127.0.0.1:0", f"-delay={delay_ms}",
                    f"-target=127.0.0.1:{master.ha_port}",
                ],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stdout is not None
            context.state["proxy"] = process
            context.state["address"] = process.stdout.readline().strip()
        address = context.state["address"]
        copied = _copy(context, "twinlog", master, address, twinlogHADialect="twin")
        return {"rate": copied["rate"]}

    return run


def _stop_proxy(context: Context) -> None:
    _stop(context)
    if "proxy" in context.state:
        process = context.state["proxy"]
        process.kill()
        process.wait()
        process.stdout.close()


_COPY_METRICS = [
    Metric("first_byte", "s from the slave's start", "lower"),
    Metric("rate", "MB/s of commit log", "higher"),
    Metric("master_cpu", "ms of master per MB", "lower"),
    Metric("dispatch_rate", "messages/s into consume queues", "higher"),
    Metric("dispatch_after", "s from the last byte to the last entry", "lower"),
]


def _copy_row(dialect: str, size: int) -> Row:
    return Row(
        f"ha-copy-{dialect}-{size}",
        f"empty slave, {dialect} dialect, log of {size // 1024} KiB messages",
        _COPY_METRICS,
        {
            "twinlog": _copy_subject("twinlog", size, twinlogHADialect=dialect),
            "apache": _copy_subject("apache", size),
            "cp": _cp(size),
        },
        cleanup=_stop,
    )


ROWS = [
    *(_sync_cost_row(*shape) for shape in _SHAPES),
    *(
        Row(
            f"ha-durable-{connections}x{depth}",
            f"send, SYNC_MASTER and SYNC_FLUSH on both, 1 KiB, {connections} x {depth}",
            pair_rows._SEND_METRICS,
            {
                make: pair_rows._send(make, "SYNC_MASTER+SYNC_FLUSH", 1024, connections, depth)
                for make in MAKES
            },
        )
        for connections, depth in ((16, 16), (1, 1))
    ),
    *(
        Row(
            f"ha-far-{delay}ms",
            f"sync sends, slave {delay} ms away each way, 1 KiB",
            [
                Metric("rate_1", "msg/s, 1 sender", "higher"),
                Metric("rate_64", "msg/s, 64 senders", "higher"),
            ],
            {make: _proxied_sends(make, delay) for make in MAKES},
            cleanup=_stop,
        )
        for delay in (0, 2)
    ),
    Row(
        "ha-delay",
        "async reply to the slave's covering report, half of capacity, 1 KiB",
        [
            Metric("offered", "msg/s"),
            Metric("p50", "ms", "lower"),
            Metric("p99", "ms", "lower"),
        ],
        {make: _delay(make) for make in MAKES},
        cleanup=_stop,
    ),
    _copy_row("twin", 16 * 1024),
    _copy_row("classic", 16 * 1024),
    _copy_row("twin", 1024),
    Row(
        "ha-copy-far",
        "empty slave through a proxy, twin dialect: 0 ms, 2 ms each way",
        [Metric("rate", "MB/s of commit log", "higher")],
        {"2 ms": _far_copy(2), "0 ms": _far_copy(0)},
        cleanup=_stop_proxy,
    ),
]
