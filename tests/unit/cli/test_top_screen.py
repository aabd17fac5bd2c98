"""The screen of `twinlog top`: whatever was seen and however small the terminal is."""

from __future__ import annotations

import random

import pytest

from twinlog.admin.top import BrokerLine, GroupLine, TopicLine, TopView
from twinlog.cli.admin.top import _shares, screen
from twinlog.observe.health import Facts, Health, ServerFacts, judge


def view(
    topics: int = 3, groups: int = 3, *, name: str = "broker-a", down: bool = False
) -> TopView:
    facts = Facts(servers=(ServerFacts(kind="broker", name=name, error="gone"),) if down else ())
    brokers = (
        BrokerLine(name=name, broker_id=0, role="SYNC_MASTER", address="h:1", state="up",
                   in_rate=12_345.6, out_rate=3.21, disk_ratio=0.5, loop_lag_ms=7),
        BrokerLine(name=name, broker_id=1, role="SLAVE", address="h:2", state="up", in_rate=0.0,
                   out_rate=0.0, lag_bytes=5_000_000, lag_ms=1500, disk_ratio=0.8, loop_lag_ms=0),
        BrokerLine(name=name, broker_id=2, role="SLAVE", address="h:3", state="down"),
    )  # fmt: skip
    return TopView(
        judge(facts),
        brokers,
        tuple(TopicLine(f"topic-{n}", 100.0 - n, 2048.0) for n in range(topics)),
        tuple(GroupLine(f"group-{n}", f"topic-{n}", 5.0, n) for n in range(groups)),
    )


def test_a_wide_screen_shows_everything() -> None:
    text = "\n".join(screen(view(), 120, 50, "12:00:00"))
    for part in (
        "twinlog top  12:00:00  3 brokers  q quits", "the cluster is healthy", "broker-a:0",
        "12,346", "3.2", "4.8 MiB", "1.5 s", "80 %", "7 ms", "topic-2", "2.0 KiB/s", "group-2",
    ):  # fmt: skip
        assert part in text
    assert "refuses" not in text


def test_problems_come_with_the_next_step() -> None:
    lines = screen(view(down=True), 200, 50, "12:00:00", color=True)
    assert "\x1b[31mthe cluster is not healthy" in lines[1]
    assert "start it; if it runs" in lines[2]


@pytest.mark.parametrize("seed", range(40))
def test_it_never_leaves_the_terminal(seed: int) -> None:
    numbers = random.Random(seed)
    width, height = numbers.randint(1, 200), numbers.randint(1, 60)
    seen = view(
        numbers.randint(0, 80), numbers.randint(0, 80), name="b" * numbers.randint(1, 60),
        down=numbers.random() < 0.5,
    )  # fmt: skip
    lines = screen(seen, width, height, "12:00:00")
    assert 1 <= len(lines) <= height
    assert all(len(line) <= width for line in lines)
    if height >= 20 and width >= 100:
        assert any("broker" in line.lower() for line in lines)
        used = len(screen(seen, width, 10_000, "12:00:00"))
        assert len(lines) >= min(height, used) - 1, "the room is used"


def test_nothing_at_all() -> None:
    lines = screen(TopView(Health()), 80, 24, "12:00:00")
    assert "0 brokers" in lines[0]


@pytest.mark.parametrize(
    ("room", "counts", "shares"),
    [
        (10, (3, 3), (3, 3)),
        (10, (30, 3), (7, 3)),
        (10, (30, 30), (5, 5)),
        (1, (5, 5), (1, 0)),
        (0, (5, 5), (0, 0)),
    ],
)
def test_room_is_shared(room: int, counts: tuple[int, int], shares: tuple[int, int]) -> None:
    assert _shares(room, *counts) == shares
