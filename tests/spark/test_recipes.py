"""The recipes and the short pieces of docs/SPARK.md, run as they stand."""

from __future__ import annotations

import os
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from storefiles import StoreFiles

from support.doc_blocks import blocks_run_by
from support.processes import process_group
from support.twinlog_servers import free_broker_port, start_twinlog_broker, start_twinlog_namesrv
from twinlog.cli.main import cli

BLOCKS = blocks_run_by("tests/spark/test_recipes.py", "docs/SPARK.md")
RECIPES = [block for block in BLOCKS if block.section[0].isdigit()]


def follow(text: str) -> None:
    """Run lines of a shell as commands of this process: each JVM that need not start is saved."""
    for line in text.strip().splitlines():
        program, *arguments = (os.path.expandvars(word) for word in shlex.split(line))
        assert program == "twinlog"
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments, standalone_mode=False)
        assert ended.value.code == 0, line


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_five_recipes_run_as_they_stand(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(120)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WORK", str(tmp_path / "work"))
    assert [block.section[0] for block in RECIPES] == ["1", "2", "3", "4", "5"]
    for block in RECIPES:
        if block.language == "python":
            exec(compile(block.text, "recipe", "exec"), {"__name__": "recipe"})
        else:
            follow(block.text)
    printed = capsys.readouterr().out
    assert "60 rows" in printed
    assert f"total {sum(n % 97 for n in range(0, 120, 2))}" in printed
    assert (tmp_path / "work" / "report.html").stat().st_size > 5000


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    for name in ("n", "m"):
        (tmp_path / name).mkdir()
    with process_group() as group:
        server = start_twinlog_namesrv(tmp_path / "n")
        group.add(server)
        group.add(start_twinlog_broker(tmp_path / "m", namesrv=server.address))
        yield server.address


def piece(section: str) -> str:
    (block,) = [block for block in BLOCKS if block.section == section]
    return block.text


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_short_commands_run_as_they_stand(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    StoreFiles(tmp_path / "store").fill(40)
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WORK", str(tmp_path))
    follow(piece("SQL"))
    assert "messages" in capsys.readouterr().out
    follow(piece("Lakehouse tables"))
    assert (tmp_path / "lake" / "_delta_log").is_dir()
    assert (tmp_path / "berg" / "catalog.db").is_file()


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_short_pieces_run_as_they_stand(spark: Any, tmp_path: Path, name_server: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("four\nfive\n")
    listeners = []

    class Streams:
        """Spark's own, which remembers what has to be removed from the session of all tests."""

        def addListener(self, listener: Any) -> None:  # noqa: N802
            listeners.append(listener)
            spark.streams.addListener(listener)

    names = {
        "spark": SimpleNamespace(streams=Streams()),
        "frame": spark.createDataFrame([("one",), ("two",), ("three",)], "body STRING"),
        "stream": spark.readStream.text(str(tmp_path / "in")).withColumnRenamed("value", "body"),
    }
    port = free_broker_port()
    try:
        for section in ("Lag", "Writing into topics", "Exactly once"):
            text = piece(section).replace("127.0.0.1:9876", name_server)
            text = text.replace('"check"', repr(str(tmp_path / "check"))).replace("9400", str(port))
            exec(compile(text, section, "exec"), names)
        (query,) = spark.streams.active
        query.processAllAvailable()
        query.stop()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"twinlog_spark_rows_behind" in answer.read()
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    place = {"nameServer": name_server, "subscribe": "orders"}
    rows = spark.read.format("twinlog").options(**place).load().select("body").collect()
    bodies = [bytes(row.body).decode() for row in rows]
    assert sorted(bodies) == ["five", "four", "one", "three", "two"]
