"""The commands: exit codes, the JSON line that comes last, errors in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from storefiles import StoreFiles, unpack_vectors

from twinlog.cli.spark import JOBS, kebab
from twinlog.cli.spark import spark as group
from twinlog.spark.errors import condition_of
from twinlog.spark.run.session import check_python


def call(*arguments: object) -> Result:
    return CliRunner().invoke(group, list(map(str, arguments)))


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process of its own: a job uses the session of its program, and tests have one."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)


def last(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_every_job_has_help_and_kebab_case_options() -> None:
    for name in JOBS:
        result = call(name, "--help")
        assert result.exit_code == 0, result.output
    assert "--max-offsets-per-trigger" in call("archive", "--help").output
    assert [kebab(n) for n in ("useTLS", "verifyCrc", "batchRows")] == [
        "use-tls", "verify-crc", "batch-rows",
    ]  # fmt: skip


def test_find_and_lag_answer_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    root = unpack_vectors(tmp_path / "store")
    found = call("find", root, "--key", "key1")
    assert found.exit_code == 0
    assert json.loads(found.stdout.splitlines()[0])["phys_offset"] == 189
    assert last(found)["found"] == 1
    behind = call("lag", root, "--group", "GID_order")
    assert (behind.exit_code, last(behind)["messages_behind"]) == (0, 9)
    assert call("find", root, "--key", "nothing").exit_code == 3
    assert call("lag", root, "--group", "nobody").exit_code == 3
    assert call("find", tmp_path / "no store", "--key", "x").exit_code == 3


@pytest.mark.usefixtures("no_session")
def test_no_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = call("stats", tmp_path / "store", "--quiet")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "Java 17 or newer" in result.stderr
    assert last(result)["error"] == "NO_JAVA"


@pytest.mark.usefixtures("no_session")
def test_a_python_for_workers_that_does_not_run_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "no-python"))
    result = call("stats", tmp_path / "store", "--quiet")
    assert (result.exit_code, last(result)["error"]) == (2, "NO_PYTHON")
    assert result.stderr.count("\n") == 1
    assert "a Python that has twinlog" in result.stderr


def test_without_pyspark_python_the_workers_get_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    check_python()
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_settings_and_files_of_a_session_are_checked(tmp_path: Path) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    wrong = call("stats", tmp_path / "store", "--conf", "spark.executor.memory")
    assert wrong.exit_code == 2
    assert "KEY=VALUE" in wrong.output
    missing = call("stats", tmp_path / "store", "--py-files", tmp_path / "none.whl")
    assert missing.exit_code == 2
    assert "no such file" in missing.output


def test_an_unreadable_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreFiles(tmp_path / "store").fill(4)

    def refuse(path: Any, *arguments: Any, **more: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("twinlog.spark.read.store_view.os.listdir", refuse)
    result = call("verify", tmp_path / "store", "--quiet")
    assert (result.exit_code, last(result)["error"]) == (3, "STORE_NOT_FOUND")
    assert "cannot be read" in result.stderr


def test_a_wrong_store_option_or_call_is_told_before_spark_starts(tmp_path: Path) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    missing = call("audit", tmp_path / "store", tmp_path / "none")
    assert (missing.exit_code, last(missing)["error"]) == (3, "STORE_NOT_FOUND")
    wrong = call("archive", tmp_path / "store", "--out", tmp_path / "a", "--batch-rows", "some")
    assert (wrong.exit_code, last(wrong)["error"]) == (2, "BAD_OPTION")
    assert call("archive").exit_code == 2
    assert call("stats", tmp_path / "store", "--batch-row", "5").exit_code == 2


@pytest.mark.parametrize("out", ["s3a://bucket/x", "foo://x/y"])
def test_no_job_takes_a_uri_for_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """Each says so before Spark starts; none makes a directory of the scheme's name."""
    StoreFiles(tmp_path / "store").fill(4)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.chdir(tmp_path)
    typed = ("--decode-body", "json", "--body-schema", "id INT")
    calls = [("archive", tmp_path / "store"), ("report", tmp_path / "store"), ("pack",)]
    if out.startswith("foo"):  # Spark may have the other one
        calls += [("export", tmp_path / "store"), ("decode", tmp_path / "store", *typed)]
    for arguments in calls:
        result = call(*arguments, "--out", out)
        assert (result.exit_code, last(result)["error"]) == (2, "BAD_PLACE"), arguments
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("place", ["s3a://bucket/x", "foo://x/y"])
def test_no_job_reads_a_uri_as_a_relative_path(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for arguments in (("lag", place), ("stats", place), ("find", place, "--key", "k")):
        result = call(*arguments)
        assert (result.exit_code, last(result)["error"]) == (2, "BAD_PLACE"), arguments


def test_a_mirror_to_nobody_is_unreachable(tmp_path: Path) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    check = ("--checkpoint", tmp_path / "check")
    result = call("mirror", tmp_path / "store", "--to", "127.0.0.1:1", *check)
    assert (result.exit_code, last(result)["error"]) == (4, "BROKER_UNREACHABLE")
    assert "127.0.0.1:1" in result.stderr


def test_our_errors_are_found_in_the_text_of_spark() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback ...\n"
        "twinlog.spark.errors.NotFoundError: [TOPIC_NOT_FOUND] there is no topic 'x'\n"
    )
    assert condition_of(text) == ("TOPIC_NOT_FOUND", "there is no topic 'x'", 3)
    assert condition_of("something else\nmore") == ("SPARK_FAILED", "something else", 2)
    worker = (
        "Job aborted\nTraceback\n  File x\nModuleNotFoundError: No module named 'twinlog'\n at y"
    )
    assert condition_of(worker)[1] == "Job aborted: ModuleNotFoundError: No module named 'twinlog'"


def test_the_guide_lists_every_option_and_column() -> None:
    from twinlog.spark.decode.columns import ALL_COLUMNS
    from twinlog.spark.options import READ_OPTIONS

    guide = (Path(__file__).resolve().parents[2] / "docs" / "SPARK.md").read_text("utf-8")
    options = guide[guide.index("## Options") : guide.index("## Jobs")]
    columns = guide[guide.index("## Columns") : guide.index("## Options")]
    assert [name for name in READ_OPTIONS if f"`{name}`" not in options] == []
    assert [name for name in ALL_COLUMNS if f"`{name}`" not in columns] == []


def test_the_help_of_a_job_explains_every_option() -> None:
    """Whoever installed a wheel has no docs/ to look into."""
    from twinlog.cli.spark_options import SOURCE_OPTIONS
    from twinlog.spark.options import READ_OPTIONS

    positional = {"path", "archive"}
    assert set(SOURCE_OPTIONS) == set(READ_OPTIONS) - positional


def test_a_session_leaves_the_environment_of_its_program_as_it_was(spark: SparkSession) -> None:
    """Only its own workers import the installed PySpark; other programs may run another Python."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    assert not (Path(jvm.System.getenv("SPARK_HOME")) / "python").exists()
    assert "SPARK_HOME" not in os.environ
