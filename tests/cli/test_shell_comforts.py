"""What people expect of a command that stays open: completion, contexts, --watch, Ctrl-C, TLS."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pexpect
import pytest

from support.certificates import Certificates, make_certificates
from support.command_line import MQADMIN, TWINLOG, LocalTwins, mqadmin, process, twinlog
from support.doc_blocks import blocks_run_by
from support.processes import process_group, wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.cli.output import Column, Report, Table, render, width_of

DEADLINE_S = 60


@pytest.fixture(scope="module")
def filled(cluster: LocalTwins) -> LocalTwins:
    for name in ("orders", "orders-eu", "payments"):
        cluster.twinlog("topic", "create", name, "-q", 1).ok()
    cluster.twinlog("group", "create", "billing").ok()
    return cluster


def spawn(
    program: Path, *words: str, rows: int = 40, columns: int = 160, **environment: str
) -> pexpect.spawn:
    env = {**os.environ, "TERM": "xterm", **environment}
    env.pop("NO_COLOR", None)
    return pexpect.spawn(str(program), list(words), env=env, encoding="utf-8", timeout=DEADLINE_S,
                         dimensions=(rows, columns))  # fmt: skip


# Completion


def completed(line: str, shell: str = "bash", **environment: str) -> list[str]:
    """What a shell offers behind `line`, as the script of `generate completion` asks for it."""
    words = line.split(" ")
    asked = {
        "_TWINLOG_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": line,
        # fish gives the word itself, the others its place.
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
    }
    # Patient unless a test is about that: the machine may be busy.
    done = process(**{"TWINLOG_COMPLETE_SECONDS": "40", **asked, **environment})
    assert done.err == ""
    if shell == "zsh":
        return [name for name in done.out.split("\n")[1::3] if name]
    lines = filter(None, done.out.splitlines())
    return [line.partition(",")[2].partition("\t")[0] for line in lines]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_the_cluster_are_offered(filled: LocalTwins, shell: str) -> None:
    where = {"NAMESRV_ADDR": filled.namesrv}
    for line, names in {
        "twinlog topic cr": ["create"],
        "twinlog topic show or": ["orders", "orders-eu"],
        "twinlog group progress ": ["billing"],
        "twinlog broker show b": ["broker-a"],
        "twinlog broker show broker-a:": ["broker-a:0", "broker-a:1"],
        "twinlog topic list --cluster ": ["DefaultCluster"],
        "twinlog group reset billing --topic pay": ["payments"],
        "twinlog topic create or": [],  # A new name.
        "twinlog topic show zzz": [],
    }.items():
        assert completed(line, shell, **where) == names, line


def test_completion_asks_the_cluster_of_the_command_line(filled: LocalTwins) -> None:
    twinlog("context", "add", "production", "-n", filled.namesrv).ok()
    nowhere = {"NAMESRV_ADDR": "127.0.0.1:1"}
    assert completed("twinlog topic list --context ", **nowhere) == ["production"]
    assert completed("twinlog topic show pay", **nowhere) == []
    there = f"twinlog -n {filled.namesrv} topic show pay"
    assert completed(there, **nowhere) == ["payments"]
    assert completed("twinlog topic show --context production pay", **nowhere) == ["payments"]
    # Two name servers are asked in the usual way.
    both = {"NAMESRV_ADDR": f"{filled.namesrv};127.0.0.1:1"}
    assert completed("twinlog topic show pay", **both) == ["payments"]
    assert completed("twinlog group progress ", **both) == ["billing"]
    twinlog("context", "delete", "production").ok()


def test_a_silent_cluster_does_not_hang_the_shell() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        short = {"NAMESRV_ADDR": address, "TWINLOG_COMPLETE_SECONDS": "1"}
        assert completed("twinlog group progress ", **short) == []
        # A second, and what a busy machine takes to start Python.
        assert time.monotonic() - began < 15


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_tab_in_a_real_shell(filled: LocalTwins, tmp_path: Path) -> None:
    (block,) = blocks_run_by("tests/cli/test_shell_comforts.py", "docs/OPERATIONS.md")
    load, for_fish = block.lines
    path = f"{TWINLOG.parent}{os.pathsep}{os.environ['PATH']}"
    shell = spawn(Path("/bin/bash"), "--norc", "--noprofile", PATH=path, PS1="ready> ",
                  NAMESRV_ADDR=filled.namesrv, INPUTRC="/dev/null", HOME=str(tmp_path))  # fmt: skip
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    shell.expect("ready> ")
    shell.sendline(f'{load}; {for_fish}; echo lo""aded')
    shell.expect("loaded")
    shell.send("twinlog topic show pay\t")
    shell.expect("payments ")
    shell.sendline("-o name")
    shell.expect("broker-a")
    shell.sendline("exit")
    shell.expect(pexpect.EOF)
    shell.close()
    written = tmp_path / ".config" / "fish" / "completions" / "twinlog.fish"
    assert "complete" in written.read_text()


# Contexts


def test_adding_a_context_changes_nothing_else(filled: LocalTwins) -> None:
    twinlog("context", "add", "one", "-n", filled.namesrv).ok()
    assert [row["current"] for row in twinlog("context", "list", "-o", "json").json] == [False]
    twinlog("context", "use", "one").ok()
    added = twinlog("context", "add", "two", "-n", "127.0.0.1:1").ok()
    assert "twinlog context use two" in added.out
    rows = {row["name"]: row["current"] for row in twinlog("context", "list", "-o", "json").json}
    assert rows == {"one": True, "two": False}
    # A variable chooses for one shell, before NAMESRV_ADDR and the current one.
    chosen = process("topic", "list", TWINLOG_CONTEXT="two", NAMESRV_ADDR=filled.namesrv)
    assert chosen.code == 4
    assert "context two (TWINLOG_CONTEXT)" in chosen.err
    process("topic", "list", "--context", "one", TWINLOG_CONTEXT="two").ok()
    process("topicList", program=MQADMIN, TWINLOG_CONTEXT="one").ok()
    assert mqadmin("topicList", "--context", "two").code == 4
    wrong = process("topic", "list", TWINLOG_CONTEXT="tow")
    assert (wrong.code, wrong.err) == (3, "twinlog: no context 'tow'; did you mean 'two'?\n")
    for name in ("one", "two"):
        twinlog("context", "delete", name).ok()


# Tables and watching


def test_processes_as_json(filled: LocalTwins) -> None:
    rows = process("ps", "-o", "json", "--dir", filled.directory).ok().json
    assert [row["name"] for row in rows] == ["namesrv", "broker-a-0", "broker-a-1"]
    assert {row["state"] for row in rows} == {"up"}
    assert rows[0]["address"] == filled.namesrv
    assert all(row["pid"] and row["memory_bytes"] > 1 << 20 for row in rows)


@pytest.mark.parametrize("columns", [40, 80])
def test_tables_fit_a_narrow_terminal(filled: LocalTwins, columns: int) -> None:
    twinlog("context", "add", "narrow", "-n", "a-long-name.example.com:9876;another.example:9876")
    for words in (("broker", "list"), ("topic", "show", "orders"), ("ha", "status"), ("doctor",),
                  ("context", "list"), ("config", "print")):  # fmt: skip
        terminal = spawn(TWINLOG, *words, columns=columns, NAMESRV_ADDR=filled.namesrv)
        terminal.expect(pexpect.EOF)
        terminal.close()
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", str(terminal.before))
        table = [line for line in text.split("\r\n") if "  " in line]
        assert table, words
        assert max(map(len, table)) <= columns, words
    twinlog("context", "delete", "narrow").ok()


def test_wide_characters_take_two_columns(filled: LocalTwins) -> None:
    filled.twinlog("topic", "produce", "orders", "x", "--tag", "订单已经付款", "--key", "宽").ok()
    filled.twinlog("topic", "produce", "orders", "x", "--tag", "paid", "--key", "宽").ok()
    words = ("message", "query", "orders", "--key", "宽")
    wait_until(lambda: len(filled.twinlog(*words, "-o", "json").json) == 2, "both are indexed")
    for columns in (60, 160):
        terminal = spawn(TWINLOG, *words, columns=columns, NAMESRV_ADDR=filled.namesrv)
        terminal.expect(pexpect.EOF)
        terminal.close()
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", str(terminal.before))
        table = [line for line in text.split("\r\n") if "  " in line]
        assert len(table) == 3
        assert max(map(width_of, table)) <= columns


def test_tables_are_aligned_with_wide_characters() -> None:
    table = Table([Column("tag"), Column("n", is_right=True)],
                  [{"tag": "订单", "n": 1}, {"tag": "a", "n": 22}])  # fmt: skip
    assert render(Report([table]), "table") == "TAG    N\n订单   1\na     22\n"
    assert render(Report([table]), "table", width=6).splitlines()[1] == "订单 …"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_watch_that_is_ended_gives_the_cursor_back(filled: LocalTwins, number: int) -> None:
    terminal = spawn(TWINLOG, "topic", "list", "--watch", "200ms", NAMESRV_ADDR=filled.namesrv)
    terminal.expect(re.escape("\x1b[?25l"))
    terminal.expect("orders")
    terminal.kill(number)
    terminal.expect(re.escape("\x1b[?25h"))
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.signalstatus == number


@pytest.mark.parametrize(
    "words",
    ["topic create x", "topic produce orders x", "group delete g", "message resend X", "top",
     "events", "ha switch b", "acl add a", "cluster rolling-restart --command x"],
)  # fmt: skip
def test_what_cannot_be_watched_says_so(words: str) -> None:
    """It was ignored; and nobody wants a message sent again every two seconds."""
    refused = twinlog(*words.split(), "--watch", "1s")
    assert (refused.code, refused.out) == (2, "")
    assert "no such option" in refused.err.lower()


def test_watch_draws_over_what_is_there(filled: LocalTwins) -> None:
    terminal = spawn(TWINLOG, "topic", "list", "--watch", "200ms", NAMESRV_ADDR=filled.namesrv)
    terminal.expect(re.escape("\x1b[2J"))  # Cleared once.
    seen = ""
    for _ in range(4):
        terminal.expect(re.escape("\x1b[J"))
        seen += str(terminal.before)
    assert seen.count("\x1b[H") == 4
    assert "\x1b[2J" not in seen
    filled.twinlog("topic", "create", "appearing", "-q", 1).ok()
    terminal.expect("appearing")
    terminal.sendintr()
    terminal.expect(re.escape("\x1b[?25h"))  # The cursor is back.
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert "Traceback" not in (terminal.before or "")
    filled.twinlog("topic", "delete", "appearing", "-y").ok()


def test_watch_as_json_is_one_line_a_round(filled: LocalTwins) -> None:
    words = [str(TWINLOG), "topic", "list", "-o", "json", "--watch", "200ms"]
    watching = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "NAMESRV_ADDR": filled.namesrv},
    )  # fmt: skip
    assert watching.stdout is not None
    for _ in range(3):
        assert "orders" in {row["topic"] for row in json.loads(watching.stdout.readline())}
    watching.send_signal(signal.SIGINT)
    assert watching.wait(DEADLINE_S) == 0
    watching.stdout.close()


def test_a_drained_broker_shows_as_drained(filled: LocalTwins) -> None:
    filled.twinlog("broker", "drain", "broker-a", "-y").ok()
    rows = filled.twinlog("broker", "list", "-o", "json").json
    assert [(row["id"], row["state"]) for row in rows] == [(0, "drained"), (1, "up")]
    assert re.search(r"broker-a:0 .* drained", process("top", "--once", "-n", filled.namesrv).out)
    filled.twinlog("broker", "undrain", "broker-a").ok()
    rows = filled.twinlog("broker", "list", "-o", "json").json
    assert {row["state"] for row in rows} == {"up"}


def test_a_slave_is_shown_by_the_address_that_clients_use(filled: LocalTwins) -> None:
    wait_until(
        lambda: len(filled.twinlog("ha", "status", "-o", "json").json["replicas"]) == 2,
        "the slave is connected",
    )
    (_, slave) = filled.twinlog("ha", "status", "-o", "json").json["replicas"]
    assert (slave["id"], slave["address"]) == (1, filled.address("broker-a-1"))
    assert slave["connection"] != slave["address"]


# Ctrl-C


# Begun is what has taken the signal from Python.
ENTER = """
import sys
from twinlog.cli import entry

