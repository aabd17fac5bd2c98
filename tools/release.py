"""Cuts a release: the version in its one place, and the changelog.

`make release VERSION=0.2.0` calls it before and after everything was checked and built. Nothing is
uploaded, and nothing is committed or tagged without you: docs/DEPLOYMENT.md says how to go on.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = ROOT / "src" / "twinlog" / "__init__.py"
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)
OPEN = "## Unreleased"
NEXT = """\
release {version} is ready in dist/. {address} To publish it:
  git commit -am "Release {version}" && git tag -a v{version} -m "twinlog {version}"
  git push --follow-tags
  python -m twine upload dist/*
"""


class ReleaseError(Exception):
    """The release cannot be cut; the text says why."""


def numbers(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}", version):
        raise ReleaseError(f"VERSION must be three numbers, as in 0.2.0, not {version!r}")
    return tuple(int(part) for part in version.split("."))


def with_version(text: str, version: str) -> str:
    found = VERSION.search(text)
    assert found is not None, "the version has moved"
    if numbers(version) < numbers(found.group(1)):
        raise ReleaseError(f"VERSION {version} is below the present one, {found.group(1)}")
    return VERSION.sub(f'__version__ = "{version}"', text)


def with_section(text: str, version: str, day: datetime.date) -> str:
    """The changelog with what was open under the version, and an empty open section above it."""
    if re.search(rf"^## {re.escape(version)}\b", text, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has a section for {version} already")
    before, mark, after = text.partition(f"{OPEN}\n")
    if not mark:
        raise ReleaseError(f"CHANGELOG.md has no section {OPEN!r}")
    if not after.partition("\n## ")[0].strip():
        raise ReleaseError("CHANGELOG.md says nothing about this release")
    return f"{before}{OPEN}\n\n## {version} - {day:%Y-%m-%d}\n{after}"


def changed() -> set[Path]:
    done = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise ReleaseError(f"git cannot say what has changed: {done.stderr.strip()}")
    return {ROOT / line[3:] for line in done.stdout.splitlines()}


def is_cut(version: str) -> bool:
    """An earlier call got so far, and a check failed."""
    found = VERSION.search(VERSION_FILE.read_text(encoding="utf-8"))
    section = re.compile(rf"^## {re.escape(version)} - ", re.MULTILINE)
    is_there = section.search(CHANGELOG.read_text(encoding="utf-8")) is not None
    return found is not None and found.group(1) == version and is_there


def check_address(url: str) -> None:
    """Before anything is changed, not at the end, when the packages are built."""
    try:
        runpy.run_path(str(ROOT / "tools" / "metadata_hook.py"))["project_urls"](url)
    except ValueError as error:
        raise ReleaseError(str(error)) from error


def cut(version: str) -> None:
    check_address(os.environ.get("TWINLOG_PROJECT_URL", ""))
    there = changed()
    if there == {VERSION_FILE, CHANGELOG} and is_cut(version):
        return
    if there:
        raise ReleaseError("the work tree has changes: commit them first")
    code = with_version(VERSION_FILE.read_text(encoding="utf-8"), version)
    log = with_section(CHANGELOG.read_text(encoding="utf-8"), version, datetime.date.today())
    VERSION_FILE.write_text(code, encoding="utf-8")
    CHANGELOG.write_text(log, encoding="utf-8")


def address_line(environment: Mapping[str, str]) -> str:
    """What the metadata says about where the project is (tools/metadata_hook.py)."""
    url = environment.get("TWINLOG_PROJECT_URL", "")
    if url:
        return f"Its metadata names {url}."
    return (
        "Its metadata names no address of the project; `make release ... URL=https://...` adds one."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--next", action="store_true", help="Say what is left to do.")
    options = parser.parse_args()
    try:
        if options.next:
            print(NEXT.format(version=options.version, address=address_line(os.environ)))
        else:
            cut(options.version)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
