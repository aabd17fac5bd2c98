"""What one synchronous send costs master and slave, counted: the path of one waiting sender.

The sender waits for each answer before it sends again, so nothing is shared between messages: a
read, a write to the log and a frame on the master; a read, a write to the log and an
acknowledgement on the slave; a read and the answer on the master. Two views of it:

* both brokers in this process: calls and bytecode of what follows from a read or ends a turn.
  Timers are left out, since there are more of them on a slower machine;
* both brokers as processes: reads, writes and wake-ups as the kernel counts them in /proc. What
  timers add is allowed for by the second.

Budgets are what was counted when this was written or last made cheaper; `test_counts.py` says how
they are kept.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from support.counted_calls import BODY, connect, is_ours
from support.ha_load import send_command
from support.local_brokers import Brokers, until
from support.processes import process_group, wait_until
from support.tiers import TIERS
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker
from twinlog.broker.server import Broker
from twinlog.ha.twin.wire import encode_ack
from twinlog.remoting.codec import encode_command

MESSAGES = 150
TOLERANCE = 1.25
ROOTS = frozenset(
    {
        "TrafficInPython.data_received",
        "HAConnection.data_received",
        "MasterLink.get_buffer",
        "MasterLink.buffer_updated",
        "TurnInPython.run",
        # What is called from the compiled forms of the first and of the last.
        "MessageStore.is_accepting",
        "MessageStore._turn_begins",
        "PutReplies.must_wait_more",
        "PutReplies.add_run",
        "_Route.count",
        "MessageStore._end_turn",
        "Watermark.tell_first",
        "Watermark.release",
        "MessageStore._notify_queues",
        "ReputService._run",
        "HAConnection._pump_scheduled",
        "Connection._flush_in_turn",
    }
)
# Both brokers together. A slower machine counts more, as the slave's dispatcher gathers less; these
# are of a slow one.
BUDGET: dict[str, dict[str, float]] = {
    "pure": {"python": 197, "c": 131, "bytecode": 5530},
    "compiled": {"python": 165, "c": 87, "bytecode": 4200},
}
# Of the kernel. Master: request, acknowledgement; log, frame, answer. Slave: frame; log,
# acknowledgement, mark of what is confirmed. A wake-up for each read, unless it was there already.
KERNEL = {
    "master": {"reads": 2, "writes": 3, "wake-ups": 2},
    "slave": {"reads": 1, "writes": 3, "wake-ups": 1},
}
ACK_FRAME_SIZE = len(encode_ack(0, 0))
A_SECOND = 400  # By timers and their threads; 150 to 250 were seen.
KERNEL_TOLERANCE = 1.15


@contextmanager
def path_counted(counts: Counter[str], *, by_bytecode: bool) -> Iterator[None]:
    """Count what happens below ROOTS, and nothing that a timer or a task does."""
    depth = 0

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal depth
        is_counted = is_ours(frame.f_code)
        if event == "call" and is_counted:
            depth += depth > 0 or frame.f_code.co_qualname in ROOTS
            counts["python"] += depth > 0
            if by_bytecode:
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "return" and is_counted:
            depth -= depth > 0
        elif event == "opcode":
            counts["bytecode"] += depth > 0
        elif event == "c_call" and is_counted:
            counts["c"] += depth > 0
        return step if is_counted else None

    start = sys.settrace if by_bytecode else sys.setprofile
    start(step)
    try:
        yield
    finally:
        start(None)


@pytest.fixture(params=TIERS)
def tier(request: Any, monkeypatch: Any) -> str:
    kind: str = request.param
    if kind == "pure":
        monkeypatch.setenv("TWINLOG_PURE", "1")
        use_python(monkeypatch)
    return kind


def use_python(monkeypatch: Any) -> None:
    """What is chosen when a module is imported, in its Python form. Not the base of connections:
    there is one in a process."""
    from twinlog.broker import server
    from twinlog.ha.twin import hot_frames, receiver, sender, wire
    from twinlog.runtime.turn import TurnInPython

    monkeypatch.setattr(server, "Turn", TurnInPython)
    monkeypatch.setattr(receiver, "only_data", hot_frames.only_data_in_python)
    monkeypatch.setattr(receiver, "ack_frame", wire.encode_ack)
    monkeypatch.setattr(sender, "only_ack", hot_frames.only_ack_in_python)
    monkeypatch.setattr(sender, "data_head", hot_frames.data_head_in_python)


@pytest.fixture
async def brokers(tmp_path: Path) -> Any:
    started = Brokers(tmp_path)
    yield started
    await started.stop()


def request() -> bytes:
    return encode_command(send_command(BODY, topic="cost", queue_id=0, KEYS="k", WAIT="true"))


async def send_one_by_one(master: Broker, count: int) -> None:
    connection, transport = connect(master)
    data = request()
    for number in range(1, count + 1):
        connection.data_received(data)
        await transport.answered(number)
    connection.connection_lost(None)


async def test_a_synchronous_send_costs_what_it_did(tier: str, brokers: Brokers) -> None:
    settings: dict[str, Any] = {"twinlog_ha_dialect": "twin"}
    settings["mapped_file_size_commit_log"] = 16 << 20
    master = await brokers.master(**settings)
    slave = await brokers.slave(master, **settings)
    await send_one_by_one(master, 20)
    counts: Counter[str] = Counter()
    with path_counted(counts, by_bytecode=False):
        await send_one_by_one(master, MESSAGES)
    calls = counts.pop("python")
    with path_counted(counts, by_bytecode=True):
        await send_one_by_one(master, MESSAGES)
    counts["python"] = calls
    await until(lambda: slave.store.appended.value == master.store.appended.value)
    seen = {name: round(counts[name] / MESSAGES, 1) for name in BUDGET[tier]}
    wrong = {n: b for n, b in BUDGET[tier].items() if seen[n] > b * TOLERANCE}
    assert not wrong, f"{tier}: above {wrong}; all counts: {seen}"


def unread(connection: Any) -> int:
    """Bytes that wait in the socket under a connection."""
    number = array.array("i", [0])
    transport = connection._transport
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, number)
    return number[0]


async def test_the_slave_acknowledges_before_it_tells_its_followers(brokers: Brokers) -> None:
    """The acknowledgement is in the master's socket by then, whatever came with the data."""
    settings: dict[str, Any] = {"twinlog_ha_dialect": "twin"}
    master = await brokers.master(**settings)
    slave = await brokers.slave(master, **settings)
    await send_one_by_one(master, 5)
    log, seen = slave.store.commit_log, list[int]()
    announce = log.announce_raw

    def announced() -> None:
        seen.append(unread(master.ha.connections[0]))
        announce()

    log.announce_raw = announced  # type: ignore[method-assign]
    await send_one_by_one(master, 10)
    connection = master.ha.connections[0]
    connection.twin.hurry_heartbeat()
    connection._pump()  # Heartbeat and data come in one read.
    await send_one_by_one(master, 1)
    assert len(seen) == 11
    assert min(seen) >= ACK_FRAME_SIZE, seen


