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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session, run_async
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import FAILED
from twinlog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from twinlog.client.producer.producer import Producer

PERCENTILES = (50.0, 95.0, 99.0, 99.9)
GROUP = "TWINLOG_BENCH"
CHUNK = 1000


@click.group(cls=LazyGroup, short_help="Measure sending and consuming.")
def bench() -> None:
    """Measure sending, consuming and the time from one to the other."""


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
    return result


def show(result: dict[str, Any], is_json: bool) -> int:
    if is_json:
        click.echo(json.dumps(result))
    else:
        rate, mib = result["messages_per_second"], result["mebibytes_per_second"]
        click.echo(f"{result['messages']} messages of {result['size']} bytes in "
                   f"{result['seconds']:.2f} s: {rate}/s, {mib} MiB/s")  # fmt: skip
        if "latency_ms" in result:
            cells = "  ".join(f"{name} {value:.2f}" for name, value in result["latency_ms"].items())
            click.echo(f"milliseconds: {cells}")
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
                     type=click.IntRange(min=1), help="How many messages."),
        click.option("--size", default=1024, show_default=True, type=click.IntRange(min=1),
                     help="Bytes of each body."),
        click.option("--json", "is_json", is_flag=True, help="One JSON object."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@bench.command(epilog="Example: twinlog bench pub orders --msgs 100000 --size 1024")
@_load
@click.option("--in-flight", default=256, show_default=True, type=click.IntRange(min=1),
              help="Sends that wait for an answer at the same time.")  # fmt: skip
@click.option("--batch", is_flag=True, help="Gather messages into batch requests.")
@connection_options
def pub(
    session: Session, topic: str, count: int, size: int, is_json: bool, in_flight: int, batch: bool
) -> int:
    """Send as fast as answers come; the time from send to answer."""
    result = run_async(session, lambda: _pub(session, topic, count, size, in_flight, batch))
    return show(result, is_json)


async def _pub(
    session: Session, topic: str, count: int, size: int, in_flight: int, batch: bool
) -> dict[str, Any]:
    from twinlog.client.producer.producer import Producer

    async with session.admin() as admin:
        await check_topic_exists(admin, topic)
    progress = Progress(count, "sending")
    linger = 1.0 if batch else None
    async with Producer(
        GROUP, name_server=session.namesrv, linger_ms=linger, compress_over=None,
        **session.client_settings,
    ) as producer:  # fmt: skip
        start = time.monotonic()
        times, failed = await _send_all(producer, topic, count, size, in_flight, progress)
        seconds = time.monotonic() - start
    progress.close()
    return summary("pub", count, size, seconds, times, failed)


async def _send_all(
    producer: Producer, topic: str, count: int, size: int, in_flight: int, progress: Progress
) -> tuple[list[float], int]:
    from twinlog.client.errors import ClientError
    from twinlog.client.message import Message

    body = b"x" * size
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
        for _ in range(min(in_flight, count)):
            group.create_task(worker())
    progress.add(count % CHUNK)
    return times, failed


@bench.command(epilog="Example: twinlog bench sub orders --msgs 100000")
@_load
@click.option("--group", default=GROUP, show_default=True, help="Starts at the first message.")
@click.option("--idle", default=10.0, show_default=True, help="Give up after this many seconds.")
@connection_options
def sub(
    session: Session, topic: str, count: int, size: int, is_json: bool, group: str, idle: float
) -> int:
    """Consume messages that are there; how fast they come."""
    result = run_async(session, lambda: _sub(session, topic, count, group, idle))
    return show(result, is_json)


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
@click.option("--rate", default=100.0, show_default=True, help="Messages per second.")
@connection_options
def latency(session: Session, topic: str, count: int, size: int, is_json: bool, rate: float) -> int:
    """Send at a steady rate and consume; the time from send to arrival."""
    result = run_async(session, lambda: _latency(session, topic, count, size, rate))
    return show(result, is_json)


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
                        sent = float(message.properties["sent"])
                        times.append((time.perf_counter() - sent) * 1000)
                        progress.add(1)

        start = time.monotonic()
        receiver = asyncio.ensure_future(receive())
        for number in range(count):
            delay = start + number / rate - time.monotonic()
            if delay > 0:
                await asyncio.sleep(delay)
            stamp = {"sent": repr(time.perf_counter())}
            await producer.send(Message(topic, b"x" * size, tags=run_id, properties=stamp))
        try:
            async with asyncio.timeout(15):
                await receiver
        except TimeoutError:
            receiver.cancel()
        seconds = time.monotonic() - start
    progress.close()
    return summary("latency", len(times), size, seconds, times, count - len(times))
