"""The cluster under test: a name server and a broker, of twinlog or (to check the tests) Apache's.

INTEROP_SUBJECT=apache runs every scenario against Apache's own servers: a scenario that fails
there is wrong, whatever twinlog does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.apache import (
    ApacheBroker,
    ApacheNamesrv,
    start_apache_broker,
    start_apache_namesrv,
)
from support.client_support import eventually_async
from support.java_driver import Event
from support.processes import ProcessGroup, process_group
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin import Admin

# By make.
START_NAMESRV: dict[str, Callable[..., ApacheNamesrv | TwinlogNamesrv]] = {
    "apache": start_apache_namesrv,
    "twinlog": start_twinlog_namesrv,
}
START_BROKER: dict[str, Callable[..., ApacheBroker | TwinlogBroker]] = {
    "apache": start_apache_broker,
    "twinlog": start_twinlog_broker,
}
SUBJECT = os.environ.get("INTEROP_SUBJECT", "twinlog")
FILLER = "abcdefghijklmnopqrstuvwxyz0123456789"
# Short, and different enough to tell levels apart. A retry starts at level 3.
DELAY_LEVELS = "1s 2s 1s 1s 1s 1s 3s"
BROKER_CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 20 * 5000,
    "autoCreateTopicEnable": True,
    "enablePropertyFilter": True,
    "messageDelayLevel": DELAY_LEVELS,
    "transactionCheckInterval": 2000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 3,
    "traceTopicEnable": True,
    "waitTimeMillsInSendQueue": 5000,
    "osPageCacheBusyTimeOutMills": 10000,
    "flushConsumerOffsetInterval": 1000,
}

_numbers = itertools.count(1)


def unique(word: str) -> str:
    """A topic or group name that no other test of this session uses."""
    return f"{word}_{next(_numbers)}"


@contextmanager
def apache_of(project: str, directory: Path, **config: object) -> Iterator[str]:
    """Apache's name server and a broker of one version; the name server's address, once the broker
    is registered: that of 5.3 says seconds earlier that it has started."""
    with process_group() as group:
        namesrv = group.add(start_apache_namesrv(directory / "namesrv", project=project))
        group.add(
            start_apache_broker(
                directory / "broker", namesrv=namesrv.address, project=project,
                **{**BROKER_CONFIG, **config},
            )
        )  # fmt: skip
        wait_for_registration(namesrv.address)
        yield namesrv.address


def wait_for_registration(name_server: str) -> None:
    """A broker is ready when it serves; clients find it when it has registered."""
    asyncio.run(_wait_for_registration(name_server))


async def _wait_for_registration(name_server: str) -> None:
    async with Admin(name_server) as admin:

        async def is_registered() -> bool:
            return bool((await admin.cluster()).masters())

        await eventually_async(is_registered, "a registered broker", 60)


@dataclass
class Cluster:
    group: ProcessGroup
    namesrv: ApacheNamesrv | TwinlogNamesrv
    broker: ApacheBroker | TwinlogBroker

    @property
    def address(self) -> str:
        return self.namesrv.address

    def restart_broker(self, **changes: object) -> None:
        self.broker = self.group.add(self.broker.restart(**changes))


def start_cluster(
    group: ProcessGroup,
    directory: Path,
    *,
    namesrv_of: str = SUBJECT,
    broker_of: str = SUBJECT,
    **config: object,
) -> Cluster:
    namesrv = group.add(START_NAMESRV[namesrv_of](directory / "namesrv"))
    values = {**BROKER_CONFIG, **config, "namesrv": namesrv.address}
    broker = group.add(START_BROKER[broker_of](directory / "broker", **values))
    if not values.get("aclEnable"):  # Otherwise somebody has to say who asks.
        wait_for_registration(namesrv.address)
    return Cluster(group, namesrv, broker)


def names(events: list[Event]) -> list[str]:
    return [event["name"] for event in events]


def expected_names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{n}" for n in range(count)]


def check_bodies(events: list[Event], sizes: list[int]) -> None:
    """Every body arrived as it was sent: its size and its CRC follow from its name."""
    for event in events:
        number = int(event["name"].rpartition("-")[2])
        text = event["name"] + ":"
        missing = max(0, sizes[number % len(sizes)] - len(text))
        body = text + (FILLER * (missing // len(FILLER) + 1))[:missing]
        assert event["size"] == len(body), event["name"]
        assert event["crc"] == zlib.crc32(body.encode()), event["name"]


def check_order(events: list[Event]) -> None:
    """Within a queue the messages came in the order of their offsets, without a gap."""
    by_queue: dict[tuple[str, int], list[int]] = {}
    for event in events:
        offsets = by_queue.setdefault((event["broker"], event["queue"]), [])
        if event["offset"] not in offsets[-100:]:
            offsets.append(event["offset"])
    for queue, offsets in by_queue.items():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), queue
