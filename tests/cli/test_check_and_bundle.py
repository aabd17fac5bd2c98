"""`twinlog check` for monitoring plugins, `twinlog debug bundle`, and mqadmin as JSON."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from pathlib import Path

import pytest

from support.command_line import LocalTwins, process, twinlog
from support.doc_blocks import blocks_run_by
from support.processes import wait_until
from twinlog.cli.debug import hide_secrets, profile, without_secrets

LINE = re.compile(r"TWINLOG (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+( \| [^|\n]+)?\n\Z")


@pytest.fixture(scope="module")
def used(cluster: LocalTwins) -> LocalTwins:
    cluster.twinlog("topic", "create", "orders", "-q", 1).ok()
    cluster.twinlog("topic", "produce", "orders", "one", "two", "three", "--key", "k").ok()
    cluster.twinlog("topic", "consume", "orders", "--group", "billing", "-c", 1).ok()
    return cluster


def test_the_plugin_of_the_page(used: LocalTwins) -> None:
    (block,) = blocks_run_by("tests/cli/test_check_and_bundle.py", "docs/OPERATIONS.md")
    (line,) = block.lines
    program, *words = shlex.split(line)
    assert program == "twinlog"
    done = used.twinlog(*words, "--disk-warning", 101, "--disk-critical", 102)
    assert LINE.match(done.out), done
    assert "'billing lag'=" in done.out


def test_a_plugin_says_one_line(used: LocalTwins) -> None:
    def check(*words: object) -> tuple[int, str]:
        done = used.twinlog("check", *words)
        assert LINE.match(done.out), done
        assert done.err == ""
        return done.code, done.out

    def good() -> str:
        """The slave may still be on its way to what was just sent."""
        code, line = check("--disk-warning", 101, "--disk-critical", 102)
        return line if code == 0 else ""

    line = wait_until(good, "all is well")
    assert line.startswith("TWINLOG OK - 2 of 2 brokers answer | ")
    assert re.search(r"'broker-a:0 disk'=\d+%;101;102;0", line)
    code, line = check("--disk-warning", 0, "--disk-critical", 101)
    assert (code, line.startswith("TWINLOG WARNING - broker-a:0 disk is ")) == (1, True)
    assert check("--brokers", 3)[0] == 2
    code, line = check("--group", "billing", "--lag-warning", 1, "--lag-critical", 2,
                       "--disk-critical", 101)  # fmt: skip
    lag = used.twinlog("group", "progress", "billing", "-o", "json").json["lag"]
    assert (code, lag >= 2) == (2, True)  # Two of the three; another test may have sent more.
    assert f"CRITICAL - billing lag is {lag}" in line, line
    assert check("--group", "nobody", "--disk-critical", 101)[0] == 3
    gone = process("check", "-n", "127.0.0.1:1", "--timeout", "2s")
    assert (gone.code, gone.out.startswith("TWINLOG CRITICAL - no name server")) == (2, True)


@pytest.mark.parametrize(
    "words",
    ["--brokers abc", "--nonsense", "extra", "--replication-warning x", "--timeout x",
     "--access-key a", "-n nowhere", "--context nope", "--tls-ca /no/such/file"],
)  # fmt: skip
def test_a_check_that_cannot_be_made_is_unknown(words: str) -> None:
    """2 is CRITICAL and 1 is WARNING to a monitoring system: it rang for a typing error."""
    done = twinlog("check", *words.split())
    assert (done.code, done.err) == (3, "")
    (line,) = done.out.splitlines()
    assert line.startswith("TWINLOG UNKNOWN - ")


def test_secrets_stay_at_home() -> None:
    told = without_secrets(
        {"a": [{"secretKey": "x", "name": "y"}], "tlsPassword": "z", "token": ""}
    )
    assert told == {
        "a": [{"secretKey": "******", "name": "y"}],
        "tlsPassword": "******",
        "token": "",
    }


@pytest.mark.parametrize(
    "text",
    [
        "connecting with --secret-key HIDEME to x", "http://user:HIDEME@host/path",
        "secretKey='HIDEME, HIDEME'", "Authorization: Bearer HIDEME", "SEC_TOKEN=HIDEME",
        '{"secretKey": "HIDEME, HIDEME"}', "password: HIDEME,HIDEME;HIDEME",
        "accessKey=me&secretKey=HIDEME&x=1",
    ],
)  # fmt: skip
def test_secrets_in_a_text_are_hidden_as_a_whole(text: str) -> None:
    told = hide_secrets(f"before {text} after")
    assert "HIDEME" not in told
    assert told.startswith("before ")
    assert told.endswith(" after")
    assert "HIDEME" not in str(without_secrets({"remark": [text]}))


def test_a_profile_counts_stacks() -> None:
    stack = 'Current thread 0x1 (most recent call first):\n  File "/x/a.py", line 3 in inner\n'
    text = profile((stack + '  File "/x/a.py", line 9 in outer\n') * 2)
    assert text.splitlines() == [
        "2 stacks", "  itself  in all  function", "       2       2  a.py inner",
        "       0       2  a.py outer",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["nan", "-1"])
def test_a_level_is_a_percentage(used: LocalTwins, value: str) -> None:
    found = used.twinlog("check", "--disk-warning", value)
    assert found.code == 3
    assert "is not a percentage" in found.out


def test_a_bundle_has_what_helps(used: LocalTwins, tmp_path: Path) -> None:
    file = tmp_path / "problem.tar.gz"
    conf = used.directory / "broker-a-0" / "extra.conf"
    conf.write_text(
        "accessKey=me\nsecretKey=hunter2hunter2\n"
        'tlsServerKeyPassword=a,hunter2;hunter2 hunter2"hunter2\n'
    )
    done = used.twinlog("debug", "bundle", "--out", file, "--dir", used.directory).ok()
    conf.unlink()
    assert done.err == ""
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        members = {m.name: archive.extractfile(m) for m in archive.getmembers()}
        texts = {name: data.read().decode() for name, data in members.items() if data is not None}
    for name in ("machine.json", "cluster/health.json", "cluster/replication.json",
                 "logs/broker-a-0.log", "stacks/broker-a-0.txt", "profile/namesrv.txt",
                 f"config/{used.master.replace(':', '_')}.json",
                 f"metrics/{used.master.replace(':', '_')}.txt"):  # fmt: skip
        assert texts[f"problem/{name}"], name
    assert json.loads(texts["problem/manifest.json"])["problems"] == {}
    assert "hunter2" not in "".join(texts.values())
    assert "rocketmq_" in texts[f"problem/metrics/{used.master.replace(':', '_')}.txt"]
    assert "runners.py" in texts["problem/stacks/broker-a-0.txt"]
    assert int(texts["problem/profile/broker-a-0.txt"].split()[0]) >= 20
    # Asking for stacks has not hurt anybody.
    used.twinlog("cluster", "health").ok()


@pytest.mark.parametrize(
    "words",
    [
        "topicList", "topicList -c", "topicRoute -t orders", "topicRoute -t orders -l",
        "topicStatus -t orders", "topicClusterList -t orders", "clusterList", "clusterList -m",
        "brokerStatus -c DefaultCluster", "getBrokerConfig -c DefaultCluster", "getNamesrvConfig",
        "consumerProgress", "consumerProgress -g billing", "getConsumerConfig -g billing",
        "queryMsgByKey -t orders -k k", "statsAll", "haStatus -c DefaultCluster",
        "allocateMQ -t orders -i a,b", "sendMessage -t orders -p x", "printMsg -t orders",
        "queryCq -t orders -q 0 -i 0", "updateTopic -c DefaultCluster -t made -o true",
        "producerConnection -g PG -t orders", "checkMsgSendRT -t orders -a 3 -s 10",
    ],
)  # fmt: skip
def test_every_verb_as_json(used: LocalTwins, words: str) -> None:
    verb, *rest = words.split()
    done = used.mqadmin(verb, *rest, "-o", "json")
    if verb == "producerConnection":  # Nobody is there: an error is one line, also with JSON.
        assert (done.code != 0, done.out) == (True, "")
        return
    done.ok()
    (line,) = done.out.splitlines()
    found = json.loads(line)
    assert found.pop("verb") == verb
    assert found, "nothing was said"


def test_json_has_values_and_not_text(used: LocalTwins) -> None:
    (row,) = used.mqadmin("topicStatus", "-t", "orders", "-o", "json").json["rows"]
    assert (row["Broker Name"], row["QID"], row["Min Offset"]) == ("broker-a", 0, 0)
    route = used.mqadmin("topicRoute", "-t", "orders", "--output", "json").json
    assert route["values"]["document"]["queueDatas"][0]["readQueueNums"] == 1
    config = used.mqadmin("getBrokerConfig", "-b", used.master, "-o", "json").json["values"]
    assert config[used.master]["brokerName"] == "broker-a"
    assert used.mqadmin("topicList", "--output", "xml").code == 2


def test_a_dead_broker_is_critical_and_the_bundle_says_so(used: LocalTwins, tmp_path: Path) -> None:
    used.kill("broker-a-1")
    wait_until(lambda: used.twinlog("check").code == 2, "the plugin sees it")
    file = tmp_path / "dead.tar.gz"
    done = used.twinlog("debug", "bundle", "--out", file, "--dir", used.directory).ok()
    assert "stacks of broker-a-1" in done.err
    assert file.exists()
