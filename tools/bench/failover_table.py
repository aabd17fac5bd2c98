"""The rows of the failover table: what is done, how often by default, and what it should reach."""

from __future__ import annotations

from dataclasses import dataclass, field

import failover_faults as faults
import failover_steady as steady
from failover_faults import Fault

SYNC3 = {"minInSyncReplicas": 1}


@dataclass(frozen=True)
class Aim:
    """`of` is p50, p99 or max of a figure; the row meets it at or below `bound`."""

    figure: str
    of: str
    bound: float


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    fault: Fault
    aims: tuple[Aim, ...]
    replicas: int = 2
    times: int = 5
    client: str = "raw"
    config: dict[str, object] = field(default_factory=dict)
    has_hosts: bool = False
    may_lose: bool = False
    makes: tuple[str, ...] = ("twinlog", "apache")
    remark: str = ""


IN_SYNC = Aim("in_sync_s", "max", 5.0)
KILL = (Aim("gap_s", "p50", 0.3), Aim("gap_s", "p99", 0.6), IN_SYNC)
ASYNC: dict[str, object] = {"brokerRole": "ASYNC_MASTER"}
# Half an hour of it would not fit on a disk.
EXPIRING: dict[str, object] = {
    "fileReservedTime": 0,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}

ROWS = [
    Row("kill-sync-2", "SIGKILL of the master, SYNC pair", faults.kill, KILL,
        remark="a broker needs 0.4 to 0.9 s of CPU until it serves, and is admitted after it has"
        " kept up for a second."),
    Row("kill-sync-3", "SIGKILL of the master, three SYNC replicas", faults.kill, KILL, replicas=3),
    Row(
        "kill-our-client", "SIGKILL of the master, twinlog's own client", faults.kill,
        (Aim("gap_s", "p50", 0.5),), client="ours",
    ),
    Row(
        "kill-java-1s", "SIGKILL of the master, Java 4.9.7 that asks for routes every second",
        faults.kill, (Aim("gap_s", "p50", 1.2),), client="java-1s",
    ),
    Row(
        "kill-java", "SIGKILL and restart by a supervisor, Java 4.9.7 with defaults",
        faults.kill_and_restart, (Aim("gap_s", "p50", 3.0),), client="java", times=3,
    ),
    Row(
        "kill-cpp", "SIGKILL and restart by a supervisor, C++ with defaults",
        faults.kill_and_restart, (Aim("gap_s", "p50", 3.0),), client="cpp", times=3,
        remark="the request that was under way at the kill waits for the client's own limit of 3 s"
        " (each gap was 3.0 s); the next one is answered at once.",
    ),
    Row(
        "kill-javascript", "SIGKILL and restart by a supervisor, JavaScript with defaults",
        faults.kill_and_restart, (Aim("gap_s", "p50", 3.0),), client="javascript", times=3,
    ),
    Row(
        "kill-async-2", "SIGKILL of the master, ASYNC pair", faults.kill,
        (Aim("gap_s", "p50", 2.5),), config=ASYNC, may_lose=True,
    ),
    Row("pause", "SIGSTOP of the master for 8 s", faults.pause, (Aim("gap_s", "max", 3.0),),
        times=3),
    Row(
        "cut", "the master's network is cut for 8 s", faults.cut, (Aim("gap_s", "max", 3.0),),
        times=3, has_hosts=True,
    ),
    Row("kill-all", "both killed, after the second is back", faults.kill_all,
        (Aim("gap_s", "max", 4.0),), times=3),
    Row("kill-controller", "controller and master killed, controller back after 3 s",
        faults.kill_with_controller, (Aim("gap_s", "max", 5.0),), times=3),
    Row("kill-namesrv", "name server and master killed, after the name server's return at 4 s",
        faults.kill_with_namesrv, (Aim("gap_s", "max", 3.0),), times=3),
    Row("switch", "planned switch, measuring client", faults.switch,
        (Aim("gap_s", "p99", 0.25), Aim("refused", "max", 0.0)), times=20),
    Row("switch-our-client", "planned switch, twinlog's own client", faults.switch,
        (Aim("gap_s", "p99", 0.25), Aim("refused", "max", 0.0)), times=20, client="ours"),
    Row("switch-java", "planned switch, Java 4.9.7 with defaults", faults.switch,
        (Aim("gap_s", "p99", 0.25), Aim("refused", "max", 0.0)), times=20, client="java"),
    Row("lose-two", "three replicas, `minInSyncReplicas=2`, two killed", faults.lose_two,
        (Aim("stored_bytes", "max", 0.0),), replicas=3, times=2, config={"minInSyncReplicas": 2}),
    Row("offsets", "consumer offsets after SIGKILL of the master", faults.offsets,
        (Aim("back_s", "max", 1.0), Aim("forward", "max", 0.0)), times=3),
    Row("kill-slave", "SIGKILL of the slave", faults.kill_slave,
        (Aim("gap_s", "max", 0.1), Aim("unknown", "max", 0.0)), times=3),
    Row("pause-slave", "SIGSTOP of the slave for 5 s", faults.pause_slave,
        (Aim("gap_s", "max", 2.0), Aim("unknown", "max", 0.0)), times=3),
    Row("old-route", "twenty sends to the former master", faults.old_route, (), times=3),
    Row("controller-away", "controller away for a minute", faults.controller_away(60),
        (Aim("refused", "max", 0.0),), times=1),
    Row("controller-away-long", "controller away for ten minutes", faults.controller_away(600),
        (Aim("refused", "max", 0.0),), times=1, makes=("twinlog",)),
    Row("rejoin", "rejoin with a divergent tail, ASYNC pair", faults.rejoin_with_tail, (IN_SYNC,),
        times=3, config=ASYNC, may_lose=True,
        remark="an ASYNC_MASTER answers before its slave has the message, and here the slave stands"
        " still in the meantime, so this row loses messages on purpose. The benchmark counts each"
        " of them, and looks for it in the bytes that the old master moved aside when it rejoined:"
        " `twinlog ha tail list` shows the files, `show` prints the messages, and `resend` sends"
        " them again."),
    Row("cost", "a controlled SYNC pair next to a fixed one", steady.cost,
        (Aim("slower_percent", "p50", 3.0), Aim("later_ms", "p50", 2.0)), times=1, client="none",
        makes=("twinlog",),
        remark="1 KiB, 16 connections of 16 in turns of 4 s, and the 99th percentile from the time"
        " at which a send is due to its arrival at a consumer, at 500 per second; medians of five"
        " turns of each. A negative figure means that the controlled pair was the better one."),
    Row("full-load", "sends as fast as answers come, for half an hour", steady.full_load,
        (Aim("elections", "max", 0.0), Aim("refused", "max", 0.0)), times=1, client="none",
        config=EXPIRING, makes=("twinlog",)),
]  # fmt: skip
