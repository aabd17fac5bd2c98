"""A master dies under Java clients and comes back; twenty seeds on our pair, then mixed pairs.

TWINLOG_STORY_SEEDS=2 tells fewer. The clients ask for routes every second so that twenty fit; one
more telling, next to Apache's own pair in the same run, keeps the client's defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.java_story import JAVA_DEFAULTS, Pair, Story, tell
from support.java_driver import Driver
from support.processes import process_group

SEEDS = int(os.environ.get("TWINLOG_STORY_SEEDS", "20"))
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def twin_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all seeds: each has names of its own, and the log of those before it."""
    with process_group() as group:
        directory = tmp_path_factory.mktemp("pair")
        yield Pair(group, directory, master_of="twinlog", slave_of="twinlog")


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_the_story(twin_pair: Pair, java: Driver, seed: int) -> None:
    twin_pair.revive()  # A seed that failed must not fail the others.
    tell(Story(twin_pair, java, seed))


@pytest.mark.parametrize(("master_of", "slave_of"), [("apache", "twinlog"), ("twinlog", "apache")])
def test_the_story_with_apache_at_one_end(
    tmp_path: Path, java: Driver, master_of: str, slave_of: str
) -> None:
    with process_group() as group:
        pair = Pair(group, tmp_path, master_of=master_of, slave_of=slave_of)
        tell(Story(pair, java, 21))


def test_beside_apaches_own_pair_with_the_clients_defaults(tmp_path: Path, java: Driver) -> None:
    """The table of `make bench`, row failover-java, once: printed, not judged but for loss."""
    lines = []
    for make in ("twinlog", "apache"):
        with process_group() as group:
            pair = Pair(group, tmp_path / make, master_of=make, slave_of=make)
            story = Story(pair, java, 22, **JAVA_DEFAULTS)
            tell(story)
        measured = story.measured
        lines.append(
            f"{make:8} first read {measured.first_read_s:5.1f} s after SIGKILL, sends work"
            f" {measured.sends_work_s:4.1f} s after the restart, offsets fall back by"
            f" {measured.fallback_messages} messages for {measured.fallback_s:.1f} s"
        )
    print("\n" + "\n".join(lines))
