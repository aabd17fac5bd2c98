"""The console blocks of reference pages, typed one after the other on a cluster of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import TWINLOG
from support.page_reader import Reader

DOCS = Path(__file__).parents[2] / "docs"
EFFECTS = {
    "GROUPS": ["is healthy: 2 copies", "is the master of broker-a now", "elected"],
    "MONITORING": ["is healthy", "scrape_configs", "TwinlogNoMaster", "broker-started"],
    "DEPLOYMENT": ["NoNewPrivileges", "brokerIP1=192.0.2.10", "kind: StatefulSet"],
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EFFECTS)
def test_a_page_can_be_followed_literally(tmp_path: Path, name: str) -> None:
    reader = Reader(tmp_path, TWINLOG.parent)
    try:
        reader.check(DOCS / f"{name}.md", EFFECTS[name])
    finally:
        reader.clean_up()
