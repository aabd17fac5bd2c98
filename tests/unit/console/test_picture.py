"""The picture of replication out of facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.admin.ha import GroupHAStatus, ReplicaState
from twinlog.admin.replicas import ReplicaFacts
from twinlog.console.findings import findings
from twinlog.console.picture import HEIGHT, WIDTH, lag_chart
from twinlog.console.replication import (
    BUCKET_MS,
    HISTORY_MS,
    GroupView,
    LagPoint,
    Memory,
    group_view,
    journal_event,
)
from twinlog.console.views.messages import SHORT_MAX, body_as, short_text
from twinlog.observe.health import GroupFacts
from twinlog.observe.health import ReplicaFacts as SlaveConnection


def master(end: int, *slaves: ReplicaState) -> ReplicaFacts:
    facts = GroupFacts(
        name="g", master_address="h:1", role="ASYNC_MASTER",
        replicas=tuple(
            SlaveConnection(s.address, True, s.is_in_sync, s.lag_bytes, s.reason) for s in slaves
        ),
    )  # fmt: skip
    status = GroupHAStatus("g", "h:1", end, end, "ASYNC_MASTER", slaves, facts)
    return ReplicaFacts(
        group="g", broker_id=0, address="h:1", role="ASYNC_MASTER", appended=end, flushed=end,
        confirmed=end, dispatched=end, status=status,
    )  # fmt: skip


def slave(end: int | None, *, error: str = "") -> ReplicaFacts:
    return ReplicaFacts(
        group="g", broker_id=1, address="h:2", role="SLAVE", appended=end, flushed=end,
        dispatched=end, error=error,
    )  # fmt: skip


def connection(ack: int, end: int, *, is_in_sync: bool = True) -> ReplicaState:
    return ReplicaState("h:40000/1", ack, end - ack, is_in_sync, "TRANSFER", 0, 0, 1)


def marks(view: GroupView, name: str) -> dict[str, float]:
    replica = next(r for r in view.replicas if r.name == name)
    return {mark.name: mark.share for mark in replica.marks}


def test_replicas_that_are_level_stand_at_the_same_place() -> None:
    view = group_view("g", "c", [master(500_000, connection(500_000, 500_000)), slave(500_000)], [])
    assert set(marks(view, "g:0").values()) == set(marks(view, "g:1").values()) == {1.0}
    assert view.in_sync == ["g:0", "g:1"]
    assert [replica.state for replica in view.replicas] == ["ok", "ok"]


def test_a_slave_that_is_behind_is_seen_behind() -> None:
    state = connection(100_000, 500_000, is_in_sync=False)
    view = group_view("g", "c", [master(500_000, state), slave(120_000)], [])
    assert view.start == 0
    assert marks(view, "g:1")["acknowledged"] < marks(view, "g:1")["appended"] < 0.3
    assert next(r for r in view.replicas if r.broker_id == 1).state == "behind"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_marks_are_always_inside_the_picture(end: int, ack: int, own: int) -> None:
    view = group_view("g", "c", [master(end, connection(ack, end)), slave(own)], [])
    for replica in view.replicas:
        for mark in replica.marks:
            assert 0.0 <= mark.share <= 1.0
            assert mark.behind is None or mark.behind >= 0


def test_a_replica_that_leaves_is_remembered_for_an_hour() -> None:
    memory = Memory()
    first, second = master(10, connection(10, 10)), slave(10)
    memory.take([first, second], 1_000)
    assert memory.gone("g", [first], 2_000) == [second]
    assert memory.gone("g", [first, second], 2_000) == []
    assert memory.gone("g", [first], 2_000 + HISTORY_MS) == []
    view = group_view("g", "c", [second], memory.gone("g", [second], 2_000))
    assert {r.name: r.state for r in view.replicas}["g:0"] == "gone"
    codes = {finding.code for finding in findings(view, [second])}
    assert "no_master" in codes


def test_a_silent_replica_keeps_its_last_marks() -> None:
    memory = Memory()
    memory.take([slave(77)], 1_000)
    silent = memory.last_known(slave(None, error="no answer"))
    assert silent.appended == 77
    assert silent.error == "no answer"


def test_since_is_when_it_was_first_seen_and_the_end_is_an_event() -> None:
    memory = Memory()
    view = group_view("g", "c", [slave(10)], [])
    found = findings(view, [slave(10)])
    assert [f.since_ms for f in memory.since("g", found, 5_000)] == [5_000] * len(found)
    assert [f.since_ms for f in memory.since("g", found, 9_000)] == [5_000] * len(found)
    assert memory.since("g", [], 10_000) == []
    assert [event.kind for event in memory.events][-1] == "over"


def test_lag_is_kept_as_the_worst_of_five_seconds_for_an_hour() -> None:
    memory = Memory()
    for number in range(2 * HISTORY_MS // BUCKET_MS):
        state = connection(0, number, is_in_sync=True)
        view = group_view("g", "c", [master(number, state), slave(0)], [])
        memory.watch(view, number * BUCKET_MS)
        memory.watch(view, number * BUCKET_MS + 1)
    points = memory.lag["g:1"]
    assert len(points) == HISTORY_MS // BUCKET_MS
    assert points[-1].lag_bytes == 2 * HISTORY_MS // BUCKET_MS - 1


@given(st.lists(st.integers(0, 1 << 50), max_size=50))
def test_a_chart_stays_in_its_box(values: list[int]) -> None:
    now_ms = 10 * HISTORY_MS
    points = [
        LagPoint(now_ms - 5_000 * (len(values) - i), value, 0) for i, value in enumerate(values)
    ]
    chart = lag_chart(points, now_ms, "lag_bytes", 1024)
    assert chart.top >= max([1024, *values])
    for pair in chart.line.replace("M", "L").split("L")[1:]:
        x, y = map(float, pair.split())
        assert 0 <= x <= WIDTH
        assert -0.05 <= y <= HEIGHT


@given(st.binary(max_size=3000))
def test_any_body_can_be_shown(body: bytes) -> None:
    for view in ("text", "json", "hex", "nonsense"):
        shown_as, text = body_as(body, view)
        assert shown_as in ("text", "json", "hex")
        assert text or not body
    assert len(short_text(body)) <= SHORT_MAX
    assert "\x00" not in short_text(body)


def test_json_is_laid_out_and_deep_json_is_text() -> None:
    assert body_as(b'{"a":1}', "json") == ("json", '{\n  "a": 1\n}')
    assert body_as(b"[" * 100_000, "json")[0] == "text"
    assert body_as("é".encode()[:1], "text") == ("hex", "00000000  c3" + " " * 47 + ".")


def test_a_refused_request_is_no_mark_in_the_picture() -> None:
    """The console's own questions are among them; what concerns the log stays one."""
    kinds = {
        name: journal_event({"event": name, "time": 1}).kind
        for name in ("requests-refused", "replica-refused", "replica-left", "role", "elected")
    }
    assert kinds == {
        "requests-refused": "journal", "replica-refused": "problem", "replica-left": "problem",
        "role": "master", "elected": "master",
    }  # fmt: skip
