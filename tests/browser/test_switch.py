"""A planned switch by clicking, in a group with a controller, under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browser_pages import shoot
from support.console import running_console
from support.failover_group import Group, running_group
from support.processes import wait_until
from twinlog.client import Message, blocking

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with running_group(tmp_path, 2) as found:
        found.wait_in_sync()
        yield found


@pytest.fixture
def page(group: Group, chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    with running_console(tmp_path, group.namesrv.address) as (url, token):
        context = chromium.new_context()
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.goto(f"{url}/?token={token}")
        yield page
        context.close()


def test_a_switch_is_made_by_clicking(group: Group, page: Page) -> None:
    before = group.master
    with blocking.Producer("switch", name_server=group.namesrv.address) as producer:
        assert producer.send(Message("switched", b"before")).is_acknowledged
        button = page.get_by_role("button", name="Make it the master")
        button.click()
        expect(page.get_by_text("becomes the master of")).to_be_visible()
        shoot(page, "switch-preview")
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.locator(".flash")).to_contain_text("is the master of")
        wait_until(lambda: group.master is not before, "another master", deadline_s=30)
        assert producer.send(Message("switched", b"after")).is_acknowledged
    shoot(page, "switched")


def test_a_replica_is_drained_and_returns(group: Group, page: Page) -> None:
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text("leaves the in-sync set")).to_be_visible()
    page.get_by_role("button", name="Yes, do it").click()
    wait_until(lambda: len(group.members) == 1, "one member", deadline_s=30)
    page.get_by_role("button", name="Undrain").click()
    group.wait_in_sync()
