"""The console as a person uses it, in a real browser, on a real pair under load."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from support.browser_pages import PAGES_SHOWN, serious_faults, shoot
from support.console import ConsolePair
from twinlog.admin import Admin, topics
from twinlog.client import ConsumeFrom, Message, blocking
from twinlog.remoting.bodies.topic import TopicConfig

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("load"), pytest.mark.timeout(300)]

Visit = Callable[..., Page]
WITHIN_S = 2.0
TRIES = 3


@pytest.fixture(scope="module")
def orders(pair: ConsolePair) -> str:
    """A topic with messages, a group that consumed them, a group that gave some up."""
    http = pair.script()
    http.post("/api/topics", json={"topic": "orders", "read_queues": 4, "write_queues": 4})
    http.post("/api/topics", json={"topic": "oversize"})
    for group in ("shipping", "billing"):
        http.post("/api/groups", json={"group": group})
    with blocking.Producer("shop", name_server=pair.namesrv) as producer:
        for number in range(40):
            body = f'{{"order": {number}, "amount": {number}.5, "items": ["a", "b"]}}'
            producer.send(Message("orders", body.encode(), tags="new", keys=[f"o-{number}"]))
        producer.send(Message("orders", b"<script>alert(1)</script>", keys=["markup"]))
        producer.send(Message("orders", b"in half an hour", delay_level=16))
        # Longer than a phone is wide, and without a place to break.
        names = {"p" * 60: "v" * 900}
        long = Message("oversize", b"word " * 900, keys=["long"], tags="t" * 90, properties=names)
        producer.send(long)
    return "orders"


def of_messages(pair: ConsolePair) -> list[tuple[str, str]]:
    """Pages of single messages and the tail: path, name of its screenshot."""
    http, pages = pair.script(), [("/tail/oversize", "tail")]
    for topic, key in (("orders", "o-7"), ("oversize", "long")):
        found = http.get("/api/messages", params={"by": "key", "topic": topic, "key": key})
        pages.append((f"/messages/{found.json()['messages'][0]['offset_message_id']}", f"m-{key}"))
    return pages


def give_up(pair: ConsolePair, topic: str, group: str, count: int) -> None:
    """Dead letters: a consumer of `group` that fails each time."""

    def fail(message: Any) -> None:
        raise RuntimeError("not today")

    with blocking.PushConsumer(
        group, name_server=pair.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, max_attempts=0
    ) as consumer:
        consumer.subscribe(topic, "*", fail)
        http = pair.script()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            groups = http.get("/api/dead-letters").json()["groups"]
            if any(row["group"] == group and row["count"] >= count for row in groups):
                return
            time.sleep(0.2)
    raise AssertionError("no dead letters came")


def state(page: Page, name: str) -> str:
    return page.locator(f'article[aria-label="{name}"]').get_attribute("data-state") or ""


def wait_for_state(page: Page, name: str, *wanted: str, within_s: float = 60.0) -> float:
    """How long it took until the page showed one of these states."""
    started = time.monotonic()
    selector = ",".join(f'article[aria-label="{name}"][data-state="{s}"]' for s in wanted)
    page.wait_for_selector(selector, timeout=within_s * 1000)
    return time.monotonic() - started


# Replication


def test_the_lag_moves_when_the_slave_is_stopped_and_the_page_says_why(
    pair: ConsolePair, visit: Visit
) -> None:
    page = visit()
    slave = pair.pid("broker-a-1")
    took = []
    for _ in range(TRIES):
        wait_for_state(page, "broker-a:1", "ok")
        started = time.monotonic()
        os.kill(slave, signal.SIGSTOP)
        try:
            wait_for_state(page, "broker-a:1", "silent", "behind")
            page.wait_for_selector(".finding.problem .finding-step")
            took.append(time.monotonic() - started)
            lag = page.locator('article[aria-label="broker-a:1"] .lag-bytes')
            first = int(lag.get_attribute("data-bytes") or 0)
            page.wait_for_function(
                'before => Number(document.querySelector(\'article[aria-label="broker-a:1"]'
                " .lag-bytes').dataset.bytes) > before",
                arg=first,
            )
            text = page.locator(".finding.problem").first.inner_text()
            assert "broker-a:1" in text or "slave" in text
            if len(took) == 1:
                shoot(page, "stopped-slave")
        finally:
            os.kill(slave, signal.SIGCONT)
    print(f"a stopped slave was shown after {', '.join(f'{t:.2f}' for t in took)} s")
    assert min(took) < WITHIN_S
    wait_for_state(page, "broker-a:1", "ok")
    expect(page.locator(".group-head .chip.good")).to_be_visible()


def test_marks_move_under_load(visit: Visit) -> None:
    page = visit()
    cell = page.locator('article[aria-label="broker-a:0"] .lane.appended .number')
    before = cell.inner_text()
    expect(cell).not_to_have_text(before)
    expect(page.locator(".live-mark.on")).to_be_visible()


def test_the_master_is_killed_and_the_page_says_so(pair: ConsolePair, visit: Visit) -> None:
    """All by clicking: the lab kills it, the first page tells, the lab starts it again."""
    watching, lab = visit(), visit()
    wait_for_state(watching, "broker-a:0", "ok")
    lab.goto(f"{pair.url}/lab")
    lab.locator("#node-broker-a-0").get_by_role("button", name="Kill").click()
    started = time.monotonic()
    lab.get_by_role("button", name="Yes, do it").click()
    watching.wait_for_selector('.finding[data-code="no_master"], .finding[data-code="master_down"]')
    print(f"a killed master was shown after {time.monotonic() - started:.2f} s")
    assert state(watching, "broker-a:0") in ("gone", "silent")
    assert "promote" in watching.locator(".finding-step").first.inner_text()
    assert watching.locator(".events .event-line").count() > 0
    shoot(watching, "killed-master")
    lab.locator("#node-broker-a-0").get_by_role("button", name="Start").click()
    wait_for_state(watching, "broker-a:0", "ok")
    wait_for_state(watching, "broker-a:1", "ok")


# Messages, groups, dead letters


def test_a_message_is_found_by_key_and_downloaded(
    pair: ConsolePair, visit: Visit, orders: str
) -> None:
    page = visit()
    page.get_by_role("link", name="Messages").first.click()
    page.get_by_label("Topic").fill(orders)
    page.get_by_label("Key").fill("o-7")
    page.get_by_role("button", name="Find").click()
    page.locator("tbody a").first.click()
    page.get_by_role("link", name="JSON").click()
    expect(page.locator("pre.body")).to_contain_text('"order": 7')
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    path = downloading.value.path()
    assert path.read_bytes() == b'{"order": 7, "amount": 7.5, "items": ["a", "b"]}'


def test_a_message_with_a_script_is_text(pair: ConsolePair, visit: Visit, orders: str) -> None:
    page = visit()
    page.goto(f"{pair.url}/messages?by=key&topic={orders}&key=markup")
    expect(page.locator("td", has_text="<script>alert(1)</script>").first).to_be_visible()
    page.locator("tbody a").first.click()
    expect(page.locator("pre.body")).to_have_text("<script>alert(1)</script>")
    page.goto(f"{pair.url}/tail/{orders}")
    expect(page.locator("td", has_text="<script>alert(1)</script>").first).to_be_visible()


def test_a_tail_grows(pair: ConsolePair, visit: Visit) -> None:
    page = visit()
    page.goto(f"{pair.url}/tail/load")
    rows = page.locator("tbody tr")
    expect(rows.first).to_be_visible()
    first = rows.first.inner_text()
    expect(rows.first).not_to_have_text(first)


def test_a_group_is_reset(pair: ConsolePair, visit: Visit, orders: str) -> None:
    pair.script().post("/api/groups/shipping/skip", json={"topic": orders})
    page = visit()
    page.goto(f"{pair.url}/groups/shipping")
    expect(page.locator("#group-lag")).to_have_text("0")
    page.get_by_label("Topic").fill(orders)
    page.get_by_label("To", exact=True).select_option("start")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("messages will be delivered again")).to_be_visible()
    shoot(page, "reset-preview")
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator(".flash")).to_contain_text("was moved in 4 queues")
    expect(page.locator("#group-lag")).to_have_text("41")


def test_times_are_picked_in_the_readers_own_time_zone(
    pair: ConsolePair, visit: Visit, orders: str
) -> None:
    page = visit(timezone_id="Asia/Shanghai", locale="en-GB")
    page.goto(f"{pair.url}/messages?tab=time&topic={orders}")
    expect(page.locator("#f-begin-zone")).to_have_text("Asia/Shanghai")
    page.get_by_label("or from").fill("2020-01-01T08:00:00")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    assert "begin=2020-01-01T00%3A00%3A00.000Z" in page.url
    expect(page.get_by_label("or from")).to_have_value(re.compile("^2020-01-01T08:00"))
    page.goto(f"{pair.url}/groups/shipping")
    page.get_by_label("Topic").fill(orders)
    page.get_by_label("To", exact=True).select_option("time")
    page.get_by_label("Which time").fill("2020-01-01T08:00:00")
    page.get_by_role("button", name="Dry run").click()
    expect(page.get_by_text("2020-01-01T00:00:00.000Z")).to_be_visible()
    expect(page.get_by_role("heading", name="What will happen").first).to_be_visible()


def test_a_page_that_nobody_sees_gives_its_connection_back(pair: ConsolePair, visit: Visit) -> None:
    """A browser has six connections to a server: the seventh tab must not hang."""
    page = visit()
    expect(page.locator(".live-mark.on")).to_be_visible()
    hide = """state => {
      Object.defineProperty(document, "visibilityState", {value: state, configurable: true});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    cell = page.locator('article[aria-label="broker-a:0"] .lane.appended .number')
    page.evaluate(hide, "hidden")
    with page.expect_request(f"{pair.url}/live/replication"):
        page.evaluate(hide, "visible")
    before = cell.inner_text()
    expect(cell).not_to_have_text(before)


def test_dead_letters_are_resent(pair: ConsolePair, visit: Visit, orders: str) -> None:
    give_up(pair, orders, "billing", 41)
    page = visit()
    page.goto(f"{pair.url}/dead-letters/billing")
    page.locator('tbody input[type="checkbox"]').nth(0).check()
    page.locator('tbody input[type="checkbox"]').nth(1).check()
    page.get_by_role("button", name="Resend the chosen ones").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator(".flash")).to_contain_text("2 dead letters went to billing again")
    seen: list[bytes] = []
    with blocking.PushConsumer("billing", name_server=pair.namesrv) as consumer:
        consumer.subscribe(orders, "*", lambda message: seen.append(message.body))
        deadline = time.monotonic() + 60
        while len(set(seen)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert len(set(seen)) >= 2
    page.get_by_role("button", name="Resend all").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator(".flash")).to_contain_text("dead letters went to billing again")


