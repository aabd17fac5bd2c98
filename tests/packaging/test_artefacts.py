"""What `make dist` made, installed where there is nothing else and used as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from twinlog import __version__
from twinlog.runtime.compiled import PARTS

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
INSTALL_SECONDS_MAX = 600


def artefact(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}; `make dist` builds them"
    return found[0]


def run(*command: str | Path, **environment: str) -> str:
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    kept |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    done = subprocess.run(
        [str(word) for word in command],
        env=kept | environment, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def installed(directory: Path, package: Path, **environment: str) -> Path:
    """The `bin` of a new environment with this artefact and what it requires."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", package, **environment)
    return directory / "bin"


def code_line(programs: Path) -> str:
    lines = run(programs / "twinlog", "version", "--all").splitlines()
    return next(line for line in lines if line.startswith("code"))


def test_the_platform_wheel_is_compiled_and_small(tmp_path: Path) -> None:
    programs = installed(tmp_path / "env", artefact("*-cp*.whl"))
    assert f"compiled ({len(PARTS)} parts)" in code_line(programs)
    assert run(programs / "twinlog", "--version").strip() == f"twinlog, version {__version__}"
    listed = run(programs / "python", "-m", "pip", "list", "--format", "freeze").lower()
    for heavy in ("pyspark", "numpy", "pyarrow", "pandas", "cython", "setuptools==8"):
        assert heavy not in listed
    loaded = run(
        programs / "python", "-c",
        "import sys, twinlog.client; print([n for n in sys.modules if n.startswith('twinlog.')])",
    )  # fmt: skip
    for room in ("twinlog.store", "twinlog.broker", "twinlog.ha", "twinlog.spark"):
        assert f"'{room}" not in loaded


def test_the_pure_wheel_says_that_it_is_pure(tmp_path: Path) -> None:
    programs = installed(tmp_path / "env", artefact("*-py3-none-any.whl"))
    assert code_line(programs).split()[1] == "pure;"


def test_without_a_compiler_the_sdist_becomes_a_pure_installation(tmp_path: Path) -> None:
    """A PATH with nothing in it, and a compiler that is not there: as on a small server."""
    empty = tmp_path / "bin"
    empty.mkdir()
    programs = installed(
        tmp_path / "env", artefact("*.tar.gz"), PATH=str(empty), CC="no-such-compiler"
    )
    assert code_line(programs).split()[1] == "pure;"


def test_with_a_compiler_the_sdist_becomes_a_compiled_installation(tmp_path: Path) -> None:
    programs = installed(tmp_path / "env", artefact("*.tar.gz"))
    assert f"compiled ({len(PARTS)} parts)" in code_line(programs)


def test_the_installed_wheel_keeps_the_counted_budgets(tmp_path: Path) -> None:
    """The speed that was measured, by counts of calls: of the wheel, not of this tree."""
    site = tmp_path / "site"
    with zipfile.ZipFile(artefact("*-cp*.whl")) as wheel:
        wheel.extractall(site)
    printed = run(
        sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "cost"),
        PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    assert " passed" in printed
    assert "skipped" not in printed
    where = run(
        sys.executable, "-c", "import twinlog; print(twinlog.__file__)", PYTHONPATH=str(site)
    )
    assert where.strip().startswith(str(site))


def test_wheels_have_no_sources_of_compiled_parts_and_no_simulation() -> None:
    """A source next to a compiled part would look newer than it, and the part would not be used."""
    for pattern in ("*-cp*.whl", "*-py3-none-any.whl"):
        with zipfile.ZipFile(artefact(pattern)) as wheel:
            names = wheel.namelist()
        assert not [name for name in names if name.endswith((".pyx", ".pxd"))]
        assert not [name for name in names if "/testing/" in name]
        assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_sdist_builds_what_it_says() -> None:
    with tarfile.open(artefact("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"tools/compile.py", "tools/build_hook.py", "tools/metadata_hook.py"}
    assert needed | {"README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith(".so")]
