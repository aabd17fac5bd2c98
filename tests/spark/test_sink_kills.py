"""Sinks and what they write to are killed; raw multisets of the log are compared.

At least once loses nothing, exactly once neither loses nor repeats. Every kill is done to both, so
the one is the control of the other: without the rule the same kills are seen to repeat.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from storefiles import StoreFiles

from support.processes import ProcessGroup, process_group, wait_until
from support.raw_log import raw_bodies, raw_origins
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker, start_twinlog_namesrv
from twinlog.spark.errors import PipelineError
from twinlog.spark.run.faults import VARIABLE
from twinlog.spark.write.sending import Task, send_rows
from twinlog.spark.write.sink import SinkOptions

pytestmark = pytest.mark.timeout(600)
BATCH_ROWS, BATCHES = 300, 12
TRIES = 4
SMALL = {"mappedFileSizeCommitLog": 1 << 24}
ONCE = pytest.mark.parametrize("is_once", [True, False], ids=["exactly-once", "at-least-once"])


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with process_group() as processes:
        yield processes


def wanted_bodies() -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(BATCH_ROWS * BATCHES))


def task(namesrv: str, is_once: bool, before_batch: Callable[[int], None]) -> bool:
    """One attempt of a task; whether it ended well."""
    options = {"nameServer": namesrv, "topic": "rows", "sendTimeoutMs": "1500"}
    options |= {"exactlyOnce": "true"} if is_once else {}

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            before_batch(number)
            first = number * BATCH_ROWS
            rows = [{"body": b"%d" % n} for n in range(first, first + BATCH_ROWS)]
            yield pa.RecordBatch.from_pylist(rows)

    try:
        count = send_rows(SinkOptions.parse(options), batches(), Task(1, "query", 0))
    except PipelineError:
        return False
    assert count == BATCH_ROWS * BATCHES
    return True


def kill_under_task(namesrv: str, is_once: bool, kill_at: int, broker: TwinlogBroker) -> None:
    """Kill the broker before a task's batch `kill_at`.

    An attempt may fail before that (a send that timed out on a busy machine): it is repeated, as
    Spark repeats it, until one has met the kill.
    """
    is_killed = False

    def kill_in_time(number: int) -> None:
        nonlocal is_killed
        if number == kill_at:
            broker.kill()
            is_killed = True

    def attempt() -> bool:
        assert not task(namesrv, is_once, kill_in_time)
        return is_killed

    wait_until(attempt, f"a task that reaches batch {kill_at}")


def finish_task(namesrv: str, is_once: bool) -> None:
    wait_until(lambda: task(namesrv, is_once, lambda _: None), "a task that ends well")


def check(found: Counter[Any], wanted: Counter[Any], is_once: bool) -> None:
    assert set(found) == set(wanted)
    if is_once:
        assert found == wanted
    else:
        assert found > wanted, "the control does not repeat: these kills show nothing"


def start_broker(group: ProcessGroup, directory: Path) -> tuple[str, TwinlogBroker]:
    namesrv = start_twinlog_namesrv(directory / "n")
    group.add(namesrv)
    broker = start_twinlog_broker(directory / "b", namesrv=namesrv.address, **SMALL)
    group.add(broker)
    namesrv.wait_for_text(f"address={broker.address}")
    return namesrv.address, broker


@ONCE
def test_a_broker_that_is_killed_under_a_task(
    group: ProcessGroup, tmp_path: Path, is_once: bool
) -> None:
    namesrv, broker = start_broker(group, tmp_path)
    # Twice in the middle of the rows, then with nothing left to send but the last batch.
    for kill_at in (3, 7, BATCHES - 1):
        kill_under_task(namesrv, is_once, kill_at, broker)
        broker = broker.restart()
        group.add(broker)
    finish_task(namesrv, is_once)
    check(raw_bodies(broker.store, "rows"), wanted_bodies(), is_once)


def start_pair(group: ProcessGroup, directory: Path) -> tuple[str, TwinlogBroker, TwinlogBroker]:
    namesrv = start_twinlog_namesrv(directory / "n")
    group.add(namesrv)
    master = start_twinlog_broker(
        directory / "m", namesrv=namesrv.address, brokerRole="SYNC_MASTER", **SMALL
    )
    group.add(master)
    slave = start_twinlog_broker(
        directory / "s", namesrv=namesrv.address, brokerRole="SLAVE", brokerId=1,
        haMasterAddress=f"127.0.0.1:{master.ha_port}", **SMALL,
    )  # fmt: skip
    group.add(slave)
    return namesrv.address, master, slave


def promote(group: ProcessGroup, slave: TwinlogBroker) -> TwinlogBroker:
    """The slave's store under a master: what an operator does when the master is lost."""
    slave.stop()
    master = slave.restart(brokerRole="ASYNC_MASTER", brokerId=0, haMasterAddress="")
    group.add(master)
    return master


