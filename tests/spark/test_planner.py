"""Options, offsets, planning and the reasons of data loss, without a Spark session."""

from __future__ import annotations

import itertools
import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from storefiles import BEGIN_MS, StoreFiles, unpack_vectors
from test_decode import read

from twinlog.spark.errors import DataLossError, NotFoundError, OptionError
from twinlog.spark.options import SourceOptions, parse_duration_ms, parse_size
from twinlog.spark.plan.offsets import limit_rows
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.plan.windows import Limits, Range, find_cuts, windows
from twinlog.spark.read.access import settings_of
from twinlog.spark.read.rows import open_transport, plan_batch, read_window
from twinlog.spark.run.lag import LagListener, lag_of

BASE = {"path": "/store", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscrib": "x"}, "did you mean 'subscribe'"),
        ({"maxOffsetPerTriger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"nameServer": "h:1"}, "not both"),
        ({"subscribePattern": ".*"}, "only one of"),
        ({"startingOffsets": "erliest"}, "earliest, latest or JSON"),
        ({"startingOffsets": '{"orders":{"b":{"0":-3}}}'}, "is not an offset"),
        ({"startingOffsets": "{"}, "not JSON"),
        ({"startingTimestamp": "yesterday"}, "whole number"),
        ({"maxBytesPerTrigger": "lots"}, "a size such as"),
        ({"maxTriggerDelay": "soon"}, "a duration such as"),
        ({"isolation": "none"}, "one of confirmed, dispatched"),
        ({"minPartitions": "9", "maxPartitions": "2"}, "below minPartitions"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "one of error, latest"),
        ({"startingOffsets": f'{{"orders":{{"b":{{"0":{1 << 63}}}}}}}'}, "is not an offset"),
        ({"maxOffsetsPerTrigger": "1_0"}, "whole number"),
        ({"maxOffsetsPerTrigger": "\u0663"}, "whole number"),
        ({"maxBytesPerTrigger": "9" * 5000}, "a size such as"),
        ({"maxTriggerDelay": "9" * 5000}, "a duration such as"),
        ({"startingGroup": "g", "startingTimestamp": "5"}, "not both"),
        ({"startingGroup": "g", "startingOffsets": '{"orders":{"b":{"0":1}}}'}, "not both"),
        ({"path": ""}, "option path='': it is empty"),
        ({"archive": ""}, "option archive='': it is empty"),
        ({"startingGroup": ""}, "option startingGroup='': it must be 1 to 255 letters"),
        ({"commitGroup": "a b"}, "option commitGroup='a b': it must be 1 to 255 letters"),
        ({"startingOffsetsByTimestamp": '{"orders":{"b":{"0":-3}}}'}, "-3 is not a time"),
        ({"bodySchema": "a INT"}, "option bodySchema.* only with decodeBody"),
        ({"bodySchemaPath": "/x"}, "option bodySchemaPath.* only with decodeBody"),
        ({"writerSchema": "{}"}, "option writerSchema.* only with decodeBody"),
        ({"schemaRegistry": "none"}, "option schemaRegistry.* only with decodeBody"),
        ({"decodeMode": "null", "decodeBody": "none"}, "option decodeMode.* only with decodeBody"),
        ({"deadLetterPath": "/x"}, "option deadLetterPath.* only with decodeBody"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SourceOptions.parse({**BASE, **options})


@pytest.mark.parametrize(
    "options", [{}, {"path": "/s"}, {"subscribe": "a"}, {"path": "/s", "subscribe": " , "}]
)
def test_a_missing_option_is_an_error(options: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nameServer": ""}, "option nameServer='': .* give at least one host:port"),
        ({"nameServer": "localhost"}, "option nameServer='localhost': .* has no port"),
        ({"accessKey": "x"}, "option accessKey needs the option secretKey too"),
        ({"secretKey": "x"}, "option secretKey needs the option accessKey too"),
        ({"useTLS": "true", "tlsCaFile": "/no/such"}, "tlsCaFile='/no/such': .*No such file"),
        ({"useTLS": "true", "tlsCaFile": __file__}, "option tlsCaFile=.* certificates"),
        ({"tlsCaFile": "/no/such"}, "option tlsCaFile=.* only with useTLS=true"),
        ({"pollTimeoutMs": "soon"}, "option pollTimeoutMs='soon'"),
    ],
)
def test_a_wrong_option_about_access_is_named(given: dict[str, str], text: str) -> None:
    options = {"nameServer": "127.0.0.1:1", **given}
    with pytest.raises(OptionError, match=text):
        settings_of(options)
    with pytest.raises(OptionError, match=text):
        open_transport(SourceOptions.parse({**options, "subscribe": "orders"}))


@pytest.mark.parametrize("text", ["{}", '{"orders":{}}', '{"orders":{"broker-a":[]}}'])
def test_an_assignment_of_nothing_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match="it names no"):
        SourceOptions.parse({"path": "/store", "assign": text})


def test_a_batch_does_not_start_behind_the_end_of_its_queue(tmp_path: Path) -> None:
    """A topic that was made again gives a batch that goes on from noted offsets no rows."""
    store = StoreFiles(tmp_path / "store")
    for number in range(4):
        store.put(queue_id=number % 2)
    options = {
        "path": str(store.root),
        "subscribe": "orders",
        "startingOffsets": '{"orders":{"broker-a":{"0":2,"1":3}}}',
    }
    with pytest.raises(DataLossError, match="queue 1, offsets 2 to 3: the queue ends at 2"):
        plan_batch(SourceOptions.parse(options), Pushed())
    lenient = SourceOptions.parse({**options, "failOnDataLoss": "false"})
    assert plan_batch(lenient, Pushed()) == []


def test_names_of_the_older_connector_are_accepted() -> None:
    given = {"storePath": "/s", "TOPIC": "a", "subExpression": "x || y"}
    parsed = SourceOptions.parse(given)
    assert (parsed.path, parsed.topics, parsed.tags) == ("/s", ("a",), ("x", "y"))


def test_sizes_and_durations() -> None:
    assert [parse_size("x", text) for text in ("5", "8m", "1 GiB")] == [5, 8 << 20, 1 << 30]
    assert [parse_duration_ms("x", t) for t in ("5", "3s", "15m")] == [5, 3000, 900_000]


def test_a_row_limit_is_shared_and_starves_no_queue() -> None:
    start: dict[Any, int] = {("t", "b", queue): 0 for queue in range(3)}
    end = {("t", "b", 0): 10_000, ("t", "b", 1): 10, ("t", "b", 2): 0}
    limited = limit_rows(start, end, 100)
    assert limited == {("t", "b", 0): 99, ("t", "b", 1): 1, ("t", "b", 2): 0}


class Even:
    """A queue whose records of one size lie at equal distances."""

    def __init__(self, first: int, step: int, size: int) -> None:
        self.first, self.step, self.size = first, step, size

    def sample(self, queue_offset: int) -> tuple[int, int]:
        return self.first + queue_offset * self.step, self.size

    def first_from(self, physical: int, low: int, high: int) -> int:
        return min(high, max(low, -(-(physical - self.first) // self.step)))


def test_windows_cover_all_rows_once_and_are_even() -> None:
    ranges = [Range("t", "b", queue, 0, 50_000) for queue in range(4)]
    indexes = [Even(queue * 1000, 4000, 1000) for queue in range(4)]
    planned = windows(ranges, indexes, find_cuts(ranges, indexes, Limits(8, 16, 16 << 20)))
    for queue in range(4):
        own = [r for window in planned for r in window if r.queue_id == queue]
        assert own[0].low == 0
        assert own[-1].high == 50_000
        assert all(a.high == b.low for a, b in itertools.pairwise(own))
    sizes = [sum(r.rows for r in window) for window in planned]
    assert len(planned) == 12
    assert max(sizes) < 1.4 * min(sizes)
    small = find_cuts([Range("t", "b", 0, 0, 10)], [Even(0, 1000, 1000)], Limits(8, 16, 1 << 30))
    assert small == []


def test_a_terabyte_is_cut_by_bytes_not_by_the_cores_of_this_machine() -> None:
    ranges = [Range("t", "b", queue, 0, 1 << 28) for queue in range(4)]
    indexes = [Even(queue * 1000, 4000, 1000) for queue in range(4)]
    options = SourceOptions.parse({"path": "x", "subscribe": "t"})
    limits = Limits(options.min_partitions, options.max_partitions, 4 << 30)
    assert len(find_cuts(ranges, indexes, limits)) > 200


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    made = StoreFiles(tmp_path / "store", segment_size=4096, queue_entries=50)
    made.fill(200)
    return made


def planner(files: StoreFiles, **options: str) -> StreamPlanner:
    given = {"path": str(files.root), "subscribe": "orders,events", **options}
    parsed = SourceOptions.parse(given)
    return StreamPlanner(
        parsed, open_transport(parsed), now=lambda: 0.0, pause=lambda seconds: None
    )


def offsets(data: dict[str, Any]) -> str:
    return json.dumps(data)


def test_the_start_is_a_symbol_until_the_first_batch_pins_it(files: StoreFiles) -> None:
    stream = planner(files)
    symbol = stream.initial()
    assert symbol == {"start": "latest", "v": 1}
    pinned = stream.latest(symbol, limited=True)
    assert stream.partitions(symbol, pinned) == []
    files.fill(50)
    assert offsets(stream.latest(pinned, limited=True)) != offsets(pinned)
    assert (
        sum(
            r.rows
            for w in stream.partitions(pinned, stream.latest(pinned, limited=True))
            for r in w
        )
        == 50
    )
    assert stream.initial() == symbol


def test_an_idle_stream_returns_the_same_text(files: StoreFiles) -> None:
    stream = planner(files)
    pinned = stream.latest(stream.initial(), limited=True)
    again = json.loads(offsets(pinned))
    assert offsets(stream.latest(again, limited=True)) == offsets(pinned)


def test_minimum_rows_wait_until_the_delay_is_over(files: StoreFiles) -> None:
    clock = [0.0]
    stream = planner(files, minOffsetsPerTrigger="100", maxTriggerDelay="10s")
    stream.now = lambda: clock[0]
    pinned = stream.latest(stream.initial(), limited=True)
    files.fill(20)
    assert stream.latest(pinned, limited=True) == pinned
    clock[0] = 11.0
    assert stream.latest(pinned, limited=True) != pinned


def test_a_limit_by_bytes_is_exact_and_never_stands_still(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest", maxBytesPerTrigger="1000")
    sizes = {(r["topic"], r["queue_id"], r["queue_offset"]): r["store_size"] for r in files.rows}
    start = stream.latest(stream.initial(), limited=True)
    for _ in range(5):
        end = stream.latest(start, limited=True)
        found = [
            sizes[r.topic, r.queue_id, number]
            for window in stream.partitions(start, end)
            for r in window
            for number in range(r.low, r.high)
        ]
        assert 0 < sum(found) <= 1000
        start = end
    tiny = planner(files, startingOffsets="earliest", maxBytesPerTrigger="1")
    start = tiny.latest(tiny.initial(), limited=True)
    assert (
        sum(r.rows for w in tiny.partitions(start, tiny.latest(start, limited=True)) for r in w)
        == 1
    )


def expire(files: StoreFiles, segments: int) -> None:
    for path in sorted((files.root / "commitlog").iterdir())[:segments]:
        path.unlink()


def test_expired_rows_are_an_error_or_a_named_skip(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest")
    start = stream.latest(stream.initial(), limited=True)
    end = stream.latest(start, limited=True)
    expire(files, 3)
    with pytest.raises(DataLossError, match=r"OFFSET_EXPIRED. events broker broker-a queue 0"):
        planner(files).partitions(start, end)
    lenient = planner(files, failOnDataLoss="false")
    rows = sum(r.rows for w in lenient.partitions(start, end) for r in w)
    lost = sum(skip.high - skip.low for skip in lenient.policy.skipped)
    assert lost > 0
    assert rows + lost == 200


def test_a_segment_removed_between_plan_and_read_is_named(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest")
    start = stream.latest(stream.initial(), limited=True)
    (window,) = stream.partitions(start, stream.latest(start, limited=True))
    transport = open_transport(stream.options)
    expire(files, 1)
    with pytest.raises(DataLossError, match="OFFSET_EXPIRED"):
        list(transport.read(window, ("body",)))


def test_a_topic_made_anew_and_a_cut_log_are_noticed(files: StoreFiles, tmp_path: Path) -> None:
    stream = planner(files, startingOffsets="earliest")
    start = stream.latest(stream.initial(), limited=True)
    end = stream.latest(start, limited=True)

    other = StoreFiles(tmp_path / "other")
    other.fill(300, topics=("events", "orders"))
    with pytest.raises(DataLossError, match="LOG_DIVERGED"):
        planner(other).latest(end, limited=True)

    shorter = StoreFiles(tmp_path / "shorter", segment_size=4096, queue_entries=50)
    shorter.fill(100)
    without_marks = {**end, "marks": {}}
    with pytest.raises(DataLossError, match="OFFSET_AHEAD"):
        planner(shorter).latest(without_marks, limited=True)
    shutil.rmtree(files.root / "consumequeue" / "orders" / "2")
    with pytest.raises(DataLossError, match="QUEUE_VANISHED"):
        planner(files).latest(without_marks, limited=True)


def test_a_checkpoint_of_another_broker_is_refused(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest")
    end = stream.latest(stream.initial(), limited=True)
    end = stream.latest(end, limited=True)
    files.write_topics("broker-b")
    with pytest.raises(OptionError, match="broker-a, but this store belongs to 'broker-b'"):
        planner(files).latest(end, limited=True)


def test_a_new_queue_is_pinned_before_it_is_read(files: StoreFiles) -> None:
    stream = planner(files)
    start = stream.latest(stream.initial(), limited=True)
    files.put("orders", 9, b"new")
    pinned = stream.latest(start, limited=True)
    assert pinned["offsets"]["orders"]["broker-a"]["9"] == 0
    assert stream.partitions(start, pinned) == []
    end = stream.latest(pinned, limited=True)
    assert end["offsets"]["orders"]["broker-a"]["9"] == 1


def test_start_and_end_by_time_offsets_and_group(files: StoreFiles) -> None:
    middle = BEGIN_MS + 100
    late = read(files.root, subscribe="orders,events", startingTimestamp=str(middle))
    early = read(files.root, subscribe="orders,events", endingTimestamp=str(middle))
    assert len(late) + len(early) == 200
    assert min(row["store_ts"] for row in late).timestamp() * 1000 == middle
    with pytest.raises(OptionError, match=r"startingTimestamp: .* no record stored at or after"):
        read(files.root, subscribe="orders", startingTimestamp=str(BEGIN_MS * 2))
    times = '{"orders":{"broker-a":{"9":1}}}'
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp names .* queue 9"):
        read(files.root, subscribe="orders", startingOffsetsByTimestamp=times)
    table = '{"orders":{"broker-a":{"0":20,"1":-1}}}'
    rows = read(files.root, subscribe="orders", startingOffsets=table)
    assert len(rows) == 5 + 0 + 25 + 25
    with pytest.raises(OptionError, match="not among the queues"):
        read(files.root, subscribe="orders", startingOffsets='{"orders":{"broker-x":{"0":1}}}')
    committed = {"offsetTable": {"orders@workers": {0: 24, 1: 25, 2: 25, 3: 20}}}
    text = json.dumps(committed).replace('"0"', "0").replace('"3"', "3")
    (files.root / "config" / "consumerOffset.json").write_text(text)
    assert len(read(files.root, subscribe="orders", startingGroup="workers")) == 1 + 5
    chosen = read(files.root, assign='{"orders":{"broker-a":[1]}}')
    assert {(row["topic"], row["queue_id"]) for row in chosen} == {("orders", 1)}


def test_no_store_and_no_topic_are_not_found(tmp_path: Path, files: StoreFiles) -> None:
    with pytest.raises(NotFoundError, match="is not a store"):
        read(tmp_path / "nothing", subscribe="orders")
    (tmp_path / "outer").mkdir()
    shutil.move(files.root, tmp_path / "outer" / "store")
    with pytest.raises(NotFoundError, match="outer/store has one"):
        read(tmp_path / "outer", subscribe="orders")
    with pytest.raises(NotFoundError, match="did you mean 'orders'"):
        read(tmp_path / "outer" / "store", subscribe="order")


def test_stale_and_pre_blank_entries_are_not_rows(tmp_path: Path) -> None:
    import struct

    files = StoreFiles(tmp_path, queue_entries=50)
    files.heads["orders", 0] = 7
    files.put("orders", 0, b"first on this replica")
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    with queue.open("r+b") as file:
        file.write(struct.pack(">qiq", 0, 2**31 - 1, 0) * 7)
        file.seek(8 * 20)
        file.write(struct.pack(">qiq", 60_000, 120, 0) * 3)  # left behind by a truncation
    rows = read(tmp_path, subscribe="orders")
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(7, b"first on this replica")]


def publish(files: StoreFiles, confirmed: int) -> None:
    """Write what a SYNC_MASTER publishes."""
    (files.root / "twinlog").mkdir(exist_ok=True)
    (files.root / "twinlog" / "confirmed").write_bytes(confirmed.to_bytes(8, "big"))


def test_isolation_ends_at_the_last_confirmed_record(files: StoreFiles) -> None:
    row = files.rows[120]
    publish(files, row["phys_offset"] + row["store_size"])
    found = read(files.root, subscribe="orders,events")
    assert sorted(r["phys_offset"] for r in found) == [r["phys_offset"] for r in files.rows[:121]]
    publish(files, row["phys_offset"] + row["store_size"] - 1)
    assert len(read(files.root, subscribe="orders,events")) == 120
    everything = read(files.root, subscribe="orders,events", isolation="dispatched")
    assert len(everything) == 200

    stream = planner(files, startingOffsets="earliest")
    start = stream.latest(stream.initial(), limited=True)
    end = stream.latest(start, limited=True)
    assert sum(r.rows for w in stream.partitions(start, end) for r in w) == 120
    publish(files, files.end)
    end = stream.latest(start, limited=True)
    assert sum(r.rows for w in stream.partitions(start, end) for r in w) == 200


def test_a_key_narrows_the_plan_to_what_the_index_says(tmp_path: Path) -> None:
    root = unpack_vectors(tmp_path / "store")
    options = SourceOptions.parse({"path": str(root), "subscribePattern": ".*"})
    everything = read(root, subscribePattern=".*")
    wanted = next(row for row in everything if "key1" in (row["keys"] or "").split())
    for pushed in (Pushed(keys=[{wanted["keys"]}]), Pushed(keys=[{wanted["msg_id"], "nothing"}])):
        windows_of_key = plan_batch(options, pushed)
        rows = [
            row
            for window in windows_of_key
            for batch in read_window(options, window, ("phys_offset", "keys"))
            for row in batch.to_pylist()
        ]
        assert {"phys_offset": wanted["phys_offset"], "keys": wanted["keys"]} in rows
        assert len(rows) < len(everything) // 10
    shutil.rmtree(root / "index")  # a broker may run without one: then all is read
    planned = plan_batch(options, Pushed(keys=[{"key1"}]))
    ranges = [part for window in planned if isinstance(window, tuple) for part in window]
    assert sum(part.rows for part in ranges) == len(everything)


def test_queues_that_are_a_moment_behind_are_waited_for(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest")
    start = stream.latest(stream.initial(), limited=True)
    end = stream.latest(start, limited=True)
    queue = files.root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    whole = queue.read_bytes()
    queue.write_bytes(whole[: 20 * 20] + bytes(len(whole) - 20 * 20))
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            queue.write_bytes(whole)

    stream.pause = pause
    assert sum(r.rows for w in stream.partitions(start, end) for r in w) == 200
    assert len(waited) == 3


def layout(stream: StreamPlanner, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
    return [tuple(window) for window in stream.partitions(start, end)]


def test_a_batch_that_is_done_again_has_the_same_tasks_whatever_the_options(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store", segment_size=32 << 20, queue_entries=5000)
    files.fill(3000, padding=8000)
    first = planner(files, startingOffsets="earliest", minPartitions="5")
    start = first.latest(first.initial(), limited=True)
    end = json.loads(offsets(first.latest(start, limited=True)))
    wanted = layout(first, start, end)
    assert len(wanted) == 5
    for other in ({"minPartitions": "2"}, {"minPartitions": "9"}, {"maxRecordsPerPartition": "7"}):
        again = planner(files, **other)
        assert layout(again, start, end) == wanted
    del end["plan"]  # as an older version wrote it: the options decide
    assert len(layout(planner(files, minPartitions="2"), start, end)) == 2


def test_progress_says_how_many_rows_are_behind_and_skipped(files: StoreFiles) -> None:
    stream = planner(files, startingOffsets="earliest", maxOffsetsPerTrigger="80")
    start = stream.latest(stream.initial(), limited=True)
    end = stream.latest(start, limited=True)
    read = sum(r.rows for window in stream.partitions(start, end) for r in window)
    assert lag_of(json.dumps(stream.report())) == (200 - read, 0)
    expire(files, 3)
    lenient = planner(files, failOnDataLoss="false")
    rows = sum(r.rows for w in lenient.partitions(start, end) for r in w)
    assert lenient.report()["skipped"] == read - rows > 0
    listener = LagListener(port=0)
    try:
        listener.take("copy", [json.dumps(stream.report()), "null", None])
        assert listener.lags == {"copy": (200 - read, 0)}
        address = f"http://127.0.0.1:{listener.server.server_port}/metrics"
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        assert f'twinlog_spark_rows_behind{{query="copy"}} {200 - read}.0' in text
    finally:
        listener.server.shutdown()
        listener.server.server_close()
        listener.thread.join()