def test_a_topic_is_made_used_and_deleted(pair: ConsolePair, visit: Visit) -> None:
    page = visit()
    page.goto(f"{pair.url}/topics")
    page.get_by_text("Create a topic").click()
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator(".flash")).to_contain_text("topic by-hand")
    page.get_by_role("link", name="by-hand").click()
    page.get_by_text("Send a test message").click()
    page.get_by_label("Body").fill("hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".flash")).to_contain_text("SEND_OK")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("1 messages in 8 queues")).to_be_visible()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator(".flash")).to_contain_text("is deleted")


# Who may


def test_a_viewer_can_change_nothing(pair: ConsolePair, visit: Visit, orders: str) -> None:
    page = visit("viewer")
    for path, _ in PAGES_SHOWN:
        page.goto(pair.url + path)
        assert page.locator('form[action^="/do/"]').count() == 0, path
    codes = page.evaluate(
        """async () => {
          const csrf = document.querySelector('input[name=csrf]').value;
          const form = new URLSearchParams({csrf, topic: 'orders', confirmed: 'yes'});
          const one = await fetch('/do/topic.delete', {method: 'POST', body: form});
          const headers = {'X-CSRF-Token': csrf};
          const two = await fetch('/api/topics/orders', {method: 'DELETE', headers});
          return [one.status, two.status];
        }"""
    )
    assert codes == [403, 403]
    assert pair.script().get(f"/api/topics/{orders}").status_code == 200


def test_a_stranger_sees_nothing(pair: ConsolePair, visit: Visit) -> None:
    page = visit(None)
    for path, _ in PAGES_SHOWN:
        page.goto(pair.url + path)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert "broker-a" not in page.content()
    page.get_by_label("Token").fill("guess")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_label("Token").fill(pair.tokens["viewer"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


# Looks


@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "en"), ("dark", "zh")])
def test_every_page_is_accessible(
    pair: ConsolePair, visit: Visit, orders: str, axe: str, theme: str, language: str
) -> None:
    page = visit(
        color_scheme=theme, viewport={"width": 1440, "height": 900},
        locale={"en": "en-GB", "zh": "zh-CN"}[language],
    )  # fmt: skip
    faults = []
    for path, name in (*PAGES_SHOWN, *of_messages(pair)):
        page.goto(pair.url + path)
        page.wait_for_load_state("domcontentloaded")
        if page.locator("[data-live]").count():
            expect(page.locator(".live-mark.on")).to_be_visible()
        hidden = page.locator(".scroll").evaluate_all(
            "all => all.map(e => e.scrollWidth - e.clientWidth)"
        )
        assert all(wide <= 0 for wide in hidden), f"{path} hides a part of a table"
        shoot(page, f"{name}-{theme}" if language == "en" else f"{name}-{theme}-{language}")
        faults += [f"{path}: {fault}" for fault in serious_faults(page, axe)]
    assert faults == []


