"""Tags and SQL92: files, network and archive keep the rows that an oracle keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from storefiles import StoreFiles
from test_archive_files import publish
from test_decode import damage
from test_network_rows import Serve, declare, serve
from test_planner import expire

from twinlog.spark.archive.table import ArchivedWindow, FilePart, read_archived
from twinlog.spark.decode.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.errors import DataLossError, OptionError, RecordCorruptError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.windows import Range
from twinlog.spark.read import network
from twinlog.spark.read.rows import plan_batch, read_window

__all__ = ["serve"]
Judge = Callable[[dict[str, str]], bool | None]
BROKER = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20_000}
NUMBERS = [str(number) for number in (-3, 0, 1, 7, 40, 2147483647)]
ROUNDS = 15
WORDS = ["red", "green", "it''s".replace("''", "'"), "Größe", "7"]


def rows_of(given: dict[str, str]) -> list[dict[str, Any]]:
    options = SourceOptions.parse({"subscribe": "orders,events", **given})
    batches = [
        batch
        for window in plan_batch(options, Pushed())
        for batch in read_window(options, window, ALL_COLUMNS)
    ]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema()).to_pylist()
    return sorted(rows, key=lambda row: row["phys_offset"])


def places(rows: list[dict[str, Any]]) -> list[int]:
    return [row["phys_offset"] for row in rows]


# Expressions, each with what it means


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def _leaf(random: Random) -> tuple[str, Judge]:
    name, word, number = random.choice("cd"), random.choice(WORDS), int(random.choice(NUMBERS))
    high = number + random.randrange(9)
    kind = random.randrange(7)
    if kind == 0:
        return f"{name} = {_quoted(word)}", lambda p: p[name] == word if name in p else None
    if kind == 1:
        return f"{name} <> {_quoted(word)}", lambda p: p[name] != word if name in p else None
    if kind == 2:
        return f"{name} IS NULL", lambda p: name not in p
    if kind == 3:
        others = random.sample(WORDS, 2)
        listed = ", ".join(map(_quoted, others))
        return f"{name} IN ({listed})", lambda p: p[name] in others if name in p else None
    if kind == 4:
        return f"n > {number}", lambda p: int(p["n"]) > number if "n" in p else None
    if kind == 5:
        return f"n <= {number}", lambda p: int(p["n"]) <= number if "n" in p else None
    text = f"n BETWEEN {number} AND {high}"
    return text, lambda p: number <= int(p["n"]) <= high if "n" in p else None


def _joined(left: Judge, right: Judge, decisive: bool) -> Judge:
    def judge(p: dict[str, str]) -> bool | None:
        found = (left(p), right(p))
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    return judge


def expression(random: Random, depth: int = 3) -> tuple[str, Judge]:
    if depth == 0 or random.random() < 0.3:
        return _leaf(random)
    left, first = expression(random, depth - 1)
    right, second = expression(random, depth - 1)
    if random.random() < 0.5:
        return f"({left} AND {right})", _joined(first, second, False)
    return f"({left} OR {right})", _joined(first, second, True)


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    made = StoreFiles(tmp_path / "store")
    random = Random(11)
    for number in range(900):
        properties = {"TAGS": random.choice(["a", "b", "AaAa", "BBBB"])}  # the last two collide
        for name, values in (("c", WORDS), ("d", WORDS), ("n", NUMBERS)):
            if random.random() < 0.7:
                properties[name] = random.choice(values)
        made.put("orders" if number % 5 else "events", number % 3, b"x" * 40, properties)
    declare(made)
    return made


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_filtering", [True, False])
def test_files_and_network_keep_what_an_oracle_keeps(
    files: StoreFiles,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_filtering: bool,
) -> None:
    address = serve(enablePropertyFilter=is_filtering, **BROKER)
    came: list[int] = []
    pull = network.BrokerTransport._pull

    async def counted(self: Any, *arguments: Any) -> Any:
        answer = await pull(self, *arguments)
        came.append(len(answer.body))
        return answer

    monkeypatch.setattr(network.BrokerTransport, "_pull", counted)
    monkeypatch.setattr(network.BrokerTransport, "_bulk_reader", lambda self, r: None)  # counts not
    rows_of({"nameServer": address})
    everything, random, wanted_bytes, come = sum(came), Random(5), 0, 0
    for _ in range(ROUNDS):
        sql, judge = expression(random)
        kept = [row["phys_offset"] for row in files.rows if judge(row["properties"])]
        came.clear()
        over_network = rows_of({"nameServer": address, "sql": sql})
        assert places(over_network) == kept, sql
        assert rows_of({"path": str(files.root), "sql": sql}) == over_network, sql
        wanted_bytes += everything * len(kept) // len(files.rows)
        come += sum(came)
    assert 0 < wanted_bytes < ROUNDS * everything * 0.7
    if is_filtering:
        assert come < wanted_bytes * 1.5  # the rest are looks at the ends of queues
    else:
        assert come > ROUNDS * everything * 0.9
        assert "filters them itself" in caplog.text


@pytest.mark.timeout(180)
def test_tags_are_chosen_by_the_broker(
    files: StoreFiles, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(**BROKER)
    for tags in ("a", "AaAa", "a || BBBB", "none"):
        wanted = [r["phys_offset"] for r in files.rows if r["tags"] in tags.split(" || ")]
        found = rows_of({"nameServer": address, "tags": tags})
        assert places(found) == wanted
        assert rows_of({"path": str(files.root), "tags": tags}) == found


@pytest.mark.timeout(180)
def test_a_damaged_record_is_named_or_left_out_under_a_filter(
    files: StoreFiles, serve: Serve
) -> None:
    address = serve(enablePropertyFilter=True, **BROKER)
    sql = "n > 0 AND d IS NULL"
    ways = ({"nameServer": address, "sql": sql}, {"path": str(files.root), "sql": sql})
    wanted = rows_of(ways[0])
    for victim in (
        files.rows[401],
        next(r for r in files.rows if r["phys_offset"] in places(wanted)),
    ):
        damage(files.root, victim["phys_offset"], 4, 0x40)
        number = victim["queue_offset"]
        wanted = [row for row in wanted if row["phys_offset"] != victim["phys_offset"]]
        with pytest.raises(DataLossError, match=rf"RECORD_CORRUPT\].* offsets {number} to "):
            rows_of(ways[0])
        with pytest.raises(RecordCorruptError):
            rows_of(ways[1])
        for way in ways:
            assert rows_of({**way, "failOnDataLoss": "false"}) == wanted


@pytest.mark.timeout(180)
def test_an_expired_range_is_named_or_left_out_under_a_filter(tmp_path: Path, serve: Serve) -> None:
    files = StoreFiles(tmp_path / "store", segment_size=4096)
    files.fill(100)
    declare(files)
    expire(files, 1)
    address = serve(
        enablePropertyFilter=True, mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=20_000
    )
    ways = ({"nameServer": address}, {"path": str(files.root)})
    start = '{"orders":{"broker-a":{"0":0}}}'
    found = []
    for way in ways:
        for filtered in ({"sql": "TAGS = 'a'"}, {"tags": "a"}):
            given = {**way, **filtered, "startingOffsets": start}
            with pytest.raises(DataLossError, match=r"OFFSET_EXPIRED\] orders broker broker-a q"):
                rows_of(given)
            found.append(rows_of({**given, "failOnDataLoss": "false"}))
    assert found[0]
    assert all(rows == found[0] for rows in found)


def test_a_bad_expression_is_refused_before_anything_is_opened() -> None:
    nowhere = {"nameServer": "127.0.0.1:1", "subscribe": "orders"}
    for given in (nowhere, {"path": "nowhere", "subscribe": "orders"}):
        with pytest.raises(OptionError, match="option sql='a >': "):
            plan_batch(SourceOptions.parse({**given, "sql": "a >"}), Pushed())
        with pytest.raises(OptionError, match="tags or sql, not both"):
            plan_batch(SourceOptions.parse({**given, "sql": "a = 1", "tags": "a"}), Pushed())


def test_rows_of_an_archive_are_chosen_too(files: StoreFiles, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    publish(files, root)
    random = Random(3)
    for _ in range(15):
        sql, judge = expression(random)
        kept = [row["phys_offset"] for row in files.rows if judge(row["properties"])]
        assert places(rows_of({"archive": str(root), "sql": sql})) == kept, sql
        options = SourceOptions.parse(
            {"archive": str(root), "subscribe": "orders", "sql": sql, "path": str(files.root)}
        )
        whole = Range("orders", "broker-a", 1, 0, files.heads["orders", 1])
        batches = read_archived(options, ArchivedWindow((whole,)), ("phys_offset",))
        found = [row["phys_offset"] for batch in batches for row in batch.to_pylist()]
        own = [r for r in files.rows if r["topic"] == "orders" and r["queue_id"] == 1]
        assert found == [r["phys_offset"] for r in own if judge(r["properties"])], sql
    parts = plan_batch(SourceOptions.parse({"archive": str(root), "subscribe": "orders"}), Pushed())
    assert all(isinstance(part, FilePart) for part in parts)