print("begun", flush=True)
sys.argv[0] = sys.argv.pop(1)
getattr(entry, sys.argv[0])()
"""
INTERRUPTED = (
    "twinlog topic list", "twinlog ha status", "twinlog group list", "twinlog top --once",
    "twinlog events --follow", "twinlog doctor", "twinlog topic produce orders", "twinlog check",
    "twinlog topic consume orders", "twinlog bench pub orders --rate 100",
    "twinlog cluster status --watch", "twinlog topic show orders -o json", "twinlog broker list",
    "mqadmin topicList", "mqadmin clusterList", "mqadmin statsAll", "mqadmin startMonitoring",
)  # fmt: skip


def test_ctrl_c_ends_a_command_at_any_moment(filled: LocalTwins) -> None:
    """Also while modules are loaded; not while Python itself starts, which nobody can change."""
    for number in range(12):
        terminal = spawn(Path(sys.executable), "-c", ENTER, "twinlog", "topic", "tail", "orders",
                         NAMESRV_ADDR=filled.namesrv)  # fmt: skip
        terminal.expect("begun")
        time.sleep(0.04 * number)  # The moment is what varies.
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        ended = (terminal.exitstatus, terminal.signalstatus)
        assert ended in ((130, None), (None, signal.SIGINT)), terminal.before
        assert "Traceback" not in str(terminal.before)


def test_the_signal_is_taken_before_anything_else_is_imported() -> None:
    """What is left to Python is its own start and the finding of this one module."""
    code = (
        "import sys, _signal; before = set(sys.modules); import twinlog.cli.entry;"
        "print(*sorted(set(sys.modules) - before), _signal.getsignal(2) == _signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["twinlog", "twinlog.cli", "twinlog.cli.entry", "True"]


def test_ctrl_c_within_a_destructor_is_not_lost() -> None:
    code = (
        "import signal, sys, types; from twinlog.cli import entry;"
        "Dying = type('Dying', (), {'__del__': lambda _: signal.raise_signal(signal.SIGINT)});"
        "main = lambda: ([Dying()].clear(), print('went on'));"
        "sys.modules['dying'] = types.SimpleNamespace(main=main);"
        "entry._run('dying', 'main')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("program", ["twinlog ha status", "mqadmin topicList"])
@pytest.mark.parametrize("point", ["get_debug", "_check_closed", "shutdown_asyncgens", "close"])
def test_ctrl_c_while_a_loop_is_made_or_closed(
    filled: LocalTwins, program: str, point: str
) -> None:
    """The moments between the parts of a command, where Python has nobody who would take it."""
    name, *words = program.split()
    code = (
        "import asyncio, functools, signal, sys; from twinlog.cli import entry;"
        f"Loop, sys.argv = asyncio.SelectorEventLoop, {[name, *words]!r};"
        f"point, real = {point!r}, getattr(Loop, {point!r});"
        "interrupted = lambda *given: (setattr(Loop, point, real),"
        " signal.raise_signal(signal.SIGINT), real(*given))[2];"
        "setattr(Loop, point, interrupted);"
        f"entry.{name}()"
    )
    environment = {**os.environ, "NAMESRV_ADDR": filled.namesrv}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, check=False,
        env=environment, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert "Traceback" not in done.stderr
    assert "never" not in done.stderr


def test_ctrl_c_ends_every_command_without_a_traceback(filled: LocalTwins) -> None:
    """At moments of a seed: while modules load, while it asks, while it waits, when it is done."""
    moments = random.Random(27)
    jobs = [(line, moments.random() * 0.5) for line in INTERRUPTED * 2]
    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(lambda job: interrupted(filled, *job), jobs))
    for (line, moment), (code, error) in zip(jobs, ends, strict=True):
        assert code in (0, 130, -signal.SIGINT), f"{line} after {moment:.3f} s: {code} {error}"
        assert "Traceback" not in error, f"{line} after {moment:.3f} s"
        assert "never retrieved" not in error, f"{line} after {moment:.3f} s"
    assert any(code for code, _ in ends)


def interrupted(cluster: LocalTwins, line: str, moment: float) -> tuple[int, str]:
    command = subprocess.Popen(
        [sys.executable, "-c", ENTER, *line.split()], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "NAMESRV_ADDR": cluster.namesrv, "TERM": "xterm"},
    )  # fmt: skip
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    time.sleep(moment)  # The moment is what varies.
    command.send_signal(signal.SIGINT)
    try:
        _, error = command.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        command.kill()
        _, error = command.communicate()
        return -signal.SIGKILL, error
    return command.returncode, error


def test_ctrl_c_ends_a_command_whose_server_says_nothing() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        terminal = spawn(TWINLOG, "ha", "status", "--timeout", "10m", NAMESRV_ADDR=address)
        connection, _ = silent.accept()
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close()
        connection.close()
    assert terminal.exitstatus == 130
    assert "Traceback" not in str(terminal.before)


def test_a_reader_that_has_seen_enough_is_no_error(filled: LocalTwins) -> None:
    for words in ("topic list --all", "config explain", "broker config get broker-a", "doctor"):
        line = f"{TWINLOG} {words} 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            env={**os.environ, "NAMESRV_ADDR": filled.namesrv},
        )  # fmt: skip
        assert len(done.stdout.splitlines()) == 2, words
        assert "Traceback" not in done.stdout


# What is not installed


@pytest.mark.parametrize(
    ("words", "missing"),
    [(["spark", "lag", "."], "pyspark"), (["spark", "export", ".", "--out", "x"], "numpy")],
)
def test_a_missing_package_is_one_sentence(words: list[str], missing: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({['pyspark', 'pyarrow', 'numpy']!r}))\n"
        "from twinlog.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    done = process("-c", code, *words, program=Path(sys.executable))
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert "which is not installed here" in line
    assert "pip install 'twinlog[spark]'" in line


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("encrypted")
    keys = certificates.server_keys("enforcing")
    with process_group() as group:
        namesrv = start_twinlog_namesrv(directory / "namesrv", **keys)
        group.add(namesrv)
        broker = start_twinlog_broker(
            directory / "broker", namesrv=namesrv.address, mappedFileSizeCommitLog=1 << 20,
            maxHashSlotNum=1000, **keys, **certificates.dialling_keys(),
        )  # fmt: skip
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        yield namesrv.address


def test_contexts_that_cannot_be_written_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without a home directory."""
    file = "/proc/nowhere/contexts.json"
    monkeypatch.setenv("TWINLOG_CONFIG", file)
    done = process("context", "add", "far", "-n", "127.0.0.1:9876")
    assert done.code == 1, done
    assert done.err == (
        f"twinlog: {file} cannot be written: No such file or directory; "
        "choose another file with TWINLOG_CONFIG\n"
    )


