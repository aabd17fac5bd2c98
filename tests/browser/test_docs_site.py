"""The documentation as `make docs` leaves it: opened from the disk, without a web server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / ".cache" / "site"


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run(
        ["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return SITE


@pytest.mark.parametrize("start", ["index.html", "guides/run-a-pair.html"])
def test_pages_on_disk_can_be_searched(chromium: Browser, site: Path, start: str) -> None:
    """Red: a browser starts no worker for a file, so the theme hides the search."""
    page = chromium.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / start).as_uri())
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("haListenPort")
    found = page.locator(".md-search-result__link[href*='CONFIGURATION.html']").first
    expect(found).to_be_visible(timeout=60_000)
    found.click()
    expect(page.locator("article")).to_contain_text("haListenPort", timeout=60_000)
    assert "CONFIGURATION.html" in page.url
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