@ONCE
def test_a_master_that_is_lost_under_a_task(
    group: ProcessGroup, tmp_path: Path, is_once: bool
) -> None:
    namesrv, master, slave = start_pair(group, tmp_path)
    # Acknowledged means that the slave has it: wait until it is one.
    wait_until(lambda: task_is_taken(namesrv), "a slave is attached", interval_s=0.2)
    kill_under_task(namesrv, is_once, 5, master)
    broker = promote(group, slave)
    finish_task(namesrv, is_once)
    check(raw_bodies(broker.store, "rows"), wanted_bodies(), is_once)


def task_is_taken(namesrv: str) -> bool:
    """Whether a row is acknowledged by both."""
    options = SinkOptions.parse({"nameServer": namesrv, "topic": "probe", "sendRetries": "0"})
    try:
        return send_rows(options, iter([pa.RecordBatch.from_pylist([{"body": b"x"}])]), Task()) == 1
    except PipelineError:
        return False


# With Spark

SCRIPT = """
import json, sys
from twinlog.spark.jobs.mirror import mirror
source, target, checkpoint, once = sys.argv[1:]
is_once = once == "1"
print(mirror(json.loads(source), target, checkpoint, to_topic="copy", exactly_once=is_once).line())
"""


class Stream:
    """A driver in a process group of its own, stopped at a point by the control file."""

    def __init__(self, directory: Path, source: Path, namesrv: str, is_once: bool) -> None:
        self.directory, self.starts = directory, 0
        self.control, self.log = directory / "control", directory / "driver.log"
        self.checkpoint = directory / "check"
        options = {
            "path": str(source), "subscribe": "orders", "maxRecordsPerPartition": "25",
            "maxOffsetsPerTrigger": "60",
        }  # fmt: skip
        self.argv = [
            sys.executable, "-c", SCRIPT, json.dumps(options), namesrv, str(self.checkpoint),
            str(int(is_once)),
        ]  # fmt: skip
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self, point: str) -> int:
        """Start it and wait until a worker stands at the point; the worker's process id.

        A driver that fails before (a send that timed out on a busy machine) is one more crash: it
        is started again.
        """
        for _ in range(TRIES):
            # A file of its own for each run: a worker may outlive its driver for a moment.
            self.starts += 1
            self.control = self.directory / f"control-{self.starts}"
            self.control.write_text(f"{point} wait")
            self._run({VARIABLE: str(self.control)})
            place = Path(f"{self.control}.pid")
            wait_until(
                lambda place=place: (place.exists() and place.read_text()) or self._has_ended(),
                f"a worker at {point}", deadline_s=180,
            )  # fmt: skip
            if place.exists():
                return int(place.read_text())
            assert self.driver is not None
            assert self.driver.returncode, f"the driver ended well before {point}"
        raise AssertionError(f"no worker came to {point}: {self.log.read_text()[-2000:]}")

    def _run(self, environment: dict[str, str]) -> None:
        with self.log.open("ab") as output:
            self.driver = subprocess.Popen(
                self.argv, env={**os.environ, **environment}, start_new_session=True,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _has_ended(self) -> bool:
        assert self.driver is not None
        return self.driver.poll() is not None

    def close(self) -> None:
        """End a driver that a failing test leaves behind."""
        if self.driver is not None and not self._has_ended():
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()

    def kill(self, worker: int) -> None:
        """SIGKILL of driver, JVM and the worker that waits."""
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        self.driver.wait()

    def end(self, *, is_well: bool | None = None) -> None:
        """Wait for the end of the driver."""
        assert self.driver is not None
        code = self.driver.wait(timeout=300)
        assert is_well is None or (code == 0) == is_well, f"the driver ended with {code}"

    def go_on(self) -> None:
        Path(f"{self.control}.go").touch()

    def finish(self) -> None:
        """A run without faults."""
        for _ in range(TRIES):
            self._run({})
            assert self.driver is not None
            if self.driver.wait(timeout=300) == 0:
                return
        raise AssertionError(f"it does not end: {self.log.read_text()[-2000:]}")


@pytest.fixture
def streams() -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(*arguments: Any) -> Stream:
        made.append(Stream(*arguments))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


def copied(files: StoreFiles) -> Counter[str]:
    return Counter(row["msg_id"] for row in files.rows if row["topic"] == "orders")


@ONCE
@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_driver_worker_and_broker_of_a_stream_are_killed(
    group: ProcessGroup, streams: Callable[..., Stream], tmp_path: Path, is_once: bool
) -> None:
    namesrv, broker = start_broker(group, tmp_path)
    files = StoreFiles(tmp_path / "store")
    stream = streams(tmp_path, files.root, namesrv, is_once)
    for point in ("rows-sending", "rows-sent"):
        files.fill(200)
        stream.kill(stream.start(point))
        os.kill(stream.start(point), signal.SIGKILL)
        stream.end(is_well=False)
    files.fill(200)
    stream.start("rows-sending")
    broker.kill()
    stream.go_on()
    stream.end(is_well=False)
    group.add(broker.restart())
    stream.finish()
    check(raw_origins(broker.store, "copy"), copied(files), is_once)


@ONCE
@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_the_master_of_a_stream_is_lost(
    group: ProcessGroup, streams: Callable[..., Stream], tmp_path: Path, is_once: bool
) -> None:
    namesrv, master, slave = start_pair(group, tmp_path)
    wait_until(lambda: task_is_taken(namesrv), "a slave is attached", interval_s=0.2)
    files = StoreFiles(tmp_path / "store")
    files.fill(300)
    stream = streams(tmp_path, files.root, namesrv, is_once)
    stream.start("rows-sending")
    master.kill()
    stream.go_on()
    stream.end(is_well=False)
    broker = promote(group, slave)
    stream.finish()
    check(raw_origins(broker.store, "copy"), copied(files), is_once)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_mirror_that_is_interrupted_ten_times_gives_equal_topics(
    group: ProcessGroup, streams: Callable[..., Stream], tmp_path: Path, spark: Any
) -> None:
    from twinlog.spark.jobs.mirror import mirror

    namesrv, broker = start_broker(group, tmp_path)
    files = StoreFiles(tmp_path / "store")
    stream = streams(tmp_path, files.root, namesrv, True)
    for number in range(10):
        files.fill(40 + number)
        worker = stream.start(("rows-sending", "rows-sent")[number % 2])
        stream.kill(worker)
        if number == 4:
            stream.finish()
    stream.finish()
    source = {"path": str(files.root), "subscribe": "orders"}
    summary = mirror(
        source, namesrv, stream.checkpoint, to_topic="copy", exactly_once=True,
        verify=True, spark=spark,
    )  # fmt: skip
    assert summary.findings == []
    count = copied(files).total()
    assert (summary.facts["compared"], summary.facts["in_target"]) == (count, count)
    assert raw_origins(broker.store, "copy") == copied(files)


def test_the_checkpoint_of_a_mirror_is_read(tmp_path: Path) -> None:
    from twinlog.spark.jobs.mirror import copied_offsets

    (tmp_path / "offsets").mkdir()
    line = json.dumps({"v": 1, "offsets": {"T": {"b": {"0": 3}}}, "marks": {}})
    (tmp_path / "offsets" / "7").write_text(f"v1\n{{}}\n{line}")
    assert copied_offsets(tmp_path, 7) == {"T": {"b": {"0": 3}}}
    assert copied_offsets(tmp_path, 8) == {}
