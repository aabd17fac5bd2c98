"""Wrong input of every kind: one line with a hint and an exit code. And a real terminal."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

from support.command_line import TWINLOG, LocalTwins, Result, mqadmin, process, twinlog
from support.stores import VECTORS
from twinlog.cli.output import Column, Report, Table, render

DEADLINE_S = 60


def one_line(result: Result, code: int, *parts: str) -> None:
    """The exit code, nothing on standard output, and one line that has every part."""
    assert (result.code, result.out) == (code, ""), result
    (line,) = result.err.splitlines()
    for part in parts:
        assert part in line
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["tpoic", "list"], ["no command 'tpoic'", "did you mean 'topic'?"]),
        (["topic", "lsit"], ["twinlog topic: no command 'lsit'", "did you mean 'list'?"]),
        (["topic", "create"], ["missing argument 'NAME'", "see: twinlog topic create --help"]),
        (["topic", "list", "--outptu", "x"], ["no such option", "--output"]),
        (["topic", "list", "-o", "xml"], ["'xml' is not one of 'table', 'wide', 'json'"]),
        (["topic", "list", "--timeout", "soon"], ["'soon' is not a duration", "500ms"]),
        (["topic", "list", "--access-key", "a"], ["--access-key and --secret-key go together"]),
        (["group", "reset", "g", "--topic", "t", "--to", "sometime"], ["'sometime' is not a time"]),
        (["topic", "list", "-n", "nowhere"], ["'nowhere' has no port"]),
        (["group", "reset", "g", "--topic", "t", "--to", "9" * 20], ["9' is not a time"]),
        (["topic", "produce", "t", "x", "--json"], ["give BODIES or --json, not both"]),
        (["context", "add", "", "-n", "a:1"], ["'' is not a name: give one word"]),
        (["context", "add", "\udcff", "-n", "a:1"], ["is not a name: give one word"]),
        (["topic", "list", "-n", "host:99999"], ["'99999' is not a port from 1 to 65535"]),
        (["bench", "pub", "t", "--size", "9" * 11], ["is not in the range 1<=x<=16777216"]),
        (["bench", "pub", "t", "--rate", "nan"], ["'--rate': nan is not in the range"]),
        (["bench", "latency", "t", "--rate", "inf"], ["'--rate': inf is not in the range"]),
    ],
)
def test_wrong_usage_is_exit_code_2(words: list[str], parts: list[str]) -> None:
    one_line(twinlog(*words), 2, *parts)


def test_bytes_that_are_no_text_are_one_line(cluster: LocalTwins) -> None:
    for words in (("events", "\udcff"), ("topic", "list", "--cluster", "\udcff")):
        one_line(cluster.twinlog(*words), 2, "is not valid UTF-8")
    one_line(cluster.mqadmin("topicStatus", "-t", "\udcff"), 2, "is not valid UTF-8")


def test_an_allocation_to_nobody_is_one_line(cluster: LocalTwins) -> None:
    words = ("allocateMQ", "-t", "SELF_TEST_TOPIC", "-i", ",")
    one_line(cluster.mqadmin(*words), 2, "names no client")


def test_a_name_that_the_system_refuses_is_one_line() -> None:
    for words in (("ps", "--dir"), ("backup", "list"), ("store", "verify"), ("store", "give-up")):
        refused = twinlog(*words, "x" * 3000)
        assert refused.code in (1, 3), refused
        one_line(refused, refused.code, "xxx")


def test_options_for_files_do_not_go_with_a_running_broker(tmp_path: Path) -> None:
    """They were ignored: who asked for every entry was told that the store is sound."""
    for more in (("--deep",), ("--commit-log", tmp_path)):
        refused = twinlog("store", "verify", "--online", "broker-a", "-n", "127.0.0.1:1", *more)
        one_line(refused, 2, f"{more[0]} does not go with --online")


def test_a_file_in_the_place_of_a_directory_of_the_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_bytes(b"x")
    for words in (("verify", tmp_path), ("give-up", tmp_path)):
        one_line(twinlog("store", *words), 3, "commitlog is a file, not the directory of a commit")


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_queues_or_an_index_that_are_a_file_are_one_line(tmp_path: Path, name: str) -> None:
    shutil.copytree(VECTORS / "store" / "commitlog", tmp_path / "commitlog")
    (tmp_path / name).write_bytes(b"x")
    refused = twinlog("store", "verify", tmp_path)
    one_line(refused, 1, f"{name} is a file and must be a directory")
    assert "Errno" not in refused.err


def test_what_a_terminal_cannot_show_is_escaped(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "signs").ok()
    cluster.twinlog("topic", "produce", "signs", "日本").ok()
    words = ("topic", "consume", "signs", "-o", "start", "-e", "-n", cluster.namesrv)
    shown = process(*words, PYTHONIOENCODING="latin-1").ok()
    assert shown.out.endswith(" \\u65e5\\u672c\n")


def test_who_does_not_read_on_is_no_failure(cluster: LocalTwins) -> None:
    for words in (("broker", "config", "get", "broker-a"), ("topic", "list", "--all")):
        command = shlex.join([str(TWINLOG), *words, "-n", cluster.namesrv])
        for ending in ("| true; exit ${PIPESTATUS[0]}", ">&-"):
            done = process("-c", f"{command} {ending}", program=Path("/bin/bash"))
            assert (done.code, done.err) == (0, ""), (words, ending)


def test_names_of_a_report_with_data_for_programs_first() -> None:
    """`ha status -o name` of a group with a controller was a traceback."""
    report = Report([Table([], [{"x": 1}], "data"), Table([Column("name")], [{"name": "a"}])])
    assert render(report, "name") == "a\n"


def test_no_name_server_is_exit_code_4() -> None:
    hint = "start one with `twinlog up`, or name yours with -n HOST:PORT or NAMESRV_ADDR"
    gone = twinlog("topic", "list", "-n", "127.0.0.1:1", "--timeout", "3s")
    one_line(gone, 4, "no name server answers", "the address came from -n")
    for words in (("ha", "status"), ("group", "list"), ("message", "query", "t", "--key", "k"),
                  ("controller", "status"), ("ha", "switch", "broker-a")):  # fmt: skip
        one_line(twinlog(*words, "-n", "127.0.0.1:1"), 4, "no name server answers")
    session = Path(__file__).parents[2] / "src/twinlog/cli/admin/session.py"
    assert hint in session.read_text()


def test_wrong_names_are_exit_code_3_with_the_nearest(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "orders").ok()
    cluster.twinlog("group", "create", "billing").ok()
    for words in (("show",), ("route",), ("consume", "-e"), ("update", "--perm", "r")):
        verb, *rest = words
        found = cluster.twinlog("topic", verb, "oders", *rest)
        one_line(found, 3, "no topic 'oders'", "did you mean 'orders'?")
    sent = cluster.twinlog("topic", "produce", "oders", "x")
    one_line(sent, 3, "did you mean 'orders'? (or add --create)")
    for verb in ("show", "progress", "clients", "check"):
        found = cluster.twinlog("group", verb, "biling")
        one_line(found, 3, "no group 'biling'", "did you mean 'billing'?")
    one_line(cluster.twinlog("topic", "show", "zzz"), 3, "see: twinlog topic list")
    one_line(cluster.twinlog("broker", "show", "broker-x"), 3, "did you mean 'broker-a'?")
    one_line(cluster.twinlog("broker", "list", "--cluster", "Defaultcluster"), 3, "DefaultCluster")
    one_line(cluster.twinlog("dlq", "show", "billing"), 3, "has no dead letters")
    one_line(cluster.twinlog("message", "get", "F" * 32), 3, "names no broker of this cluster")
    one_line(cluster.twinlog("message", "get", "xyz"), 2, "is not a message id")
    one_line(cluster.twinlog("topic", "create", "bad name"), 2, "only letters, digits")


# Lines that are JSON, but not what `consume --json` prints.
NO_MESSAGES = [
    "5", "[1]", "{}", '{"body":"x","keys":5}', '{"body":"x","properties":[1]}',
    '{"body":"x","properties":"abc"}', '{"body":"\\ud800"}',
]  # fmt: skip


def test_what_cannot_be_sent_is_exit_code_2(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "unsent").ok()
    for line in NO_MESSAGES:
        found = cluster.twinlog("topic", "produce", "unsent", "--json", stdin=line.encode())
        one_line(found, 2, "line 1 is not a message", '{"body": "hi"')
    for option in (("--tag", "\udcff"), ("-p", "a=\udcff"), ("--sharding-key", "\udcff")):
        one_line(cluster.twinlog("topic", "produce", "unsent", "x", *option), 2, "UTF-8")
    # Any bytes are a body.
    cluster.twinlog("topic", "produce", "unsent", "\udcff").ok()
    (row,) = map(json.loads, consumed(cluster, "unsent", "--json"))
    assert base64.b64decode(row["body_base64"]) == b"\xff"


def consumed(cluster: LocalTwins, topic: str, *options: str) -> list[str]:
    words = ("topic", "consume", topic, "-o", "start", "-e", *options)
    return cluster.twinlog(*words).ok().out.splitlines()


def test_formats_of_people(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "produce", "evil", "hello", "--create").ok()
    assert "größe\thello\\" in consumed(cluster, "evil", "-f", "größe\\t{body}\\")
    for wrong, why in (
        ("{nope}", "no field 'nope'"),
        ("{body", "expected '}'"),
        ("{}", "--format"),
    ):
        words = ("topic", "consume", "evil", "-o", "start", "-e", "-f", wrong)
        one_line(cluster.twinlog(*words), 2, why, "the fields are: body, ")


def test_a_broker_or_its_ha_port_is_no_name_server(cluster: LocalTwins) -> None:
    broker = twinlog("topic", "list", "-n", cluster.master)
    one_line(broker, 4, "is not a name server", "usually port 9876")
    host, _, port = cluster.master.partition(":")
    ha = twinlog("topic", "list", "-n", f"{host}:{int(port) + 1}", "--timeout", "1s")
    one_line(ha, 4, "is it a broker's HA port?")


def test_mqadmin_says_what_is_wrong(cluster: LocalTwins) -> None:
    one_line(mqadmin("topicLst"), 2, "no sub command 'topicLst'", "did you mean 'topicList'?")
    one_line(mqadmin("electMaster"), 2, "-a (controllerAddress) is missing")
    one_line(mqadmin("topicStatus"), 2, "-t (topic) is missing", "mqadmin help topicStatus")
    one_line(mqadmin("topicStatus", "--topc", "x"), 2, "unknown option --topc", "'topic'")
    one_line(mqadmin("topicStatus", "-t"), 2, "-t (topic) needs a value")
    one_line(cluster.mqadmin("topicStatus", "-t", "nix"), 3, "topic 'nix' does not exist")
    one_line(cluster.mqadmin("updateTopic", "-t", "x"), 2, "give -b (brokerAddr) or -c")
    one_line(cluster.mqadmin("updateTopic", "-t", "x", "-c", "No"), 2, "there is: DefaultCluster")
    one_line(mqadmin("clusterList", "-n", "127.0.0.1:1"), 4, "no name server answers")


def test_help_shows_an_example_everywhere() -> None:
    """Every command, found by walking the tree."""
    import click

    from twinlog.cli.main import cli

    missing = []

    def walk(command: click.Command, path: list[str]) -> None:
        context = click.Context(command, info_name=path[-1])
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                walk(child, [*path, name])
        elif "Example" not in (command.epilog or "") and path[1] not in others:
            missing.append(" ".join(path))

    others = ("demo", "spark", "namesrv", "down", "ps", "logs")
    walk(cli, ["twinlog"])
    assert missing == []


# As processes, in a pipe and on a terminal


def test_in_a_pipe_there_are_no_colours(cluster: LocalTwins) -> None:
    listed = process("topic", "list", NAMESRV_ADDR=cluster.namesrv, NO_COLOR="").ok()
    assert "\x1b" not in listed.out
    wrong = process("topic", "shwo", NAMESRV_ADDR=cluster.namesrv)
    assert wrong.code == 2
    assert wrong.err == "twinlog topic: no command 'shwo'; did you mean 'show'?\n"
    version = process("--version").ok()
    assert re.match(r"twinlog, version \d", version.out)


def spawn(*words: str, **environment: str) -> pexpect.spawn:
    import os

    env = {**os.environ, "TERM": "xterm", **environment}
    env.pop("NO_COLOR", None)
    return pexpect.spawn(str(TWINLOG), list(words), env=env, encoding="utf-8", timeout=DEADLINE_S,
                         dimensions=(40, 160))  # fmt: skip


def test_on_a_terminal_the_sentence_is_green(cluster: LocalTwins) -> None:
    terminal = spawn("-n", cluster.namesrv, "ha", "status")
    terminal.expect("\x1b\\[32mbroker-a is healthy")
    terminal.expect("\x1b\\[1mBROKER +ID +ROLE")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_deleting_asks_on_a_terminal(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "asked").ok()
    terminal = spawn("-n", cluster.namesrv, "topic", "delete", "asked")
    terminal.expect("delete asked and all their messages\\? \\[y/N\\]")
    terminal.sendline("n")
    terminal.expect("nothing was changed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 1
    terminal = spawn("-n", cluster.namesrv, "topic", "delete", "asked")
    terminal.expect("\\[y/N\\]")
    terminal.sendline("y")
    terminal.expect("asked +127")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_tail_shows_what_comes(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "news", "-q", "1").ok()
    cluster.twinlog("topic", "produce", "news", "early").ok()
    terminal = spawn("-n", cluster.namesrv, "topic", "tail", "news")
    terminal.expect("early")
    cluster.twinlog("topic", "produce", "news", "late").ok()
    terminal.expect("late")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130


def test_up_twice_says_what_is_running(cluster: LocalTwins) -> None:
    again = cluster.up()
    assert again.code == 0
    assert again.out.startswith(f"A cluster is running in {cluster.directory}")
    assert f"NAMESRV_ADDR={cluster.namesrv}" in again.out


def test_what_makes_a_command_slow_to_start_is_not_imported(cluster: LocalTwins) -> None:
    code = (
        "import sys; from twinlog.cli.lazy import run_group; from twinlog.cli.main import cli;"
        "assert run_group(cli, sys.argv[2:], 'twinlog') == 0;"
        "print('LOADED', *[name for name in sys.argv[1].split(',') if name in sys.modules]);"
        "print(sum(name.startswith('twinlog') for name in sys.modules))"
    )
    heavy = "numpy,uvloop,pyspark,rich,yaml,psutil,lark,twinlog.store,twinlog.broker"
    # Files and codecs of servers and consumers; a thread to look up what is an address already.
    wasted = "ctypes,mmap,lzma,shutil,pathlib,concurrent.futures.thread,twinlog.message.record"
    for names, own_max, words in (
        (f"{heavy},{wasted},asyncio,twinlog.client.net.instance", 30, ("topic", "list")),
        (f"{heavy},{wasted},twinlog.client.producer.producer", 93, ("ha", "status")),
        (f"{heavy},{wasted},twinlog.client.consumer.consumer_core", 93, ("group", "list")),
        (
            f"{heavy},{wasted},twinlog.client.producer.producer",
            86,
            ("topic", "show", "SELF_TEST_TOPIC"),
        ),
        (f"{heavy},{wasted},twinlog.client.producer.producer", 94, ("doctor",)),
    ):
        python = Path(sys.executable)
        done = process("-c", code, names, "-n", cluster.namesrv, *words, program=python).ok()
        *_, loaded, own = done.out.splitlines()
        assert loaded == "LOADED"
        assert int(own) <= own_max, f"{words}: {own} modules of ours"


def test_the_short_way_and_the_usual_one_list_the_same(cluster: LocalTwins) -> None:
    """Two name servers are beyond the short way: the client asks them."""
    short = cluster.twinlog("topic", "list", "--all").ok()
    usual = twinlog("topic", "list", "--all", "-n", f"{cluster.namesrv};{cluster.namesrv}").ok()
    assert short.out == usual.out
