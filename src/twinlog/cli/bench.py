"""`twinlog bench pub|sub|latency`: what a cluster does under load, from this machine.

The client is Python and shares the machine with what it measures; compare brokers with `make bench`
instead, whose load generator is not the limit.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session, run_async
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import FAILED
from twinlog.cli.lazy import LazyGroup
from twinlog.runtime.limits import FRAME_SIZE_MAX

if TYPE_CHECKING:
    from twinlog.client.message import Message, SendReceipt
    from twinlog.client.producer.producer import Producer

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
GROUP = "TWINLOG_BENCH"
CHUNK = 1000
BUCKET_MS, BUCKET_GROWTH = 0.1, 1.5  # Of the first row of a histogram, and from row to row.
BAR_WIDTH = 40
OPEN_WAIT_SECONDS = 15.0
OPEN_BREATH = 16
RATE_MAX = 1e9


class _Rate(click.FloatRange):
    """Messages per second; NaN is in no range, which comparing it does not show."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True, max=RATE_MAX)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        rate = super().convert(value, param, ctx)
        if math.isnan(rate):
            self.fail(f"nan is not in the range {self._describe_range()}.", param, ctx)
        return rate


@click.group(cls=LazyGroup, short_help="Measure sending and consuming.")
def bench() -> None:
    """Measure sending, consuming, and the time between the two."""


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank; `ordered` must not be empty."""
    rank = math.ceil(percent / 100 * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def summary(
    name: str, count: int, size: int, seconds: float, times_ms: list[float], failed: int = 0
) -> dict[str, Any]:
    """Rates and percentiles of one run."""
    times_ms.sort()
    result: dict[str, Any] = {
        "bench": name,
        "messages": count,
        "size": size,
        "seconds": round(seconds, 3),
        "messages_per_second": round(count / seconds) if seconds else 0,
        "mebibytes_per_second": round(count * size / seconds / (1 << 20), 2) if seconds else 0.0,
        "failed": failed,
    }
    if times_ms:
        result["latency_ms"] = {
            **{f"p{percent:g}": round(percentile(times_ms, percent), 3) for percent in PERCENTILES},
            "max": round(times_ms[-1], 3),
        }
        result["histogram"] = histogram(times_ms)
    return result


def histogram(times_ms: Sequence[float]) -> list[dict[str, float]]:
    """How many took at most so long, and longer than the row before; the limits grow by half."""
    counts: dict[float, int] = {}
    for value in times_ms:
        step = max(0, math.ceil(math.log(value / BUCKET_MS, BUCKET_GROWTH))) if value > 0 else 0
        upper = round(BUCKET_MS * BUCKET_GROWTH**step, 4)
        counts[upper] = counts.get(upper, 0) + 1
    return [{"to_ms": upper, "count": counts[upper]} for upper in sorted(counts)]


def bars(rows: Sequence[dict[str, float]]) -> list[str]:
    """A histogram for people."""
    total = sum(row["count"] for row in rows)
    largest = max((row["count"] for row in rows), default=1)
    lines, below = [], 0.0
    for row in rows:
        below += row["count"]
        bar = "#" * max(1, round(BAR_WIDTH * row["count"] / largest))
        lines.append(f"{row['to_ms']:>10.2f} ms {row['count']:>9.0f} {100 * below / total:>6.2f} % "
                     f"{bar}")  # fmt: skip
    return lines


def show(result: dict[str, Any], is_json: bool, with_bars: bool = False) -> int:
    if is_json:
        click.echo(json.dumps(result))
    else:
        rate, mib = result["messages_per_second"], result["mebibytes_per_second"]
        click.echo(f"{result['messages']} messages of {result['size']} bytes in "
                   f"{result['seconds']:.2f} s: {rate}/s, {mib} MiB/s")  # fmt: skip
        if "latency_ms" in result:
            cells = "  ".join(f"{name} {value:.2f}" for name, value in result["latency_ms"].items())
            click.echo(f"milliseconds: {cells}")
        if with_bars:
            for line in bars(result.get("histogram", ())):
                click.echo(line)
        if result["failed"]:
            click.echo(f"failed or not acknowledged: {result['failed']}", err=True)
    return FAILED if result["failed"] else 0


class Progress:
    """A bar on standard error, if that is a terminal."""

    def __init__(self, total: int, label: str) -> None:
        self._bar = None
        if sys.stderr.isatty():
            self._bar = click.progressbar(length=total, label=label, file=sys.stderr)
            self._bar.__enter__()

    def add(self, count: int) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


def _load(command: Any) -> Any:
    options = [
        click.argument("topic"),
        click.option("--msgs", "count", default=10_000, show_default=True,
                     type=click.IntRange(min=1), help="Number of messages."),
        click.option("--size", default=1024, show_default=True,
                     type=click.IntRange(1, FRAME_SIZE_MAX), help="Size of each body in bytes."),
        click.option("--json", "is_json", is_flag=True, help="Print one JSON object."),
        click.option("--histogram", "with_bars", is_flag=True, help="Also print a histogram."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@bench.command(epilog="Example: twinlog bench pub orders --msgs 100000 --size 1024")
@_load
@click.option("--in-flight", default=256, show_default=True, type=click.IntRange(min=1),
              help="Sends that wait for an answer at the same time.")  # fmt: skip
@click.option("--batch", is_flag=True, help="Gather messages into batch requests.")
@click.option("--rate", type=_Rate(),
              help="Open loop: this many per second, however long answers take.")  # fmt: skip
@connection_options
def pub(
    session: Session, topic: str, count: int, size: int, is_json: bool, with_bars: bool,
    in_flight: int, batch: bool, rate: float | None,
) -> int:  # fmt: skip
    """Send as fast as answers arrive, and measure the time from send to answer.

    With --rate each send begins when it is due, even if others still wait, and its time counts
    from then. A broker that stops for one second therefore delays every send of that second.
    """
    load = Load(topic, count, size, in_flight, rate)
    result = run_async(session, lambda: _pub(session, load, batch))
    return show(result, is_json, with_bars)


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent, and how: `rate` a second, or `in_flight` at the same time."""

    topic: str
    count: int
    size: int
    in_flight: int = 1
    rate: float | None = None


