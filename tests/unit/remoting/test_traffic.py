"""The state of a connection: what is counted, what leaves at once, what goes to a lane.

The compiled form goes through the same generated stories as the reference, step by step.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.remoting.limits import RemotingLimits
from twinlog.remoting.traffic import TrafficInPython
from twinlog.runtime.compiled import load

LIMITS = RemotingLimits(requests_in_flight_max=8, bytes_in_flight_max=1000)
FLAGS = ("is_closed", "is_congested", "_is_in_turn", "_is_reading_paused", "_is_elsewhere")
SHOWN = (
    "_requests_in_flight", "_bytes_in_flight", "_replies", "request_count", "was_active",
    "remote_host", "_out", "_backlog", "_lanes", "is_ready", *FLAGS,
)  # fmt: skip


class Splitter:
    is_between_frames = True


class Noting:
    """A transport or a TLS channel that takes everything."""

    def __init__(self, said: list[Any], name: str) -> None:
        self._said, self._name = said, name

    def write(self, data: bytes) -> None:
        self._said.append((self._name, data))


class Lane:
    """Takes so many bytes of each read, as it was told."""

    def __init__(self, said: list[Any], takes: list[int], *, is_full: bool) -> None:
        self._said, self._takes, self.is_full = said, takes, is_full

    def read(self, connection: Any, data: bytes, begin: int = 0) -> int:
        taken = min(self._takes.pop(0) if self._takes else 0, len(data) - begin)
        self._said.append(("lane", begin, taken))
        if taken == 7:
            raise ValueError("a bug in a lane")
        return taken


def connection_of(base: Any) -> Any:
    """A connection with nothing but its traffic; what it asks of the rest is noted."""

    class Connection(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(LIMITS)
            self.said: list[Any] = []
            self._splitter = Splitter()

        def failed(self, what: str, error: Exception) -> None:
            self.said.append(("failed", what, str(error)))

        def flush(self) -> None:
            self.said.append(("flush", list(self._out)))
            self._out = []
            self._count_replies()

        def _read(self, data: bytes) -> None:
            self.said.append(("read", data))

        def _read_later(self, data: bytes) -> None:
            self.said.append(("read later", data))

        def _update_reading(self) -> None:
            self.said.append("update reading")

        def _queue(self, pieces: Any) -> None:
            self.said.append(("queue", pieces))
            self._out.extend(pieces)

        def _write_secured(self, data: bytes) -> None:
            self.said.append(("secured", data))

    return Connection()


def do(connection: Any, step: tuple[Any, ...]) -> None:
    name, *arguments = step
    match name:
        case "flag":
            setattr(connection, *arguments)
        case "transport":
            connection._transport = Noting(connection.said, "sent") if arguments[0] else None
        case "channel":
            connection._channel = object() if arguments[0] else None
        case "splitter":
            connection._splitter.is_between_frames = arguments[0]
        case "backlog":
            connection._backlog.append((0, b"", b""))
        case "no backlog":
            connection._backlog.clear()
        case "lanes":
            connection._lanes = tuple(
                Lane(connection.said, list(takes), is_full=is_full)
                for takes, is_full in arguments[0]
            )
        case _:
            getattr(connection, name)(*arguments)


def shown(connection: Any) -> dict[str, Any]:
    state = {name: getattr(connection, name) for name in SHOWN if name != "_lanes"}
    return {**state, "lanes": len(connection._lanes), "said": list(connection.said)}


small = st.integers(0, 9)
takes = st.tuples(st.lists(st.integers(0, 8), max_size=4), st.booleans())
STEPS = st.one_of(
    st.tuples(st.just("flag"), st.sampled_from(FLAGS), st.booleans()),
    st.tuples(st.sampled_from(["transport", "channel", "splitter"]), st.booleans()),
    st.tuples(st.sampled_from(["backlog", "no backlog", "_count_replies", "flush"])),
    st.tuples(st.just("lanes"), st.lists(takes, max_size=3)),
    st.tuples(st.just("data_received"), st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("count_requests"), small, st.integers(0, 400)),
    st.tuples(st.just("count_oneway"), small),
    st.tuples(st.just("write_run"), st.binary(max_size=4), small),
    st.tuples(st.just("write_answer"), st.binary(max_size=4)),
)


@pytest.mark.compiled
@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_the_compiled_form_does_what_the_reference_does(story: list[tuple[Any, ...]]) -> None:
    compiled: Any = load("twinlog.remoting._traffic")
    reference, other = connection_of(TrafficInPython), connection_of(compiled.Traffic)
    do(reference, ("transport", True))
    do(other, ("transport", True))
    for step in story:
        do(reference, step)
        do(other, step)
        assert shown(other) == shown(reference), step


def test_answers_leave_at_once_unless_others_are_before_them() -> None:
    connection = connection_of(TrafficInPython)
    do(connection, ("transport", True))
    connection.count_requests(3, 300)
    connection.write_run(b"one", 1)
    assert connection.said == [("sent", b"one")]
    assert (connection._requests_in_flight, connection._bytes_in_flight) == (2, 200)
    connection._out.append(b"queued")
    connection.write_run(b"two", 1)
    assert connection.said[1:] == [("flush", [b"queued", b"two"])]


def test_a_read_goes_back_to_the_first_lane_after_each_that_took_something() -> None:
    connection = connection_of(TrafficInPython)
    do(connection, ("lanes", [([2, 0], False), ([0, 3], False)]))
    connection.data_received(b"0123456789")
    assert connection.said == [
        ("lane", 0, 2), ("lane", 2, 0), ("lane", 2, 0), ("read", b"23456789"),
    ]  # fmt: skip
