"""What the repository's own files and the generated ones have in common."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from twinlog.cli.generate.cluster_keys import HEALTH_CHECK

ROOT = Path(__file__).parents[3]


def test_containers_are_asked_for_their_health_in_the_same_words() -> None:
    assert f'"{HEALTH_CHECK}"' in (ROOT / "Containerfile").read_text()


def test_a_configuration_without_paths_writes_to_the_volume() -> None:
    """Red: such a store is in a home directory of the image, and is lost with the container."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    volume = next(line for line in lines if line.startswith("VOLUME ")).removeprefix("VOLUME ")
    variables = " ".join(line for line in lines if line.startswith("ENV ")).split()
    home = next(v for v in variables if v.startswith("HOME=")).removeprefix("HOME=")
    assert home == volume
    shown = subprocess.run(
        [sys.executable, "-m", "twinlog.cli.main", "config", "print",
         str(ROOT / "conf" / "single-master" / "broker-a.conf")],
        env={**os.environ, "HOME": home}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert ["storePathRootDir", f"{volume}/store"] in [line.split() for line in shown.splitlines()]


def copied_as_the_containerfile_says(to: Path) -> None:
    """The files that the first stage of the image has, and no others."""
    for line in (ROOT / "Containerfile").read_text().splitlines():
        if not line.startswith("COPY "):
            continue
        *sources, target = shlex.split(line)[1:]
        for source in sources:
            place = to / target.removeprefix("/src").lstrip("/")
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
                shutil.copytree(ROOT / source, place, ignore=ignored)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)


def test_the_files_that_the_image_copies_are_enough_to_build_the_wheel(tmp_path: Path) -> None:
    copied_as_the_containerfile_says(tmp_path / "src")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")],
        cwd=tmp_path / "src", env={**os.environ, "TWINLOG_BUILD": "pure"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "wheels").glob("*.whl"))) == 1