# ---- as processes


def kernel_counts(pid: int) -> Counter[str]:
    place = Path(f"/proc/{pid}")
    facts = dict(line.split(": ") for line in place.joinpath("io").read_text().splitlines())
    counts = Counter(reads=int(facts["syscr"]), writes=int(facts["syscw"]))
    for line in place.joinpath("status").read_text().splitlines():  # Of the loop's thread alone.
        if line.startswith("voluntary_ctxt_switches"):
            counts["wake-ups"] = int(line.split()[1])
    return counts


def send_from_outside(master: TwinlogBroker, count: int) -> None:
    data = request()
    with socket.create_connection(("127.0.0.1", master.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        for _ in range(count):
            connection.sendall(data)
            stream.read(struct.unpack(">i", stream.read(4))[0])


def test_a_synchronous_send_needs_few_calls_of_the_kernel(tmp_path: Path) -> None:
    with process_group() as group:
        master = start_twinlog_broker(tmp_path / "m", brokerRole="SYNC_MASTER")
        group.add(master)
        address = f"127.0.0.1:{master.ha_port}"
        slave = start_twinlog_broker(
            tmp_path / "s", brokerRole="SLAVE", brokerId=1, haMasterAddress=address
        )
        group.add(slave)
        wait_until(lambda: "master transfer data" in master.output(), "the slave has joined")
        send_from_outside(master, 50)
        before = {"master": kernel_counts(master.pid), "slave": kernel_counts(slave.pid)}
        began = time.monotonic()
        send_from_outside(master, MESSAGES * 4)
        after = {"master": kernel_counts(master.pid), "slave": kernel_counts(slave.pid)}
        elapsed = time.monotonic() - began
    wrong = {}
    for who, budget in KERNEL.items():
        for name, calls in budget.items():
            seen = after[who][name] - before[who][name]
            if seen > calls * MESSAGES * 4 * KERNEL_TOLERANCE + A_SECOND * elapsed:
                wrong[who, name] = f"{seen / MESSAGES / 4:.2f} a message, budget {calls}"
    assert not wrong, f"{wrong} in {elapsed:.2f} s"