def test_the_login_page_is_accessible(pair: ConsolePair, visit: Visit, axe: str) -> None:
    page = visit(None)
    page.goto(f"{pair.url}/login")
    shoot(page, "login-light")
    assert serious_faults(page, axe) == []


def test_a_phone_has_a_menu_and_no_sideways_scroll(
    pair: ConsolePair, visit: Visit, orders: str, axe: str
) -> None:
    page = visit(viewport={"width": 390, "height": 800}, is_mobile=True, has_touch=True)
    http, longest = pair.script(), "N" * 127
    http.post("/api/topics", json={"topic": longest}).raise_for_status()
    http.post("/api/groups", json={"group": longest[:120]}).raise_for_status()
    long_names = ((f"/topics/{longest}", "long-topic"), (f"/groups/{longest[:120]}", "long-group"))
    for path, name in (*PAGES_SHOWN, *long_names, *of_messages(pair)):
        page.goto(pair.url + path)
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{path} is {wide} pixels too wide"
        columns = page.locator("dl.pairs dd").evaluate_all("all => all.map(e => e.clientWidth)")
        assert all(width > 100 for width in columns), f"{path} has no room for values"
        shoot(page, f"{name}-phone")
    page.get_by_text("Menu").tap()
    page.locator(".menu").get_by_role("link", name="Topics").tap()
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert serious_faults(page, axe) == []


