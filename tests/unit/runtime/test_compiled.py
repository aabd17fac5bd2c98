"""Compiled parts are used when they are there, of this source, and wanted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinlog.cli import version
from twinlog.runtime import compiled
from twinlog.runtime.compiled import PARTS, code_tier, load, missing_parts

MODULE = "twinlog.message._hashing"


@pytest.fixture
def built() -> Path:
    module = load(MODULE)
    assert module is not None
    return Path(module.__file__)


def test_what_is_not_there_is_none() -> None:
    assert load("twinlog.message._no_such_part") is None


@pytest.mark.compiled
def test_pure_when_asked_for(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINLOG_PURE", "1")
    assert load(MODULE) is None
    monkeypatch.setenv("TWINLOG_PURE", "0")
    assert load(MODULE) is not None


def test_older_than_its_source_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = tmp_path / "_twin.py"
    module.write_text("")
    source = tmp_path / "_twin.pyx"
    source.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TWINLOG_PURE", "0")
    os.utime(source, (1_000, 1_000))
    monkeypatch.setattr(compiled, "PARTS", ("_twin",))
    assert load("_twin") is not None
    assert code_tier() == "compiled"
    os.utime(source, (module.stat().st_mtime + 5,) * 2)
    assert load("_twin") is None
    assert "make setup" in caplog.text
    assert code_tier() == "pure"
    # Of a clone: no wheel is installed there.
    monkeypatch.setattr(version, "PARTS", ("_twin",))
    assert version.code_text() == (
        "pure; not compiled: _twin. Run `make setup`, which needs a C compiler"
    )
    monkeypatch.setattr(compiled, "PARTS", ("_no_such_part",))
    assert version.code_text().endswith("Install a platform wheel, or a C compiler and reinstall")


def test_what_cannot_be_imported_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_broken_part.py").write_text("raise ImportError('of another layout')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TWINLOG_PURE", "0")
    monkeypatch.setattr(compiled, "PARTS", ("_broken_part",))
    monkeypatch.setattr(compiled, "_refused", set())
    assert load("_broken_part") is None
    assert missing_parts() == ["_broken_part"]


def test_every_compiled_part_is_declared() -> None:
    """What a broker says about its code is true only if no part is missing from the list."""
    source = Path(__file__).resolve().parents[3] / "src"
    found = {
        ".".join(path.relative_to(source).with_suffix("").parts)
        for path in source.rglob("*.pyx")
        if "testing" not in path.parts  # Of the simulations: no broker has it.
    }
    assert set(PARTS) == found


def test_code_is_pure_when_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINLOG_PURE", "1")
    assert code_tier() == "pure"
    assert missing_parts() == list(PARTS)
