"""Rows out of stores: the captured Apache store, and stores with every form a record can have."""

from __future__ import annotations

import base64
import cProfile
import hashlib
import json
import pstats
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from storefiles import BORN, HOST, VECTORS, StoreFiles, unpack_vectors

from support.tiers import TIERS
from twinlog.message.compression import compress
from twinlog.message.properties import decode_properties
from twinlog.message.sysflag import CompressionType, with_compression_type
from twinlog.runtime.compiled import load
from twinlog.spark.decode import records as decode
from twinlog.spark.decode import vector
from twinlog.spark.decode.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.decode.vector import Properties, SameNames, split_alike, split_properties
from twinlog.spark.errors import DataLossError, RecordCorruptError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch, read_window

EVERYTHING = {"subscribePattern": ".*", "includeSystemTopics": "true"}
COMPILED = load("twinlog.spark.decode._decode")


def use(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_compiled", part)
    monkeypatch.setattr(vector, "_compiled", part)


@pytest.fixture(params=TIERS, autouse=True)
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the compiled part and without it."""
    assert request.param == "pure" or COMPILED is not None
    use(COMPILED if request.param == "compiled" else None, monkeypatch)
    return str(request.param)


def split(texts: list[str]) -> Properties | SameNames:
    """Split property strings as a decoder does, out of a log with other bytes between them."""
    packed = [text.encode() for text in texts]
    data = pa.py_buffer(b"\x02a\x01".join([b"", *packed, b""]))
    lengths = np.array([len(text) for text in packed], np.int64)
    starts = np.cumsum(lengths + 3) - lengths
    return split_alike(data, starts, lengths) or split_properties(pa.array(texts, pa.string()))


def read(
    root: Path, columns: tuple[str, ...] = ALL_COLUMNS, **options: str
) -> list[dict[str, Any]]:
    """Read a store as the source does, without Spark."""
    given = {"path": str(root), **options}
    if not {"subscribe", "subscribePattern", "assign"} & given.keys():
        given.update(EVERYTHING)
    parsed = SourceOptions.parse(given)
    batches = [
        batch
        for window in plan_batch(parsed, Pushed())
        for batch in read_window(parsed, window, columns)
    ]
    table = pa.Table.from_batches(batches, arrow_schema(columns))
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        if "properties" in row:
            row["properties"] = dict(row["properties"])
    return rows


def stored(row: dict[str, Any]) -> int:
    milliseconds: float = row["store_ts"].timestamp() * 1000
    return round(milliseconds)


def test_every_row_of_the_captured_store_equals_the_expected_decode(tmp_path: Path) -> None:
    root = unpack_vectors(tmp_path / "store")
    found = {row["phys_offset"]: row for row in read(root, decompress="false", verifyCrc="true")}
    lines = (VECTORS / "expected/commitlog.jsonl").read_text().splitlines()
    messages = [m for m in map(json.loads, lines) if m["kind"] == "message"]
    entries = (VECTORS / "expected/consumequeue.jsonl").read_text().splitlines()
    indexed = {json.loads(line)["physicalOffset"] for line in entries}
    assert set(found) == indexed
    for wanted in messages:
        if wanted["physicalOffset"] not in indexed:
            continue
        row = found[wanted["physicalOffset"]]
        properties = wanted["properties"]
        assert {
            "topic": wanted["topic"], "broker": "vec-broker", "queue_id": wanted["queueId"],
            "queue_offset": wanted["queueOffset"], "phys_offset": wanted["physicalOffset"],
            "store_size": wanted["totalSize"], "born_host": wanted["bornHost"],
            "store_host": wanted["storeHost"], "msg_id": properties.get("UNIQ_KEY"),
            "keys": properties.get("KEYS"), "tags": properties.get("TAGS"),
            "flag": wanted["flag"], "sys_flag": wanted["sysFlag"],
            "reconsume_times": wanted["reconsumeTimes"],
            "prepared_tx_offset": wanted["preparedTransactionOffset"],
            "body_crc": wanted["bodyCRC"], "properties": properties,
        } == {k: v for k, v in row.items() if k not in ("born_ts", "store_ts", "body")}  # fmt: skip
        assert stored(row) == wanted["storeTimestamp"]
        assert round(row["born_ts"].timestamp() * 1000) == wanted["bornTimestamp"]
        if "body" in wanted:
            assert row["body"] == base64.b64decode(wanted["body"])
        else:
            assert hashlib.sha256(row["body"]).hexdigest() == wanted["bodySha256"]


def test_compressed_body_of_the_captured_store_is_inflated(tmp_path: Path) -> None:
    root = unpack_vectors(tmp_path / "store")
    packed = [row for row in read(root, decompress="false") if row["sys_flag"] & 1]
    plain = [row for row in read(root) if row["sys_flag"] & 1]
    assert [zlib.decompress(row["body"]) for row in packed] == [row["body"] for row in plain]
    assert packed


def odd_store(root: Path) -> StoreFiles:
    """A store with every form of a record, several segments and several queue files."""
    files = StoreFiles(root, segment_size=4096, queue_entries=10)
    six = bytes(15) + b"\1" + struct.pack(">i", 1234)
    odd_properties = [
        b"", b"a\x01b", b"a\x01b\x02", b"a\x01b\x01c\x02", b"\x01no\x02k\x01v",
        b"k\x01\x02x\x01y",
        b"\x02\x02k\x01v\x02\x02", b"same\x01one\x02same\x01two\x02", b"TAGS\x01t\x02KEYS\x01k1 k2",
        "h\u00e9\x01\u4e2d\U0001f600\x02".encode(), b"noseparator",
        b"WAIT\x01true\x02C\x01c\x02WAIT\x01true",
        b"\x02", b"a\x01b\x02" * 300,
    ]  # fmt: skip
    for number, properties in enumerate(odd_properties):
        files.put("odd", number % 2, b"x" * number, properties)
    files.put("odd", 0, b"six", born_host=six)
    files.put("odd", 1, b"six", store_host=six)
    files.put("odd", 0, b"both", born_host=six, store_host=six)
    files.put("t" * 200, 0, b"version two", {"TAGS": "v2"})
    for kind in CompressionType:
        body = compress(b"packed " * 40, kind)
        files.put("odd", 1, body, sys_flag=with_compression_type(0, kind), flag=7)
    files.fill(60)
    return files


def test_every_form_of_a_record_is_decoded(tmp_path: Path) -> None:
    files = odd_store(tmp_path)
    found = {row["phys_offset"]: row for row in read(tmp_path, decompress="false")}
    assert len(found) == len(files.rows)
    for wanted in files.rows:
        row = found[wanted["phys_offset"]]
        assert {k: row[k] for k in wanted if k != "store_ms"} == {
            k: v for k, v in wanted.items() if k != "store_ms"
        }
        assert stored(row) == wanted["store_ms"]
    assert {row["born_host"] for row in found.values()} == {
        "10.0.0.9:50000",
        "0:0:0:0:0:0:0:1:1234",
    }
    inflated = [r["body"] for r in read(tmp_path, subscribe="odd") if r["flag"] == 7]
    assert inflated == [b"packed " * 40] * 3
    assert HOST != BORN


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_each_column_alone_equals_the_same_column_of_a_full_read(
    tmp_path: Path, column: str
) -> None:
    odd_store(tmp_path)
    alone = read(tmp_path, (column,))
    assert alone == [{column: row[column]} for row in read(tmp_path)]


def test_properties_split_like_the_message_codec_on_random_bytes() -> None:
    rng = Random(7)
    for _ in range(300):
        texts = [
            "".join(rng.choice("\x01\x02ab\u00e9") for _ in range(rng.randrange(12)))
            for _ in range(rng.randrange(1, 9))
        ]
        found = split(texts)
        wanted = [decode_properties(text.encode()) for text in texts]
        assert [dict(row) for row in found.map_column().to_pylist()] == wanted
        assert found.column("a").to_pylist() == [row.get("a") for row in wanted]


@pytest.mark.parametrize("closing", ["", "\x02"])
def test_rows_that_are_alike_split_like_the_message_codec(closing: str) -> None:
    rng = Random(11)
    seen = set()
    for _ in range(300):
        names = [
            "".join(rng.choice("abAB\u00e9") for _ in range(rng.randrange(1, 20)))
            for _ in range(rng.randrange(1, 5))
        ]
        if rng.random() < 0.3:  # as members of a batch have it
            names.insert(rng.randrange(len(names) + 1), names[0])
        texts = []
        for _ in range(rng.randrange(1, 9)):
            if rng.random() < 0.05:
                names = names[::-1]  # as long and as many, but not the same
            pairs = [
                f"{n}\x01{'v' * rng.randrange(0 if rng.random() < 0.02 else 1, 9)}" for n in names
            ]
            texts.append("\x02".join(pairs) + closing)
        found = split(texts)
        seen.add(type(found).__name__)
        wanted = [decode_properties(text.encode()) for text in texts]
        assert [dict(row) for row in found.map_column().to_pylist()] == wanted
        for name in {*names, "absent"}:
            assert found.column(name).to_pylist() == [row.get(name) for row in wanted]
    assert seen == {"SameNames", "Properties"}


def test_more_names_than_bits_still_finds_repeats() -> None:
    names = [f"n{number}" for number in range(100)]
    text = "".join(f"{name}\x01first\x02" for name in names) + "n7\x01last"
    found = split([text, "n7\x01one"])
    first, second = [dict(row) for row in found.map_column().to_pylist()]
    assert (first["n7"], first["n8"], len(first), second) == ("last", "first", 100, {"n7": "one"})


def test_windows_of_any_size_give_the_same_rows(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path, segment_size=8192)
    files.fill(500)
    everything = read(tmp_path)
    cases: list[dict[str, Any]] = [
        {"batchRows": "7"},
        {"batchBytes": "300"},
        {"maxRecordsPerPartition": "13"},
        {"minPartitions": "9", "maxPartitions": "9"},
    ]
    for options in cases:
        rows = read(tmp_path, **options)
        assert sorted(row["phys_offset"] for row in rows) == [r["phys_offset"] for r in files.rows]
        by_queue: dict[Any, list[int]] = {}
        for row in rows:
            by_queue.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
        assert all(offsets == sorted(offsets) for offsets in by_queue.values())
    assert [row["phys_offset"] for row in everything] == [r["phys_offset"] for r in files.rows]


def test_tags_filter_by_hash_and_then_by_the_real_tag(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    for tag in ("Aa", "BB", "x", ""):  # Aa and BB have one hash
        files.put(properties={"TAGS": tag} if tag else {})
    assert [row["tags"] for row in read(tmp_path, subscribe="orders", tags="Aa || x")] == [
        "Aa",
        "x",
    ]
    assert [set(row) for row in read(tmp_path, ("body",), subscribe="orders", tags="BB")] == [
        {"body"}
    ]


def damage(root: Path, physical_offset: int, position: int, bits: int = 1) -> None:
    """Flip bits of one byte of a record."""
    paths = sorted((root / "commitlog").iterdir())
    path = [p for p in paths if int(p.name) <= physical_offset][-1]
    with path.open("r+b") as file:
        file.seek(physical_offset - int(path.name) + position)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ bits]))


@pytest.mark.parametrize(
    ("position", "what"),
    [(0, "size"), (4, "magic"), (14, "queue id"), (23, "queue offset"), (33, "physical offset"),
     (84, "body extends"), (38, "")],
)  # fmt: skip
def test_a_damaged_record_is_named_with_its_offset_and_bytes(
    tmp_path: Path, position: int, what: str
) -> None:
    files = StoreFiles(tmp_path)
    files.fill(20)
    victim = files.rows[11]["phys_offset"]
    bits = 0x04 if position == 38 else 0x40
    damage(
        tmp_path, victim, position + (1 if position == 38 else 0), 0x10 if position == 38 else bits
    )
    with pytest.raises(RecordCorruptError) as caught:
        read(tmp_path)
    assert f"physical offset {victim}" in str(caught.value)
    assert what in str(caught.value)
    rows = read(tmp_path, failOnDataLoss="false")
    assert len(rows) == 19
    assert victim not in {row["phys_offset"] for row in rows}


@pytest.mark.parametrize("make", TIERS[1:], indirect=True)
def test_both_parts_say_the_same_of_damaged_records(
    make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = odd_store(tmp_path)
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    starts = np.array([r["phys_offset"] for r in files.rows if r["phys_offset"] < len(log)])
    rng = Random(3)
    outcomes = set()
    for _ in range(600):
        data = bytearray(log)
        for _ in range(rng.choice((0, 1, 1, 3))):
            data[int(rng.choice(starts)) + rng.randrange(0, 130)] ^= 1 << rng.randrange(8)
        said = []
        for part in (COMPILED, None):
            use(part, monkeypatch)
            said.append(laid_out(bytes(data), starts) + laid_out(bytes(data[:2000]), starts[:10]))
        assert said[0] == said[1]
        outcomes.add(len(said[0]))
    assert len(outcomes) > 1


def laid_out(data: bytes, starts: Any) -> list[Any]:
    """Return everything that is found about records, or what is wrong with them."""
    try:
        layout = decode.lay_out(decode.LogSlice.over(data, 0), starts)
    except RecordCorruptError as error:
        return [str(error)]
    arrays = [getattr(layout, name).tolist() for name in decode.LAYOUT_ARRAYS]
    return [*arrays, decode.bad_crcs(layout).tolist()]


def test_verify_crc_finds_a_flipped_bit_of_a_body(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    files.fill(20)
    damage(tmp_path, files.rows[5]["phys_offset"], 90)
    assert len(read(tmp_path)) == 20
    with pytest.raises(DataLossError, match="CRC_MISMATCH"):
        read(tmp_path, verifyCrc="true")
    assert len(read(tmp_path, verifyCrc="true", failOnDataLoss="false")) == 19


def test_a_body_that_cannot_be_inflated_is_named(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path)
    files.put(body=b"not packed", sys_flag=with_compression_type(0, CompressionType.ZLIB))
    with pytest.raises(RecordCorruptError, match=r"BODY_UNDECODABLE.*physical offset 0"):
        read(tmp_path)
    assert read(tmp_path, decompress="false")[0]["body"] == b"not packed"


def calls_to_read(root: Path, count: int) -> int:
    """Count the calls that reading a store of so many rows takes."""
    StoreFiles(root, segment_size=1 << 23, queue_entries=20000).fill(count)
    options = SourceOptions.parse({"path": str(root), "minPartitions": "1", **EVERYTHING})
    (window,) = plan_batch(options, Pushed())
    list(read_window(options, window, ALL_COLUMNS))
    profile = cProfile.Profile()
    profile.enable()
    rows = sum(batch.num_rows for batch in read_window(options, window, ALL_COLUMNS))
    profile.disable()
    assert rows == count
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_fewer_than_one_python_call_in_twenty_rows(tmp_path: Path) -> None:
    few, many = calls_to_read(tmp_path / "few", 8000), calls_to_read(tmp_path / "many", 24000)
    assert many / 24000 < 0.25  # with the fixed cost of a task
    assert (many - few) / 16000 < 0.05
