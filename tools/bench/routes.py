"""`make bench-routes`: what a large cluster costs one name server, measured against its process.

Brokers register with their topics, send their heartbeats and register again; clients ask for
routes; connections are opened and stay. Each kind of work is measured for itself, as CPU time of
the name server for one request, and added up to what BROKER_GROUPS groups of a master and a slave,
TOPICS topics and CLIENTS clients ask of it in the poll period of RocketMQ's clients and brokers,
which is 30 s.

The registrations are all made: the tables that are asked have their full size. Of the clients only
CONNECTIONS are connected, and their memory is taken for that of the others; requests come over 32
connections, as fast as they are answered.

Then MEMBERS consumers of one group change who they are, at a broker of their own
(`rebalances.py`): the name server has no part in that.

Environment: BROKER_GROUPS, TOPICS, CLIENTS, TOPICS_A_CLIENT, CONNECTIONS, REQUESTS, MEMBERS; OUT is
a file for the figures as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import clusters
import harness
import rebalances

from support.processes import process_group
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
    encode_registration,
)
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand

PERIOD_S = 30
HEARTBEATS_A_SECOND = 1  # Of a broker, to a twinlog name server.
_IN_FLIGHT = 16
_BEATING = 200


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class Line:
    """One connection: requests leave in runs, and their answers are counted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.codes: dict[int, int] = {}

    @classmethod
    async def open(cls, address: str) -> Line:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, requests: Sequence[bytes]) -> None:
        self._writer.write(b"".join(requests))
        for _ in requests:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
            header = json.loads(answer[4 : 4 + (struct.unpack(">i", answer[:4])[0] & 0xFFFFFF)])
            self.codes[header["code"]] = self.codes.get(header["code"], 0) + 1

    def close(self) -> None:
        self._writer.close()


def topic_name(number: int) -> str:
    return f"orders-of-region-{number:06d}"


def names_of(group: int, groups: int, topics: int) -> list[str]:
    """Each topic is in one group; a group without one has the first."""
    return [topic_name(number) for number in range(group, topics, groups)] or [topic_name(0)]


def broker_fields(group: int, broker_id: int) -> dict[str, str]:
    port = 10_000 + 4 * (group % 10_000) + 2 * broker_id
    host = f"10.{broker_id}.{group // 250}.{group % 250 + 1}"
    return {
        "brokerName": f"broker-{group}", "brokerAddr": f"{host}:{port}", "clusterName": "large",
        "haServerAddr": f"{host}:{port + 1}", "brokerId": str(broker_id),
    }  # fmt: skip


def registration(group: int, broker_id: int, names: Sequence[str], version: int) -> bytes:
    table = {name: TopicConfig(name, 4, 4) for name in names}
    wrapper = TopicConfigSerializeWrapper(DataVersion(version, 1), table)
    body = encode_registration(RegisterBrokerBody(wrapper, []), compressed=True)
    header = {**broker_fields(group, broker_id), "compressed": "true"}
    header["bodyCrc32"] = str(body_crc32(body))
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
    return encode_command(command)


def heartbeat(group: int, broker_id: int) -> bytes:
    header = broker_fields(group, broker_id)
    return encode_command(RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header))


def route_of(name: str) -> bytes:
    return encode_command(
        RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
    )


