"""`twinlog top` in a real terminal: live, resized, quit with q, and once without one."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect

from support.command_line import DEADLINE_S, TWINLOG, LocalTwins, process
from support.processes import wait_until


def spawn(cluster: LocalTwins, *words: str, rows: int = 40, columns: int = 140) -> pexpect.spawn:
    env = {**os.environ, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    return pexpect.spawn(
        str(TWINLOG), ["top", "-n", cluster.namesrv, "--every", "0.2", *words], env=env,
        encoding="utf-8", timeout=DEADLINE_S, dimensions=(rows, columns),
    )  # fmt: skip


def test_once_prints_the_cluster(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "orders", "-q", "2").ok()
    cluster.twinlog("topic", "produce", "orders", "one", "two").ok()
    found = process("top", "--once", "-n", cluster.namesrv, NO_COLOR="1")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    assert lines[1] == "the cluster is healthy"
    assert "quits" not in lines[0], "it has ended"
    assert re.search(r"broker-a:0 +ASYNC_MASTER +up ", found.out)
    assert re.search(r"broker-a:1 +SLAVE +up .* 0 B +0.0 s", found.out)
    assert re.search(r"^orders ", found.out, re.MULTILINE)
    assert "\x1b" not in found.out


def test_once_as_json_has_the_same_figures(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "figures", "-q", "2").ok()
    cluster.twinlog("topic", "produce", "figures", "one").ok()
    found = process("top", "--once", "-o", "json", "-n", cluster.namesrv)
    assert found.code == 0, found.err
    view = found.json
    assert view["healthy"] is True
    assert all(finding["level"] == "warning" for finding in view["findings"])  # A busy machine.
    roles = {(line["name"], line["broker_id"]): line["role"] for line in view["brokers"]}
    assert roles == {("broker-a", 0): "ASYNC_MASTER", ("broker-a", 1): "SLAVE"}
    assert "figures" in [line["topic"] for line in view["topics"]]
    assert view["topics"][0].keys() == {"topic", "rate", "bytes_rate"}
    live = process("top", "-o", "json", "-n", cluster.namesrv)
    assert live.code == 2
    assert "--once" in live.err


def test_without_a_terminal_it_wants_once(cluster: LocalTwins) -> None:
    found = process("top", "-n", cluster.namesrv)
    assert found.code == 2
    assert "--once" in found.err


def test_live_rates_resize_and_quit(cluster: LocalTwins) -> None:
    terminal = spawn(cluster)
    terminal.expect(re.escape("\x1b[?1049h"))
    terminal.expect("the cluster is healthy")
    # Traffic is seen as a rate, without anybody asking again.
    cluster.twinlog("topic", "create", "lively").ok()
    with traffic(cluster, "lively"):
        terminal.expect("lively +[1-9][0-9,.]*  +[1-9]")
    # Another size: the next screen has it.
    terminal.setwinsize(12, 60)
    terminal.expect(re.escape("\x1b[H"))
    wait_until(lambda: _widest(terminal) <= 60, "lines are as wide as the window")
    terminal.send("x")  # No key but q ends it.
    terminal.expect("twinlog top")
    terminal.send("q")
    terminal.expect(re.escape("\x1b[?1049l"))
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


@contextmanager
def traffic(cluster: LocalTwins, topic: str) -> Iterator[None]:
    """Messages again and again: a rate is what comes between two looks."""
    ended = threading.Event()

    def send() -> None:
        while not ended.is_set():
            # Some sends may time out on a busy machine: the rate is what counts here.
            cluster.twinlog("bench", "pub", topic, "--msgs", "2000", "--size", "100")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def _widest(terminal: pexpect.spawn) -> int:
    terminal.expect(re.escape("\x1b[J"))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", str(terminal.before))
    return max(len(line) for line in text.split("\r\n"))


def test_the_terminal_is_as_before_after_an_interrupt(cluster: LocalTwins) -> None:
    terminal = spawn(cluster)
    terminal.expect("the cluster is healthy")
    terminal.sendintr()
    terminal.expect(re.escape("\x1b[?1049l"))
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert "Traceback" not in str(terminal.before)


def test_the_terminal_is_as_before_after_it_was_told_to_end(cluster: LocalTwins) -> None:
    terminal = spawn(cluster)
    terminal.expect("the cluster is healthy")
    terminal.kill(signal.SIGTERM)
    terminal.expect(re.escape("\x1b[?25h\x1b[?1049l"))
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_q_quits_while_a_broker_is_waited_for(cluster: LocalTwins) -> None:
    terminal = spawn(cluster, "--timeout", "10m")
    terminal.expect("the cluster is healthy")
    os.kill(cluster.pid("broker-a-1"), signal.SIGSTOP)
    try:
        status = ("ha", "status", "--timeout", "1s")
        wait_until(lambda: cluster.twinlog(*status).code == 10, "others know that it is silent")
        terminal.send("q")
        terminal.expect(re.escape("\x1b[?1049l"), timeout=30)  # The question takes minutes.
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
    finally:
        os.kill(cluster.pid("broker-a-1"), signal.SIGCONT)
    cluster.twinlog("cluster", "health", "--wait", "60s", "--brokers", "2").ok()


def test_a_dead_slave_and_a_dead_name_server_are_seen(cluster: LocalTwins) -> None:
    terminal = spawn(cluster)
    terminal.expect("the cluster is healthy")
    cluster.kill("broker-a-1")
    terminal.expect("the cluster is not healthy: no slave is connected")
    assert process("top", "--once", "-n", cluster.namesrv).code == 10
    cluster.kill("namesrv")
    terminal.expect("the cluster is not healthy: nobody answers")
    terminal.send("q")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
