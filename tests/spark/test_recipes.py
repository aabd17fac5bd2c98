"""The recipes of docs/SPARK.md, run as they stand."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from storefiles import StoreFiles

from twinlog.cli.main import cli

DOCS = Path(__file__).resolve().parents[2] / "docs" / "SPARK.md"
RECIPE = re.compile(r"^### (\d)\..*?```(bash|python)\n(.*?)```", re.MULTILINE | re.DOTALL)


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
    recipes = RECIPE.findall(DOCS.read_text("utf-8"))
    assert [number for number, _, _ in recipes] == ["1", "2", "3", "4", "5"]
    for _, language, text in recipes:
        if language == "python":
            exec(compile(text, "recipe", "exec"), {"__name__": "recipe"})
        else:
            follow(text)
    printed = capsys.readouterr().out
    assert "60 rows" in printed
    assert f"total {sum(n % 97 for n in range(0, 120, 2))}" in printed
    assert (tmp_path / "work" / "report.html").stat().st_size > 5000
