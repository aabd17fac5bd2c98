"""Cutting a release: version and changelog."""

from __future__ import annotations

import datetime
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twinlog import __version__

ROOT = Path(__file__).resolve().parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "release.py"))
ReleaseError = TOOL["ReleaseError"]
DAY = datetime.date(2026, 11, 17)
OPEN = "# Changelog\n\n## Unreleased\n\n### Features\n- One.\n\n## 0.1.0 - 2026-01-01\n- Zero.\n"


def test_what_was_open_gets_the_version_and_the_day() -> None:
    assert TOOL["with_section"](OPEN, "0.2.0", DAY) == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-11-17\n\n### Features\n- One.\n\n"
        "## 0.1.0 - 2026-01-01\n- Zero.\n"
    )


@pytest.mark.parametrize(
    ("text", "version", "reason"),
    [
        (OPEN, "0.1.0", "section for 0.1.0 already"),
        ("# Changelog\n", "0.2.0", "no section"),
        ("## Unreleased\n\n## 0.1.0\n- Zero.\n", "0.2.0", "says nothing"),
    ],
)
def test_a_changelog_that_cannot_be_cut_is_refused(text: str, version: str, reason: str) -> None:
    with pytest.raises(ReleaseError, match=reason):
        TOOL["with_section"](text, version, DAY)


def test_the_version_is_in_one_place_and_does_not_go_back() -> None:
    text = TOOL["VERSION_FILE"].read_text(encoding="utf-8")
    assert TOOL["with_version"](text, __version__) == text
    assert '__version__ = "99.0.0"' in TOOL["with_version"](text, "99.0.0")
    for wrong, reason in (
        ("0.0.1", "below"), ("", "three numbers"), ("1.0", "three numbers"),
        ("9.01.0", "three numbers"), ("9.٢.0", "three numbers"),
    ):  # fmt: skip
        with pytest.raises(ReleaseError, match=reason):
            TOOL["with_version"](text, wrong)


def test_the_version_is_in_the_changelog() -> None:
    log = TOOL["CHANGELOG"].read_text(encoding="utf-8")
    assert f"## {__version__} - " in log
    assert "## Unreleased\n" in log


@pytest.mark.parametrize("url", ["", "https://example.org/twinlog"])
def test_the_address_of_the_project_is_given_when_it_is_built(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINLOG_PROJECT_URL", url)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "metadata", "urls"], cwd=ROOT, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == ({"Homepage": url, "Source": url} if url else {})
    assert (url or "names no address") in TOOL["address_line"](os.environ)


def test_an_address_that_is_none_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINLOG_PROJECT_URL", "example.org")
    command = [sys.executable, "-m", "hatchling", "metadata", "urls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "https://" in done.stderr


def test_a_release_whose_checks_failed_may_be_tried_again(tmp_path: Path) -> None:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    tools = ("tools/release.py", "tools/metadata_hook.py")
    for name in (*tools, "src/twinlog/__init__.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = tmp_path / "CHANGELOG.md"
    log.write_text(OPEN)
    cut = (sys.executable, "tools/release.py", "99.0.0")
    without_git = run(*cut)
    assert (without_git.returncode, "git" in without_git.stderr) == (1, True)
    assert "Traceback" not in without_git.stderr
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    assert [run("git", *words).returncode for words in (("init", "-q"), ("add", "."),
            (*who, "commit", "-qm", "x"))] == [0, 0, 0]  # fmt: skip
    nowhere = run("env", "TWINLOG_PROJECT_URL=example.org", *cut)
    assert (nowhere.returncode, "https://" in nowhere.stderr) == (1, True)
    assert "## 99.0.0" not in log.read_text()
    assert [run(*cut).returncode for _ in range(2)] == [0, 0]
    assert log.read_text().count("## 99.0.0") == 1
    (tmp_path / "other").touch()
    refused = run(*cut)
    assert (refused.returncode, "commit them first" in refused.stderr) == (1, True)
