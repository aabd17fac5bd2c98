"""How long a controlled group takes no sends when something happens to its master.

    python tools/failover_gaps.py --fault kill --replicas 2 --times 10
    python tools/failover_gaps.py --fault pause --replicas 3 --role ASYNC_MASTER

Real processes of this checkout under a load of `--rate` sends per second by a client that looks for
a new route on an error. Prints one JSON line: each gap (the longest time without an
acknowledgement), percentiles, and how many acknowledged messages were lost. `--results FILE`
appends the line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.failover_group import Group, Load, first_send, read_all, running_group, switch
from support.twinlog_servers import TwinlogBroker
from twinlog.client import Producer

SETTLE_S = 30


async def kill(group: Group, load: Load) -> None:
    master = group.master
    master.kill()
    await load.goes_on(within_s=SETTLE_S)
    group.restart(master)


async def stop(group: Group, load: Load) -> None:
    master = group.master
    await asyncio.to_thread(master.stop)
    await load.goes_on(within_s=SETTLE_S)
    group.restart(master)


async def pause(group: Group, load: Load) -> None:
    master = group.master
    master.suspend()
    await asyncio.sleep(8)
    master.resume()
    await load.goes_on(within_s=SETTLE_S)


async def planned(group: Group, load: Load) -> None:
    await switch(group)
    await load.goes_on(within_s=SETTLE_S)


async def both(group: Group, load: Load) -> None:
    """All replicas die; the gap counts from the moment when the last is back."""
    for broker in list(group.brokers):
        broker.kill()
    for broker in list(group.brokers):
        group.restart(broker)
    for broker in group.brokers:
        await asyncio.to_thread(broker.wait_for_text, "twinlog broker ready")
    load.answered_s = time.monotonic()
    load.new_gap()
    await load.goes_on(within_s=SETTLE_S)


async def controller(group: Group, load: Load) -> None:
    """The controller dies with the master and is back after three seconds."""
    master = group.master
    group.controller.kill()
    master.kill()
    await asyncio.sleep(3)
    group.controller = group.controller.restart()
    await load.goes_on(within_s=SETTLE_S)
    group.restart(master)


def some_slave(group: Group) -> TwinlogBroker:
    return next(broker for broker in group.brokers if broker is not group.master)


async def slave_kill(group: Group, load: Load) -> None:
    slave = some_slave(group)
    slave.kill()
    await load.goes_on(within_s=SETTLE_S)
    group.restart(slave)
    await asyncio.to_thread(group.wait_in_sync, len(group.brokers) - 1)


async def slave_pause(group: Group, load: Load) -> None:
    slave = some_slave(group)
    slave.suspend()
    await asyncio.sleep(5)
    slave.resume()
    await load.goes_on(within_s=SETTLE_S)


FAULTS: dict[str, Callable[[Group, Load], Awaitable[None]]] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "switch": planned,
    "both": both,
    "controller": controller,
    "slave-kill": slave_kill,
    "slave-pause": slave_pause,
}


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, object]:
    gaps: list[float] = []
    back: list[float] = []
    with running_group(directory, options.replicas, brokerRole=options.role) as group:
        async with Producer("load", name_server=group.namesrv.address) as producer:
            await first_send(producer)
            group.wait_in_sync()
            load = Load(producer, per_second=options.rate)
            running = asyncio.create_task(load.run())
            for _ in range(options.times):
                await load.goes_on(options.rate)
                load.new_gap()
                await FAULTS[options.fault](group, load)
                gaps.append(round(load.longest_gap_s, 3))
                started = time.monotonic()
                await asyncio.to_thread(group.wait_in_sync, deadline_s=60)
                back.append(round(time.monotonic() - started, 3))
            load.stop()
            await running
        wanted = set(load.acknowledged)
        found = await read_all(group.namesrv.address, wanted)
    return {
        "fault": options.fault,
        "role": options.role,
        "replicas": options.replicas,
        "gaps_s": gaps,
        "p50_s": percentile(gaps, 0.5),
        "p99_s": percentile(gaps, 0.99),
        "in_sync_again_max_s": max(back),
        "acknowledged": len(wanted),
        "lost": len(wanted - set(found)),
        "doubled": len(found) - len(set(found)),
        "failed_calls": len(load.failed),
        "first_failure": load.failed[:1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fault", choices=sorted(FAULTS), default="kill")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--role", choices=["SYNC_MASTER", "ASYNC_MASTER"], default="SYNC_MASTER")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        line = json.dumps(asyncio.run(measure(options, Path(directory))))
    print(line)
    if options.results is not None:
        with options.results.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
