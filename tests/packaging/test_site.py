"""`make docs`: links that lead somewhere, search, and nothing loaded from elsewhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".cache" / "site"
pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]


def test_the_site_builds_and_can_be_searched() -> None:
    """The build is strict and fails by itself when a page would load from another host."""
    done = subprocess.run(
        ["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in ("COMMANDS.html", "guides/lose-a-master.html", "zh/quick-start.html"):
        assert page in found
    assert any("haListenPort" in entry["text"] for entry in index["docs"])
    assert "twinlog is a message broker" in (SITE / "index.html").read_text(encoding="utf-8")
    # Red: examples of a hundred letters did not fit next to the two lists of links.
    assert "max-width" in (SITE / "assets" / "site.css").read_text(encoding="utf-8")
    assert "assets/site.css" in (SITE / "index.html").read_text(encoding="utf-8")
    # Red: code in tables shows the backslashes before its bars.
    commands = (SITE / "COMMANDS.html").read_text(encoding="utf-8")
    assert "table|wide|json|yaml|name" in commands