class Meter:
    """CPU time of a process for each of some requests."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    async def of(self, lines: Sequence[Line], requests: Iterator[bytes], count: int) -> float:
        """Microseconds for one request, of `count` that are asked over all lines at once."""
        before, done = clusters.usages([self._pid]), 0

        async def ask(line: Line) -> None:
            nonlocal done
            while done < count:
                run = [next(requests) for _ in range(min(_IN_FLIGHT, count - done))]
                done += len(run)
                await line.ask(run)

        await asyncio.gather(*(ask(line) for line in lines))
        return clusters.usage_since(before)[self._pid].cpu_s * 1e6 / count


def cycle(made: Sequence[bytes]) -> Iterator[bytes]:
    while True:
        yield from made


async def measure(address: str, pid: int) -> dict[str, Any]:
    groups, topics = setting("BROKER_GROUPS", 1_000), setting("TOPICS", 100_000)
    count, meter = setting("REQUESTS", 20_000), Meter(pid)
    figures: dict[str, Any] = {"groups": groups, "topics": topics}
    brokers = [(group, broker_id) for group in range(groups) for broker_id in (0, 1)]
    lines = [await Line.open(address) for _ in range(32)]
    began, empty = time.monotonic(), clusters.usages([pid])[pid].anonymous_mb
    first = [
        registration(group, broker_id, names_of(group, groups, topics), 1)
        for group, broker_id in brokers
    ]
    figures["register_us"] = await meter.of(lines, cycle(first), len(first))
    figures["registered_s"] = time.monotonic() - began
    figures["tables_mb"] = clusters.usages([pid])[pid].anonymous_mb - empty
    figures["register_again_us"] = await meter.of(lines, cycle(first), len(first))
    routes = [route_of(topic_name(number * 37 % topics)) for number in range(min(topics, 5_000))]
    figures["route_us"] = await meter.of(lines, cycle(routes), count)
    figures |= await connections(address, pid)
    # Last, and of a few brokers only: from its first heartbeat on a broker that is silent for 3 s
    # is gone, with its routes and connection, and on a busy machine a round of all takes as long.
    beats = [heartbeat(group, broker_id) for group, broker_id in brokers[:_BEATING]]
    figures["heartbeat_us"] = await meter.of(lines, cycle(beats), count)
    codes: dict[int, int] = {}
    for line in lines:
        for code, number in line.codes.items():
            codes[code] = codes.get(code, 0) + number
        line.close()
    assert set(codes) == {0}, f"answers were refused: {codes}"
    return figures | whole(figures)


async def connections(address: str, pid: int) -> dict[str, float]:
    """Memory of a client that is connected and has asked once."""
    count = setting("CONNECTIONS", 2_000)
    before = clusters.usages([pid])[pid].anonymous_mb
    opened = [await Line.open(address) for _ in range(count)]
    for line in opened:
        await line.ask([route_of(topic_name(0))])
    used = clusters.usages([pid])[pid].anonymous_mb - before
    for line in opened:
        line.close()
    return {"connections": count, "connection_kb": used * 1e3 / count}


def whole(figures: dict[str, Any]) -> dict[str, float]:
    """What all of them ask of the name server, in CPU seconds per second and in memory."""
    clients, each = setting("CLIENTS", 100_000), setting("TOPICS_A_CLIENT", 3)
    brokers = 2 * figures["groups"]
    cores = {
        "routes": clients * each / PERIOD_S * figures["route_us"] / 1e6,
        "registrations": brokers / PERIOD_S * figures["register_again_us"] / 1e6,
        "heartbeats": brokers * HEARTBEATS_A_SECOND * figures["heartbeat_us"] / 1e6,
    }
    return {
        "clients": clients,
        "topics_a_client": each,
        **{f"cores_for_{name}": cost for name, cost in cores.items()},
        "cores": sum(cores.values()),
        "memory_mb": figures["tables_mb"] + clients * figures["connection_kb"] / 1e3,
    }


def main() -> int:
    harness.explain_if_asked(__doc__)
    with tempfile.TemporaryDirectory() as directory, process_group() as group:
        server = start_twinlog_namesrv(Path(directory))
        group.add(server)
        figures = asyncio.run(measure(server.address, server.pid))
        broker = group.add(start_twinlog_broker(Path(directory) / "broker"))
        members = asyncio.run(
            rebalances.measure(broker.address, broker.pid, setting("MEMBERS", 200))
        )
        share = rebalances.whole(
            members, figures["clients"], figures["topics_a_client"], figures["groups"]
        )
        figures["rebalance"] = members | share
    text = json.dumps(figures, indent=2)
    if out := os.environ.get("OUT"):
        Path(out).write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
