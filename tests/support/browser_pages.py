"""What the tests in the browser share: pages, screenshots, the judgement of axe-core."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

SHOTS = Path(__file__).resolve().parents[2] / ".cache" / "browser" / "screenshots"
# Path, name of its screenshot.
PAGES_SHOWN = (
    ("/", "replication"),
    ("/overview", "overview"),
    ("/topics", "topics"),
    ("/topics/orders", "topic"),
    ("/groups", "groups"),
    ("/groups/shipping", "group"),
    ("/messages?by=key&topic=orders&key=o-7", "messages"),
    ("/dead-letters", "dead-letters"),
    ("/transactions", "transactions"),
    ("/delayed", "delayed"),
    ("/connections", "connections"),
    ("/configuration?only=live", "configuration"),
    ("/rules", "rules"),
    ("/lab", "lab"),
    ("/audit", "audit"),
)


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def serious_faults(page: Page, axe: str) -> list[str]:
    """Serious and critical violations, each with the first element that has it."""
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:160]}"
        for v in result["violations"]
        if v["impact"] in ("serious", "critical")
    ]
