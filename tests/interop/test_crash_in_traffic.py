"""SIGKILL in the middle of delayed and transactional traffic: none lost, none doubled."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from interop.cluster import names, start_cluster, unique
from support.java_driver import Driver, Job
from support.processes import process_group, wait_until

KILLS = 20
DELAYED = 200
TRANSACTIONS = 20
PLANS = ["commit", "rollback", "check-commit", "check-rollback"]


@pytest.mark.timeout(900)
def test_delayed_and_transactional_messages_survive_kills(tmp_path: Path, java: Driver) -> None:
    """What was acknowledged comes once; what was rolled back never; consumers come afterwards,
    so that a message that is seen twice is twice in the log."""
    late, decided, producers = unique("late"), unique("decided"), unique("producers")
    numbers = random.Random(20)
    with process_group() as group:
        cluster = start_cluster(group, tmp_path)
        send = {"namesrv": cluster.address, "retries": 0, "timeoutMs": 3000}
        for topic in (late, decided):
            java.run("send", **send, topic=topic, prefix="first")
        loads: list[Job] = []
        deciders: list[Job] = []
        for number in range(KILLS):
            wait_until(
                lambda: java.run("send", **send, topic=late, prefix="probe")["sent"], "sends work"
            )
            load = java.start(
                "send", **send, topic=late, mode="async", count=DELAYED, delay=1,
                prefix=f"d{number}", window=16,
            )  # fmt: skip
            decider = java.start(
                "transaction", **send, topic=decided, group=producers, count=TRANSACTIONS,
                prefix=f"t{number}", plans=",".join(PLANS),
            )  # fmt: skip
            loads.append(load)
            deciders.append(decider)
            decider.wait_for("sent", 1)
            load.wait_for("sent", numbers.randrange(1, DELAYED))
            cluster.broker.kill()
            cluster.restart_broker()
            for job in (load, decider):
                job.wait_for("done")
                job.events[:] = [event for event in job.events if event["event"] != "error"]
        late_names = acknowledged(loads)
        plan_of = plans(deciders)
        committed = {name for name, plan in plan_of.items() if plan.endswith("commit")}
        readers = [
            java.start("push", namesrv=cluster.address, topic=topic, group=unique("readers"))
            for topic in (late, decided)
        ]
        wait_names(readers[0], late_names)
        wait_names(readers[1], committed)
        seen_late = Counter(names(readers[0].of("message")))
        seen_decided = Counter(names(readers[1].of("message")))
        for job in (*readers, *loads, *deciders):
            job.stop()
    rolled_back = set(plan_of) - committed
    assert not rolled_back & set(seen_decided)
    assert [name for name in late_names if seen_late[name] > 1] == []
    assert [name for name in committed if seen_decided[name] > 1] == []
    assert len(late_names) > KILLS
    assert len(committed) > KILLS // 2


def acknowledged(jobs: list[Job]) -> set[str]:
    found = set()
    for number, job in enumerate(jobs):
        found |= {f"d{number}-{event['n']}" for event in job.of("sent")}
    return found


def plans(jobs: list[Job]) -> dict[str, str]:
    """Name -> plan of every half message that was acknowledged."""
    found = {}
    for number, job in enumerate(jobs):
        for event in job.of("sent"):
            found[f"t{number}-{event['n']}"] = PLANS[event["n"] % len(PLANS)]
    return found


def wait_names(job: Job, wanted: set[str]) -> None:
    def missing() -> list[str]:
        return sorted(wanted - set(names(job.of("message"))))

    try:
        wait_until(lambda: not missing(), "every acknowledged message", deadline_s=90)
    except AssertionError:
        raise AssertionError(f"lost: {len(missing())} of {len(wanted)}: {missing()[:10]}") from None