async def _pub(session: Session, load: Load, batch: bool) -> dict[str, Any]:
    from twinlog.client.producer.producer import Producer

    async with session.admin() as admin:
        await check_topic_exists(admin, load.topic)
    progress = Progress(load.count, "sending")
    linger = 1.0 if batch else None
    async with Producer(
        GROUP, name_server=session.namesrv, linger_ms=linger, compress_over=None,
        **session.client_settings,
    ) as producer:  # fmt: skip
        start = time.monotonic()
        send = _send_all if load.rate is None else _send_open
        times, failed = await send(producer, load, progress)
        seconds = time.monotonic() - start
    progress.close()
    result = summary("pub", load.count, load.size, seconds, times, failed)
    return result if load.rate is None else {**result, "rate_wanted": load.rate}


async def _send_open(producer: Producer, load: Load, progress: Progress) -> tuple[list[float], int]:
    """The time from when each send was due to its answer, and how many failed."""
    from twinlog.client.message import Message

    assert load.rate is not None
    body, times = b"x" * load.size, list[float]()

    def done(due: float) -> None:
        times.append((time.perf_counter() - due) * 1000)
        if len(times) % CHUNK == 0:
            progress.add(CHUNK)

    failed = await send_when_due(
        producer, load.count, load.rate, lambda _: Message(load.topic, body), done
    )
    return times, failed


async def send_when_due(
    producer: Producer,
    count: int,
    rate: float,
    message_of: Callable[[float], Message],
    answered: Callable[[float], None] = lambda due: None,
) -> int:
    """An open loop: each send begins when it is due, and nobody waits for an answer, so a slow one
    delays no other. How many were refused, failed or stayed without an answer."""
    from twinlog.client.errors import ClientError

    failed = 0
    waiting: set[asyncio.Future[SendReceipt]] = set()

    def done(answer: asyncio.Future[SendReceipt], due: float) -> None:
        nonlocal failed
        waiting.discard(answer)
        answered(due)
        failed += answer.exception() is not None or not answer.result().is_acknowledged

    start = time.perf_counter()
    for number in range(count):
        due = start + number / rate
        if (delay := due - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        elif number % OPEN_BREATH == 0:
            await asyncio.sleep(0)  # Late: answers must be read nevertheless.
        try:
            answer = producer.send_nowait(message_of(due))
        except ClientError:
            failed += 1
            continue
        waiting.add(answer)
        answer.add_done_callback(partial(done, due=due))
    if waiting:
        await asyncio.wait(waiting, timeout=OPEN_WAIT_SECONDS)
    return failed + len(waiting)


async def _send_all(producer: Producer, load: Load, progress: Progress) -> tuple[list[float], int]:
    from twinlog.client.errors import ClientError
    from twinlog.client.message import Message

    topic, body, count = load.topic, b"x" * load.size, load.count
    times: list[float] = []
    failed = 0
    left = count

    async def worker() -> None:
        nonlocal left, failed
        while left > 0:
            left -= 1
            began = time.perf_counter()
            try:
                receipt = await producer.send(Message(topic, body))
                failed += not receipt.is_acknowledged
            except ClientError:
                failed += 1
            times.append((time.perf_counter() - began) * 1000)
            if len(times) % CHUNK == 0:
                progress.add(CHUNK)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.in_flight, count)):
            group.create_task(worker())
    progress.add(count % CHUNK)
    return times, failed


