"""Bits flipped at random places of the files of a master and its slave.

Nothing damaged is served, by either, at any time; what was flipped is healed by one scrub of each,
or named until the other node is back.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.decay import CONDITIONS, decay_story

SEED = int(os.environ.get("SEED", "100"))
STORIES = 2  # Of each condition: 5 conditions, 100 places each, make the thousand.


@pytest.mark.timeout(300)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_some_places(tmp_path: Path, condition: str) -> None:
    tally = decay_story(tmp_path, condition, 1, 20, 1_500)
    assert (tally.places.total(), tally.damaged) == (20, 0)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("story", range(STORIES))
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_thousand_places(
    tmp_path: Path, condition: str, story: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """SEED= chooses others."""
    tally = decay_story(tmp_path, condition, SEED + story, 100, 6_000)
    with capsys.disabled():
        print(f"\n{tally.line}")
    assert tally.places.total() == 100