def test_tls_by_options_variables_and_contexts(
    encrypted: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = ("--tls-ca", str(certificates.authority))
    twinlog("broker", "list", "-n", encrypted, *ca).ok()
    assert mqadmin("clusterList", "-n", encrypted, *ca).code == 0
    assert twinlog("broker", "list", "-n", encrypted, "--timeout", "3s").code == 4
    untrusted = twinlog("broker", "list", "-n", encrypted, "--tls")
    assert untrusted.code == 4
    assert "certificate" in untrusted.err
    other = twinlog("broker", "list", "-n", encrypted, *ca, "--tls-server-name", "elsewhere")
    assert other.code == 4
    missing = twinlog("broker", "list", "-n", encrypted, "--tls-ca", "none.pem")
    assert missing.code == 2
    assert "none.pem" in missing.err
    # A context remembers it, as whole paths.
    monkeypatch.chdir(certificates.authority.parent)
    twinlog("context", "add", "secure", "-n", encrypted, "--tls-ca", "ca.pem", "--tls-client-cert",
            "server.pem", "--tls-client-key", "server.key").ok()  # fmt: skip
    monkeypatch.chdir("/")
    twinlog("broker", "list", "--context", "secure").ok()
    assert mqadmin("clusterList", "--context", "secure").code == 0
    (row,) = twinlog("context", "show", "secure", "-o", "json").json
    assert (row["tls"], row["tls_ca"]) == (True, str(certificates.authority))
    twinlog("context", "delete", "secure").ok()
    bad = twinlog("context", "add", "bad", "-n", encrypted, "--tls-ca", "none.pem")
    assert bad.code == 2
    assert twinlog("context", "show", "bad").code == 3
    process("broker", "list", "-n", encrypted, TWINLOG_TLS_CA=str(certificates.authority)).ok()


def test_insecure_is_said_loudly(encrypted: str) -> None:
    done = process("broker", "list", "-n", encrypted, "--tls-insecure").ok()
    assert "INSECURE" in done.err
    both = process("broker", "list", "-n", encrypted, "--tls-insecure", "--tls-ca", "x")
    assert both.code == 2
