"""What the repository's own files and the generated ones have in common."""

from __future__ import annotations

from pathlib import Path

from twinlog.cli.generate.cluster_keys import HEALTH_CHECK


def test_containers_are_asked_for_their_health_in_the_same_words() -> None:
    file = Path(__file__).parents[3] / "Containerfile"
    assert f'"{HEALTH_CHECK}"' in file.read_text()
