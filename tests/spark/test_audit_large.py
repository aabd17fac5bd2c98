"""One flipped bit anywhere in 1 GiB, and other damage of the size that real logs have."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import spark_work
from test_decode import damage
from test_jobs import edit

from twinlog.spark.decode.records import chain
from twinlog.spark.jobs.audit import audit
from twinlog.spark.read.store_view import StoreView

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(1800)]
SEED = 20261116
FLIPS = 12
SIZE = 1 << 30


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("gib")
    spark_work.generate(root / "master", 1024, SIZE + (8 << 20))  # some records in the last segment
    shutil.copytree(root / "master", root / "slave")
    yield root / "master", root / "slave"
    shutil.rmtree(root)


def records(store: Path, segment: int) -> list[tuple[int, int]]:
    """Physical offset and size of all records of one segment."""
    log = StoreView(store).log.segment(segment)
    starts = [*chain(log)]
    sizes = [int.from_bytes(log.view[at : at + 4].tobytes(), "big") for at in starts]
    return [(log.base + at, size) for at, size in zip(starts, sizes, strict=True)]


def content(store: Path, place: int, size: int) -> bytes:
    return StoreView(store).log.read(place, size)


def test_one_flipped_bit_anywhere_is_found(spark: Any, pair: tuple[Path, Path]) -> None:
    master, slave = pair
    end = StoreView(master).log_end()
    assert end >= SIZE
    assert audit(master, slave, spark=spark, settle=0).findings == []
    rng = Random(SEED)
    for _ in range(FLIPS):
        place, bit = rng.randrange(end), 1 << rng.randrange(8)
        damage(slave, place, 0, bit)
        found = audit(master, slave, spark=spark, settle=0).findings
        damage(slave, place, 0, bit)
        assert len(found) in (1, 2), f"seed {SEED}, bit {bit} at {place}: {found}"
        assert found[0]["phys_offset"] <= place
        assert str(place) in found[0]["detail"] or place < found[0]["phys_offset"] + 2000
    assert audit(master, slave, spark=spark, settle=0).findings == []


def test_removed_swapped_and_truncated_records_are_named(
    spark: Any, pair: tuple[Path, Path]
) -> None:
    master, slave = pair
    rng = Random(SEED)
    middle = records(master, 2)
    at = rng.randrange(len(middle) - 2)
    (one, one_size), (two, two_size) = middle[at], middle[at + 1]

    edit(slave, one, bytes(one_size))
    found = audit(master, slave, spark=spark, settle=0).findings
    assert [(f["kind"], f["phys_offset"]) for f in found] == [("MISSING_ON_SLAVE", one)]
    swapped = content(master, two, two_size) + content(master, one, one_size)
    edit(slave, one, swapped)
    found = audit(master, slave, spark=spark, settle=0).findings
    assert {f["phys_offset"] for f in found} >= {one}
    edit(slave, one, content(master, one, one_size) + content(master, two, two_size))
    assert audit(master, slave, spark=spark, settle=0).findings == []

    end = StoreView(master).log_end()
    last_segment = len(StoreView(master).log.paths) - 1
    tail = records(master, last_segment)[-3][0]
    kept = content(slave, tail, end - tail)
    queues = slave / "consumequeue"
    queues.rename(slave / "aside")  # a slave that lost its tail has lost the entries for it too
    edit(slave, tail, bytes(end - tail))
    found = audit(master, slave, spark=spark, settle=0).findings
    assert [f["kind"] for f in found] == ["TRUNCATED_TAIL"] * 3
    found = audit(slave, master, spark=spark, settle=0).findings
    assert [(f["kind"], f["phys_offset"]) for f in found] == [("EXTRA_TAIL", tail)]
    edit(slave, tail, kept)
    (slave / "aside").rename(queues)
