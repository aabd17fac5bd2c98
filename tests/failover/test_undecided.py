"""Transactions that were open when their master died: the next one asks, and it is decided."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.failover_group import Group, first_send, running_group, switch
from twinlog.client import (
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)

TOPIC = "Deals"
TIME_OUT_MS, INTERVAL_MS = 4_000, 1_000
SLACK_S = 8.0
"""For the election, the route and a busy machine; heartbeats of clients are 30 s apart."""


async def kill(group: Group) -> None:
    master = group.master
    await asyncio.to_thread(master.kill)


@pytest.mark.parametrize(
    # After a switch the old master goes on: only a look at the route shows that it leads no more.
    ("how", "route_poll_ms"),
    [(kill, 30_000), (switch, 1_000)],
    ids=["kill", "switch"],
)
async def test_the_next_master_asks_a_producer_that_sends_nothing_any_more(
    tmp_path: Path, how: Callable[[Group], Awaitable[None]], route_poll_ms: int
) -> None:
    asked: dict[bytes, float] = {}

    async def check(message: ReceivedMessage) -> TransactionState:
        body = bytes(message.body)
        asked.setdefault(body, time.monotonic())
        is_kept = body.startswith(b"keep")
        return TransactionState.COMMIT if is_kept else TransactionState.ROLLBACK

    times = {"transactionTimeOut": TIME_OUT_MS, "transactionCheckInterval": INTERVAL_MS}
    with running_group(tmp_path, 2, **times) as group:
        server = group.namesrv.address
        async with (
            Producer("plain", name_server=server) as plain,
            TransactionProducer(
                "tellers", name_server=server, check=check, route_poll_ms=route_poll_ms
            ) as tellers,
        ):
            await first_send(plain)
            await plain.send(Message(TOPIC, b"first"))
            group.wait_in_sync()
            bodies = [b"keep %d" % n for n in range(5)] + [b"drop %d" % n for n in range(5)]
            for body in bodies:
                await tellers.prepare(Message(TOPIC, body))
            began = time.monotonic()
            assert not asked, "they are younger than transactionTimeOut"
            await asyncio.to_thread(group.wait_in_sync)
            await how(group)
            deadline = began + (TIME_OUT_MS + INTERVAL_MS) / 1000 + SLACK_S
            while set(asked) != set(bodies):
                assert time.monotonic() < deadline, f"asked about {len(asked)} of {len(bodies)}"
                await asyncio.sleep(0.05)
            kept = {body for body in bodies if body.startswith(b"keep")}
            assert await delivered(server, kept) == {b"first", *kept}


async def delivered(server: str, wanted: set[bytes]) -> set[bytes]:
    """What a consumer gets, until a second after all that is wanted has come."""
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    async with PullConsumer(
        "judge", name_server=server, consume_from=ConsumeFrom.FIRST_OFFSET
    ) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        while time.monotonic() < deadline:
            batch = await consumer.poll(timeout_ms=1_000)
            found += [bytes(message.body) for message in batch]
            if not batch and wanted <= set(found):
                break
    assert len(found) == len(set(found)), "none comes twice"
    return set(found)
