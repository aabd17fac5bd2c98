"""Answers that are kept back: each request gets one."""

from __future__ import annotations

from typing import Any

from twinlog.broker.pull.held_answers import HeldAnswers


class Peer:
    def __init__(self) -> None:
        self.replies: list[Any] = []

    def reply(self, request: Any, remark: str = "") -> None:
        self.replies.append((request, remark))


def test_what_was_held_leaves_and_what_comes_later_too() -> None:
    peer = Peer()
    held = HeldAnswers(peer)
    held.reply(1, remark="a")
    assert peer.replies == []
    held.release()
    held.reply(2, remark="b")
    assert peer.replies == [(1, "a"), (2, "b")]


def test_an_answer_instead_is_the_only_one() -> None:
    """A handler that saves, or waits for a name server, answers after it has returned."""
    peer = Peer()
    held = HeldAnswers(peer)
    held.reply(1, remark="done")
    held.answer_instead(1, remark="not confirmed")
    held.reply(1, remark="done")
    held.release()
    held.reply(1, remark="done")
    assert peer.replies == [(1, "not confirmed")]