@bench.command(epilog="Example: twinlog bench sub orders --msgs 100000")
@_load
@click.option("--group", default=GROUP, show_default=True,
              help="Consumer group; it starts at the first message.")  # fmt: skip
@click.option("--idle", default=10.0, show_default=True,
              help="Give up after this many seconds without a message.")  # fmt: skip
@connection_options
def sub(
    session: Session, topic: str, count: int, size: int, is_json: bool, with_bars: bool,
    group: str, idle: float,
) -> int:  # fmt: skip
    """Consume the messages of a topic, and measure how fast they arrive."""
    result = run_async(session, lambda: _sub(session, topic, count, group, idle))
    return show(result, is_json, with_bars)


async def _sub(session: Session, topic: str, count: int, group: str, idle: float) -> dict[str, Any]:
    from twinlog.client.consumer.consumer_core import ConsumeFrom
    from twinlog.client.consumer.pull_consumer import PullConsumer

    async with session.admin() as admin:
        await check_topic_exists(admin, topic)
    progress = Progress(count, "consuming")
    got = size = 0
    start = last = 0.0
    async with PullConsumer(
        group, name_server=session.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET,
        **session.client_settings,
    ) as consumer:  # fmt: skip
        await consumer.subscribe(topic)
        while got < count:
            batch = await consumer.poll(idle * 1000, min(CHUNK, count - got))
            if not batch:
                break
            last = time.monotonic()
            start = start or last
            got += len(batch)
            size += sum(message.body_size for message in batch)
            progress.add(len(batch))
    progress.close()
    seconds = max(last - start, 1e-9)
    result = summary("sub", got, round(size / got) if got else 0, seconds, [], count - got)
    result["wanted"] = count
    return result


@bench.command(epilog="Example: twinlog bench latency orders --msgs 1000 --rate 200")
@_load
@click.option("--rate", default=100.0, show_default=True, help="Messages per second.",
              type=_Rate())  # fmt: skip
@connection_options
def latency(
    session: Session, topic: str, count: int, size: int, is_json: bool, with_bars: bool, rate: float
) -> int:
    """Send at a steady rate, and measure the time until a message arrives.

    The time counts from when the send was due. Each send begins then, even if answers are late, so
    a broker that stops for one second delays every message of that second.
    """
    result = run_async(session, lambda: _latency(session, topic, count, size, rate))
    return show(result, is_json, with_bars)


async def _latency(
    session: Session, topic: str, count: int, size: int, rate: float
) -> dict[str, Any]:
    from twinlog.client.consumer.pull_consumer import PullConsumer
    from twinlog.client.message import Message
    from twinlog.client.producer.producer import Producer

    async with session.admin() as admin:
        await check_topic_exists(admin, topic)
    run_id = f"bench-{time.time_ns()}"
    times: list[float] = []
    progress = Progress(count, "latency")
    settings = session.client_settings
    consumer = PullConsumer(f"{GROUP}_{time.time_ns()}", name_server=session.namesrv, **settings)
    producer = Producer(GROUP, name_server=session.namesrv, compress_over=None, **settings)
    async with consumer, producer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_end(queue)

        async def receive() -> None:
            while len(times) < count:
                for message in await consumer.poll(5000):
                    if message.tags == run_id:
                        due = float(message.properties["due"])
                        times.append((time.perf_counter() - due) * 1000)
                        progress.add(1)

        def message_of(due: float) -> Message:
            return Message(topic, b"x" * size, tags=run_id, properties={"due": repr(due)})

        start = time.monotonic()
        receiver = asyncio.ensure_future(receive())
        await send_when_due(producer, count, rate, message_of)
        try:
            async with asyncio.timeout(OPEN_WAIT_SECONDS):
                await receiver
        except TimeoutError:
            receiver.cancel()
        seconds = time.monotonic() - start
    progress.close()
    result = summary("latency", len(times), size, seconds, times, count - len(times))
    return {**result, "rate_wanted": rate}
