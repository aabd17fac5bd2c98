"""Streams through outages: what was read stays in the offsets, whatever the cluster forgets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_archive_files import publish_rows

from support.client_support import eventually_async
from support.command_line import process
from support.processes import ProcessGroup, process_group, wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin.client import Admin
from twinlog.admin.topics import delete_topic
from twinlog.client import Message, MessageQueue, blocking
from twinlog.spark.errors import DataLossError, UnreachableError
from twinlog.spark.jobs.mirror_queues import source_queues
from twinlog.spark.jobs.sql import topics_of
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import QueueKey
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_stream, open_transport, plan_batch, read_window
from twinlog.spark.read.survey import Survey

pytestmark = pytest.mark.timeout(240)
COUNT = 400


@dataclass
class World:
    """A cluster of two groups whose parts can be stopped and started."""

    group: ProcessGroup
    namesrv: TwinlogNamesrv
    brokers: dict[str, TwinlogBroker]
    opened: list[StreamPlanner] = field(default_factory=list)

    def send(self, count: int = COUNT, topics: tuple[str, ...] = ("orders", "events")) -> None:
        with blocking.Producer("producers", name_server=self.namesrv.address) as producer:
            for topic in topics:
                producer.send_many([Message(topic, b"%d" % n) for n in range(count)])

    def planner(self, **more: str) -> StreamPlanner:
        given = {
            "nameServer": self.namesrv.address, "startingOffsets": "earliest",
            "pollTimeoutMs": "1000", "fetchRetries": "0", "subscribePattern": "[oe].*", **more,
        }  # fmt: skip
        if "subscribe" in more:
            del given["subscribePattern"]
        options = SourceOptions.parse(given)
        planner = StreamPlanner(options, open_stream(options))
        self.opened.append(planner)
        return planner

    def registered(self) -> list[str]:
        """The groups that have registered, by the journal of the name server."""
        events = process("events", "-o", "json", "-n", self.namesrv.address).json
        return [event["group"] for event in events if event["event"] == "broker-registered"]

    def kill_brokers(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def start_brokers(self, *names: str) -> None:
        for name in names or tuple(self.brokers):
            self.brokers[name] = self.brokers[name].restart()
            self.group.add(self.brokers[name])

    def delete(self, topic: str) -> None:
        async def remove() -> None:
            async with Admin(self.namesrv.address) as admin:
                assert (await delete_topic(admin, topic)).is_complete

        asyncio.run(remove())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "n")
        group.add(namesrv)
        brokers = {}
        for name in ("broker-a", "broker-b"):
            brokers[name] = start_twinlog_broker(
                tmp_path / name, namesrv=namesrv.address, brokerName=name
            )
            group.add(brokers[name])
            namesrv.wait_for_text(f"address={brokers[name].address}")
        made = World(group, namesrv, brokers)
        yield made
        for planner in made.opened:
            planner.transport.close()


def rows_between(planner: StreamPlanner, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(
        batch.num_rows
        for window in planner.partitions(start, end)
        for batch in read_window(planner.options, window, ("queue_offset",), patience_ms=60_000)
    )


def rows_of(offset: dict[str, Any]) -> int:
    return sum(n for b in offset["offsets"].values() for q in b.values() for n in q.values())


def read_all(planner: StreamPlanner, start: dict[str, Any], wanted: int) -> dict[str, Any]:
    """Go on until so many rows are behind the offset: brokers dispatch a moment after they ack."""
    end = start

    def is_there() -> bool:
        nonlocal end
        end = planner.latest(end, limited=True)
        return rows_of(end) >= wanted

    wait_until(is_there, f"{wanted} rows", interval_s=0.1)
    assert rows_of(end) == wanted
    return end


def routes_are_empty(planner: StreamPlanner) -> bool:
    """Tell whether the last broker has left the routes, also between two questions of one look."""
    try:
        return not planner.transport.queues()
    except UnreachableError as error:
        return "knows no broker" in str(error)


def test_offsets_stay_while_both_brokers_are_down(world: World) -> None:
    world.send()
    planner = world.planner(commitGroup="lag")
    start = planner.latest(planner.initial(), limited=True)
    end = read_all(planner, start, 2 * COUNT)
    world.kill_brokers()
    wait_until(lambda: routes_are_empty(planner), "the routes are empty", interval_s=0.2)
    waits = threading.Event()
    planner.pause = lambda seconds: waits.set() or threading.Event().wait(seconds) or None

    def back() -> None:
        assert waits.wait(60)
        world.start_brokers()

    restart = threading.Thread(target=back)
    restart.start()
    again = planner.latest(end, limited=True)
    restart.join()
    assert again["offsets"] == end["offsets"]
    world.send(10)
    final = read_all(planner, again, 2 * COUNT + 20)
    assert rows_between(planner, end, final) == 20


def test_a_query_that_starts_anew_during_the_outage_keeps_its_offsets(world: World) -> None:
    world.send()
    first = world.planner()
    end = read_all(first, first.latest(first.initial(), limited=True), 2 * COUNT)
    world.kill_brokers()
    again = world.planner(outageTimeout="2s")
    for is_now in (False, True):
        if is_now:
            again.target = {}
        with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*outageTimeout"):
            again.latest(end, limited=True)
        again.outage_since = None


def batch_rows(world: World, **more: str) -> int:
    """Rows of a batch read of everything, as Spark would count them."""
    given = {"nameServer": world.namesrv.address, "pollTimeoutMs": "1000", "fetchRetries": "0"}
    chosen = {} if "subscribe" in more else {"subscribePattern": "[oe].*"}
    options = SourceOptions.parse({**given, **chosen, **more})
    return sum(
        batch.num_rows
        for window in plan_batch(options, Pushed())
        for batch in read_window(options, window, ("queue_offset",))
    )


def test_a_batch_is_never_fewer_rows_because_brokers_are_away(world: World) -> None:
    world.send()
    wait_until(lambda: batch_rows(world) == 2 * COUNT, "all rows are there", deadline_s=90)
    world.brokers["broker-b"].suspend()
    with pytest.raises(UnreachableError, match="BROKER_UNREACHABLE"):
        batch_rows(world)
    world.brokers["broker-b"].kill()
    for more in ({}, {"subscribe": "orders"}):
        with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*broker-b.*failOnDataLoss"):
            batch_rows(world, **more)
    with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*broker-b"):
        topics_of({"nameServer": world.namesrv.address, "subscribePattern": ".*"})
    with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*broker-b"):
        source_queues({"nameServer": world.namesrv.address, "subscribe": "orders"})
    rest = batch_rows(world, failOnDataLoss="false")
    assert 0 < rest < 2 * COUNT
    world.brokers["broker-a"].kill()
    for more in ({}, {"subscribe": "orders"}, {"failOnDataLoss": "false"}):
        with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*knows no broker"):
            batch_rows(world, **more)
    world.start_brokers()

    def is_back() -> bool:
        try:
            found = batch_rows(world)
        except UnreachableError:
            return False
        assert found == 2 * COUNT
        return True

    wait_until(is_back, "a batch has all rows again", deadline_s=90)


def test_a_broker_that_returns_between_two_questions_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send()
    wait_until(lambda: batch_rows(world) == 2 * COUNT, "all rows are there", deadline_s=90)
    wait_until(lambda: "broker-b" in world.registered(), "its name server has noted it")
    world.brokers["broker-b"].kill()
    with pytest.raises(UnreachableError, match=r"broker broker-b is away"):
        batch_rows(world)
    ask, asked = Survey.queues, []

    async def ask_and_return(survey: Survey) -> list[QueueKey]:
        found = await ask(survey)
        if not asked:
            world.start_brokers("broker-b")

            async def is_back() -> bool:
                return "broker-b" in await survey.client.cluster_brokers()

            await eventually_async(is_back, "broker-b is in the route")
        asked.append(len(found))
        return found

    monkeypatch.setattr(Survey, "queues", ask_and_return)
    assert batch_rows(world) == 2 * COUNT
    assert asked[0] < asked[1]


def test_one_broker_that_is_down_does_not_stop_the_other(world: World) -> None:
    world.send()
    planner = world.planner()
    end = read_all(planner, planner.latest(planner.initial(), limited=True), 2 * COUNT)
    world.brokers["broker-b"].kill()
    with blocking.Producer("p", name_server=world.namesrv.address) as producer:
        for n in range(20):
            producer.send(Message("orders", b"%d" % n))
    further = read_all(planner, end, 2 * COUNT + 20)
    for topic in ("orders", "events"):
        assert further["offsets"][topic]["broker-b"] == end["offsets"][topic]["broker-b"]
    assert further["marks"]["broker-b"] == end["marks"]["broker-b"]
    assert rows_between(planner, end, further) == 20


def test_a_name_server_that_is_restarted_is_waited_for(world: World) -> None:
    world.send()
    planner = world.planner()
    end = read_all(planner, planner.latest(planner.initial(), limited=True), 2 * COUNT)
    world.namesrv.kill()
    # Brokers that are known are read on without it.
    assert planner.latest(end, limited=True)["offsets"] == end["offsets"]
    namesrv = world.namesrv.restart()
    world.group.add(namesrv)
    fresh = world.planner()
    assert fresh.latest(end, limited=True)["offsets"] == end["offsets"]
    assert planner.latest(end, limited=True)["offsets"] == end["offsets"]


def test_a_topic_that_is_deleted_is_a_loss_which_the_options_decide_about(world: World) -> None:
    world.send()
    planner = world.planner()
    end = read_all(planner, planner.latest(planner.initial(), limited=True), 2 * COUNT)
    world.delete("events")
    for more in ({}, {"commitGroup": "lag"}):
        with pytest.raises(DataLossError, match=r"QUEUE_VANISHED. events"):
            world.planner(**more).latest(end, limited=True)
    with pytest.raises(DataLossError, match=r"QUEUE_VANISHED. events"):
        planner.latest(end, limited=True)
    lenient = world.planner(failOnDataLoss="false", commitGroup="lag")
    left = lenient.latest(end, limited=True)
    assert set(left["offsets"]) == {"orders"}
    assert {skip.topic for skip in lenient.policy.skipped} == {"events"}
    lenient.latest(left, limited=True)
    committed = lenient.transport.group_offsets("lag")
    assert sum(n for (topic, _, _), n in committed.items() if topic == "orders") == COUNT


def test_a_deleted_topic_is_read_from_the_archive(world: World, tmp_path: Path) -> None:
    """By a stream that begins afterwards, and by one that is in the archive when it happens."""
    world.send()
    whole = world.planner()
    read_all(whole, whole.latest(whole.initial(), limited=True), 2 * COUNT)
    archive = tmp_path / "archive"
    publish_rows({"nameServer": world.namesrv.address}, archive)
    given = {"archive": str(archive), "commitGroup": "lag"}
    under_way = world.planner(**given, maxOffsetsPerTrigger="100")
    start = under_way.latest(under_way.initial(), limited=True)
    world.delete("events")
    for planner in (under_way, world.planner(**given)):
        at = start if planner is under_way else planner.latest(planner.initial(), limited=True)
        rows = 0
        while (end := planner.latest(at, limited=True)) != at:
            rows += rows_between(planner, at, end)
            at = end
        assert rows == 2 * COUNT
        assert rows_of(at) == 2 * COUNT


@pytest.mark.parametrize("place", ["network", "files"])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_topic_that_is_deleted_and_made_again_is_noticed_and_then_read_whole(
    world: World, place: str, is_restarted: bool
) -> None:
    """Also when it has more rows than before, so that no offset is beyond its end."""

    def made(**more: str) -> StreamPlanner:
        if place == "network":
            return world.planner(subscribePattern="orders", **more)
        given = {"path": str(world.brokers["broker-a"].store), "subscribe": "orders"}
        options = SourceOptions.parse({**given, "startingOffsets": "earliest", **more})
        return StreamPlanner(options, open_transport(options))

    share = 1 if place == "network" else 2  # of the rows one broker has half
    world.send(topics=("orders", "events"))
    planner = made()
    start = planner.latest(planner.initial(), limited=True)
    middle = read_all(planner, start, COUNT // share)
    assert made().latest(middle, limited=True) == middle
    world.delete("orders")
    world.send(COUNT * 3 // 2, topics=("orders",))
    whole = world.planner(subscribePattern="orders")
    read_all(whole, whole.latest(whole.initial(), limited=True), COUNT * 3 // 2)
    with pytest.raises(DataLossError, match=r"QUEUE_REMADE. orders broker broker-.*created again"):
        (made() if is_restarted else planner).latest(middle, limited=True)
    with pytest.raises(DataLossError, match="QUEUE_REMADE"):  # a batch that is done again
        made().partitions(start, middle)
    lenient = made(failOnDataLoss="false")
    assert lenient.partitions(start, middle) == []
    again = lenient.latest(middle, limited=True)
    assert rows_of(again) == 0
    last = read_all(lenient, again, COUNT * 3 // 2 // share)
    assert rows_between(lenient, again, last) == COUNT * 3 // 2 // share
    assert made().latest(last, limited=True) == last


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restarted", "running"])
def test_a_topic_that_is_made_again_with_as_many_rows_is_noticed(
    world: World, *, is_restarted: bool
) -> None:
    """Those of its queues that have not moved are read again, too."""

    def send(first: int, *shares: int) -> None:
        with blocking.Producer("producers", name_server=world.namesrv.address) as producer:
            for queue, share in enumerate(shares):
                place = MessageQueue("orders", "broker-a", queue)
                for number in range(first, first + share):
                    producer.send(Message("orders", b"%d" % number), queue=place)

    world.send(count=1, topics=("orders",))
    world.delete("orders")
    options = {"subscribePattern": "orders", "failOnDataLoss": "false"}
    send(0, 5, 5)
    planner = world.planner(**options)
    middle = read_all(planner, planner.latest(planner.initial(), limited=True), 10)
    assert planner.latest(middle, limited=True) == middle
    world.delete("orders")
    send(100, 5, 5) if is_restarted else send(100, 8, 5)
    wanted = 10 if is_restarted else 13
    whole = world.planner(**options)
    read_all(whole, whole.latest(whole.initial(), limited=True), wanted)
    follower = world.planner(**options) if is_restarted else planner
    again = follower.latest(middle, limited=True)
    assert rows_of(again) == 0
    last = read_all(follower, again, wanted)
    assert rows_between(follower, again, last) == wanted


@pytest.mark.parametrize("place", ["network", "files"])
def test_a_topic_that_is_made_again_as_it_was_is_noticed_while_another_one_grows(
    world: World, place: str
) -> None:
    """No queue of it moves, and the mark goes on beyond its new rows with those of the other."""

    def send(topic: str, count: int) -> None:
        with blocking.Producer("producers", name_server=world.namesrv.address) as producer:
            for number in range(count):
                queue = MessageQueue(topic, "broker-a", 0)
                producer.send(Message(topic, b"%d" % number), queue=queue)

    def made() -> StreamPlanner:
        if place == "network":
            return world.planner(failOnDataLoss="false")
        given = {"path": str(world.brokers["broker-a"].store), "subscribePattern": "[oe].*"}
        more = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
        options = SourceOptions.parse({**given, **more})
        return StreamPlanner(options, open_transport(options))

    def has_rows(topic: str, wanted: int) -> bool:
        fresh = made()
        found = fresh.latest(fresh.latest(fresh.initial(), limited=True), limited=True)
        return rows_of({"offsets": {topic: found["offsets"].get(topic, {})}}) == wanted

    send("orders", 5)
    send("events", 5)
    planner = made()
    middle = read_all(planner, planner.latest(planner.initial(), limited=True), 10)
    assert planner.latest(middle, limited=True) == middle
    world.delete("orders")
    send("orders", 5)
    send("events", 5)
    wait_until(lambda: has_rows("orders", 5) and has_rows("events", 10), "all are dispatched")
    again = planner.latest(middle, limited=True)
    assert {skip.topic for skip in planner.policy.skipped} == {"orders"}
    last = read_all(planner, again, 15)
    assert rows_between(planner, again, last) + rows_between(planner, middle, again) == 10


def window_of_both(world: World, **more: str) -> tuple[StreamPlanner, list[Any]]:
    """Plan a batch with all rows of two topics."""
    world.send()
    planner = world.planner(**more)
    start = planner.latest(planner.initial(), limited=True)
    end = read_all(planner, start, 2 * COUNT)
    first = planner.latest(planner.initial(), limited=True)
    zero = {b: dict.fromkeys(queues, 0) for b, queues in first["offsets"]["events"].items()}
    begin = {**first, "offsets": dict.fromkeys(first["offsets"], zero)}
    return planner, planner.partitions(begin, end)


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_task_ends_when_its_topic_is_deleted(
    world: World, is_under_way: bool, is_strict: bool
) -> None:
    """It does not wait for a topic that is gone as for a broker that is away (ten minutes)."""
    more = {"batchRows": "16", "failOnDataLoss": str(is_strict).lower()}
    planner, windows = window_of_both(world, **more)
    skipped: list[Any] = []
    tasks = [
        read_window(planner.options, window, ("topic",), skipped, patience_ms=60_000)
        for window in windows
    ]
    found = [next(task)["topic"].to_pylist() for task in tasks] if is_under_way else []
    world.delete("events")
    if is_strict:
        with pytest.raises(DataLossError, match=r"QUEUE_VANISHED. events"):
            [batch for task in tasks for batch in task]
        return
    found += [batch["topic"].to_pylist() for task in tasks for batch in task]
    rows = [topic for part in found for topic in part]
    assert rows.count("orders") == COUNT
    assert {skip.topic for skip in skipped} == {"events"}
    lost = sum(skip.high - skip.low for skip in skipped)
    assert rows.count("events") == COUNT - lost


def test_the_only_topic_is_deleted_while_no_query_runs(world: World) -> None:
    """No route names its brokers any more; the name server's list of brokers does."""
    world.send(topics=("events",))
    planner = world.planner(subscribe="events")
    end = read_all(planner, planner.latest(planner.initial(), limited=True), COUNT)
    world.delete("events")
    with pytest.raises(DataLossError, match=r"QUEUE_VANISHED. events"):
        world.planner(subscribe="events", outageTimeout="5s").latest(end, limited=True)
    lenient = world.planner(subscribe="events", outageTimeout="5s", failOnDataLoss="false")
    assert not lenient.latest(end, limited=True)["offsets"]