def test_the_keyboard_is_enough(pair: ConsolePair, visit: Visit) -> None:
    page = visit()
    page.goto(f"{pair.url}/topics")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_text("Create a topic").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_chinese_from_the_same_catalogue(pair: ConsolePair, visit: Visit) -> None:
    page = visit(locale="zh-CN")
    expect(page.get_by_role("heading", name="复制")).to_be_visible()
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    events = page.locator(".events .event-line")
    if events.count():
        assert re.search("[\u4e00-\u9fff]", events.first.inner_text())
    page.get_by_text("设置", exact=True).click()
    page.get_by_role("link", name="English").click()
    expect(page.get_by_role("heading", name="Replication")).to_be_visible()
    shoot(page, "settings-light")


def test_a_page_of_ten_thousand_topics(pair: ConsolePair, visit: Visit) -> None:
    """The aim is a second, for a hundred of them and for all; more on a machine that others use."""

    async def make() -> None:
        async with Admin(pair.namesrv) as admin:
            room = asyncio.Semaphore(64)

            async def one(number: int) -> None:
                async with room:
                    config = TopicConfig(f"many-{number:05}", 1, 1, 6)
                    await topics.put_topic_config(admin, pair.master, config)

            await asyncio.gather(*(one(number) for number in range(10_000)))

    with ThreadPoolExecutor(1) as pool:  # The browser's driver has a loop in this thread.
        pool.submit(asyncio.run, make()).result()
    eventually_known(pair)
    page = visit()
    took = []
    for query in ("", "?size=10000"):
        best = 1e9
        for _ in range(3):
            started = time.monotonic()
            page.goto(f"{pair.url}/topics{query}")
            best = min(best, time.monotonic() - started)
        took.append(best)
    assert page.locator("tbody tr").count() >= 10_000
    page.wait_for_function(  # A body is laid out only when somebody comes to it.
        """() => {
          const last = document.querySelector("tbody:last-of-type tr:last-child");
          last.scrollIntoView({block: "center"});
          const box = last.getBoundingClientRect();
          return box.height > 0 && box.top > 0 && box.bottom < innerHeight;
        }"""
    )
    print(f"10,000 topics: a page of 100 in {took[0]:.2f} s, all on one page in {took[1]:.2f} s")
    assert took[0] < 3.0
    assert took[1] < 5.0


def eventually_known(pair: ConsolePair) -> None:
    """Brokers register new topics with the name server every now and then."""
    http = pair.script()
    deadline = time.monotonic() + 60
    while http.get("/api/topics?size=1").json()["total"] < 10_000:
        assert time.monotonic() < deadline
        time.sleep(0.2)
