"""Debian's chromium, a pair under load, and axe-core, which `make browser` fetches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from support.console import ConsolePair, console_pair
from twinlog.client import ClientError, Message, blocking

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "browser"
SHOTS = CACHE / "screenshots"
LOAD_PAUSE_S = 0.01


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, (
        "chromium is missing: run make browser as root on Debian, or install it"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    path = CACHE / "node_modules" / "axe-core" / "axe.min.js"
    assert path.exists(), "axe-core is missing: run make browser"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsolePair]:
    found = console_pair(tmp_path_factory.mktemp("browser") / "pair")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def load(pair: ConsolePair) -> Iterator[None]:
    """About a hundred messages per second, whatever becomes of them."""
    pair.script().post("/api/topics", json={"topic": "load"})
    stopping = threading.Event()

    def send() -> None:
        with blocking.Producer("load", name_server=pair.namesrv) as producer:
            while not stopping.wait(LOAD_PAUSE_S):
                try:
                    producer.send(Message("load", b"x" * 2000, keys=["load"]))
                except ClientError:
                    continue  # A test has killed the master.

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stopping.set()
    thread.join()


class Watched:
    """A page that remembers what no page of ours may do."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page = context.new_page()
        self.url = url
        self.faults: list[str] = []
        self.page.on("dialog", self._dialog)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", self._asked)

    def _dialog(self, dialog: object) -> None:
        self.faults.append("a dialog opened")
        dialog.dismiss()  # type: ignore[attr-defined]

    def _said(self, message: object) -> None:
        text = message.text  # type: ignore[attr-defined]
        if "Content Security Policy" in text:
            self.faults.append(text)

    def _asked(self, request: object) -> None:
        if not request.url.startswith((self.url, "data:")):  # type: ignore[attr-defined]
            self.faults.append(f"asked elsewhere: {request.url}")  # type: ignore[attr-defined]


@pytest.fixture
def visit(chromium: Browser, pair: ConsolePair) -> Iterator[object]:
    """A function that opens the console as somebody; what went wrong on any page fails the test."""
    contexts: list[BrowserContext] = []
    watched: list[Watched] = []

    def open_as(role: str | None = "admin", **settings: object) -> Page:
        context = chromium.new_context(**settings)  # type: ignore[arg-type]
        context.set_default_timeout(30_000)
        contexts.append(context)
        found = Watched(context, pair.url)
        watched.append(found)
        if role is not None:
            found.page.goto(f"{pair.url}/?token={pair.tokens[role]}")
            assert "token" not in found.page.url
        return found.page

    yield open_as
    for context in contexts:
        context.close()
    assert [fault for each in watched for fault in each.faults] == []
