"""The commands: exit codes, the JSON line that comes last, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from storefiles import StoreFiles, unpack_vectors

from twinlog.cli.spark import JOBS, condition_of, kebab
from twinlog.cli.spark import spark as group


def call(*arguments: object) -> Result:
    return CliRunner().invoke(group, list(map(str, arguments)))


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


def test_no_java_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = call("stats", tmp_path / "store", "--quiet")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "Java 17 or newer" in result.stderr
    assert last(result)["error"] == "NO_JAVA"


def test_a_wrong_store_option_or_call_is_told_before_spark_starts(tmp_path: Path) -> None:
    StoreFiles(tmp_path / "store").fill(4)
    missing = call("audit", tmp_path / "store", tmp_path / "none")
    assert (missing.exit_code, last(missing)["error"]) == (3, "STORE_NOT_FOUND")
    wrong = call("archive", tmp_path / "store", "--out", tmp_path / "a", "--batch-rows", "some")
    assert (wrong.exit_code, last(wrong)["error"]) == (2, "BAD_OPTION")
    assert call("archive").exit_code == 2
    assert call("stats", tmp_path / "store", "--batch-row", "5").exit_code == 2


def test_our_errors_are_found_in_the_text_of_spark() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback ...\n"
        "twinlog.spark.errors.NotFoundError: [TOPIC_NOT_FOUND] there is no topic 'x'\n"
    )
    assert condition_of(text) == ("TOPIC_NOT_FOUND", "there is no topic 'x'", 3)
    assert condition_of("something else\nmore") == ("SPARK_FAILED", "something else", 2)
