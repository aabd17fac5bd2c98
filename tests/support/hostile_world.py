"""Real processes under generated attack: a name server, a pair, a controller, a normal client.

    report = attack(directory, seconds=25, seed=1)
    assert not report.findings, report.text()

Attacks, then saves and a restart of everything, attacks, then the end of the master and the
promotion of its slave, attacks, then the account of the normal client. What belongs to others is
looked at after each step: a topic, a group, its offsets, an entry of the name server, a record of
the controller.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import SHUT_RDWR
from subprocess import PIPE
from typing import Any, cast

import msgspec

from support import hostile_cases as generate
from support.command_line import process as command
from support.ha_load import ask, ha_status
from support.hostile_attack import Attacker
from support.hostile_cases import Case, Code, Field
from support.processes import Process, ProcessGroup, process_group, wait_until
from support.raw_peer import RawPeer
from support.twinlog_servers import (
    TwinlogBroker,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.broker.server import build_broker
from twinlog.controller.processor import ControllerProcessor
from twinlog.namesrv.server import build_namesrv
from twinlog.remoting.request_table import RequestTable, Row
from twinlog.runtime.config import BrokerConfig, NamesrvConfig
from twinlog.runtime.config_key import live_keys
from twinlog.testing.simdisk import SimDisk

BROKER: dict[str, object] = {
    "flushConsumerOffsetInterval": 200,
    "flushDelayOffsetInterval": 200,
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 100,
    "transactionCheckMax": 200,  # Longer than it lasts: nobody decides what is looked at.
    "messageDelayLevel": " ".join(["1s"] * 18),
    "mappedFileSizeCommitLog": 64 * 1024 * 1024,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "enablePropertyFilter": "true",
    "slaveReadEnable": "true",
    "registerNameServerPeriod": 10_000,
}
QUEUES = 4  # Of the topics that are made for the test.
UNDECIDED = "undecided"  # Group and client of a transaction that stays so.
CHECK_TRANSACTION_STATE = 39
UNREADABLE = (
    "left out",
    "not taken over",
    "not readable",
    "unreadable",
    "cannot be read",
    "not loaded",
    "damaged",
)

# Codes that take or give something by their purpose are asked about `hostile` and nothing else.
FIELDS: dict[str, str] = {
    "topic": "hostile", "b": "hostile", "consumerGroup": "hostile", "group": "hostile",
    "groupName": "hostile", "srcGroup": "hostile", "destGroup": "hostile-2", "a": "hostile",
    "compareGroup": "hostile-2", "producerGroup": "hostile", "defaultTopic": "TBW102",
    "c": "TBW102", "d": "4", "defaultTopicQueueNums": "4", "perm": "6", "sysFlag": "4", "f": "0",
    "topicFilterType": "SINGLE_TAG", "commitOrRollback": "8", "accessKey": "hostile-account",
    "secretKey": "hostile-secret", "globalWhiteAddrs": "10.255.255.1", "subscription": "*",
    "properties": "TAGS\x01a\x02KEYS\x01k", "i": "TAGS\x01a\x02KEYS\x01k",
    "brokerName": "hostile", "brokerAddr": "127.0.0.1:9", "haServerAddr": "127.0.0.1:8",
    "brokerAddress": "127.0.0.1:9", "clusterName": "hostile", "cluster": "hostile",
    "namespace": "hostile", "key": "k", "value": "v", "clientID": "c", "clientId": "c",
    "delayLevel": "1", "maxMsgNums": "8", "readQueueNums": "1", "writeQueueNums": "1",
    "statsName": "TOPIC_PUT_NUMS", "statsKey": "hostile", "maxNum": "8",
    "endTimestamp": "9999999999999", "timestamp": "1", "expressionType": "TAG", "brokerRole": "?",
    "registerCheckCode": "127.0.0.1:9;x", "appliedBrokerId": "1", "brokerId": "1",
    "twinlogPolicy": '{"minInSyncReplicas":1}', "twinlogIncarnations": "1=a;2=b",
    "compressed": "false", "twinlogIncarnation": "a", "brokerControllerIdsToClean": "1;2",
    "maxReconsumeTimes": "3",
}  # fmt: skip
_SUBSCRIPTION: dict[str, Any] = {
    "topic": "hostile", "subString": "a > 5", "tagsSet": ["x"], "codeSet": [1], "subVersion": 1,
    "expressionType": "SQL92", "classFilterMode": False, "filterClassSource": "x",
}  # fmt: skip
_VERSION = {"counter": 1, "timestamp": 1}
_TOPIC = {
    "topicName": "hostile", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
}  # fmt: skip
BODIES: dict[int, Any] = {
    34: {
        "clientID": "hostile@1",
        "producerDataSet": [{"groupName": "hostile"}],
        "consumerDataSet": [{
            "groupName": "hostile", "consumeType": "CONSUME_PASSIVELY", "unitMode": False,
            "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [_SUBSCRIPTION],
        }],
    },
    46: {"clientId": "c", "group": "hostile", "subscriptionData": _SUBSCRIPTION},
    41: {"consumerGroup": "hostile", "clientId": "c",
         "mqSet": [{"topic": "hostile", "brokerName": "broker-a", "queueId": 0}]},
    42: {"consumerGroup": "hostile", "clientId": "c",
         "mqSet": [{"topic": "hostile", "brokerName": "broker-a", "queueId": 0}]},
    200: {"groupName": "hostile", "consumeEnable": True, "consumeFromMinEnable": True,
          "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
          "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True},
    103: {"topicConfigSerializeWrapper": {"dataVersion": _VERSION,
                                          "topicConfigTable": {"hostile": _TOPIC}},
          "filterServerList": ["127.0.0.1:7"]},
    322: _VERSION,
    904: {},
    1001: {"syncStateSet": [1], "syncStateSetEpoch": 1},
    1006: ["hostile"],
    10002: {"offsetTable": {"hostile@hostile": {"0": 1}}},
}  # fmt: skip
THREADS = {"master": 3, "slave": 2}  # Answers of brokers wait for disk and replica.
_MESSAGES = (10, 310, 320, 324, 325)


# The codes, from the tables of the servers


def codes_of(rows: Iterable[Row[Any]], values: dict[str, str]) -> list[Code]:
    return [_code(row, values) for row in rows]


def _code(row: Row[Any], values: dict[str, str]) -> Code:
    fields = tuple(
        Field(one.encode_name, one.required, values.get(one.encode_name, "0"))
        for one in msgspec.structs.fields(row.header)
    )
    body = BODIES.get(int(row.code), {"group": "hostile", "topic": "hostile"})
    if row.code in _MESSAGES:
        body = generate.batch_member(b"x") if row.code == 320 else b"x"
    return Code(int(row.code), fields, body, row.body_max, int(row.code) in BODIES)


async def _broker_table() -> RequestTable:
    config = BrokerConfig(store_path_root_dir="/store")
    broker = build_broker(config, rng=random.Random(1), disk=SimDisk())
    await broker.client.close()
    return broker.requests.table


async def _namesrv_table() -> RequestTable:
    config = NamesrvConfig(listen_port=0, kv_config_path="/kv", config_store_path="/properties")
    return build_namesrv(config, disk=SimDisk()).processor.table


def tables() -> dict[str, RequestTable]:
    """The table of each server, as the product has it."""
    return {
        "broker": asyncio.run(_broker_table()),
        "namesrv": asyncio.run(_namesrv_table()),
        "controller": ControllerProcessor(cast(Any, None)).table,
    }


def cases_for(
    kind: str, table: RequestTable, values: dict[str, str], keys: Iterable[str]
) -> list[Case]:
    """All cases of one kind of server, not yet in an order."""
    codes = codes_of(table, values)
    cases = [case for code in codes for case in generate.cases_of(code)]
    cases += generate.head_cases(codes[:2])
    cases += generate.unknown_codes(table.rows)
    if kind == "broker":
        cases += generate.property_cases()
        cases += generate.batch_cases()
        cases += generate.config_cases(25, keys)
    elif kind == "namesrv":
        (registration,) = (code for code in codes if code.number == 103)
        cases += generate.registration_cases(registration)
        cases += generate.config_cases(318, keys)
    else:
        cases += generate.config_cases(1009, keys)
    return cases


# The processes


@dataclass
class Report:
    """What an attack came to."""

    seed: object
    cases: dict[str, int] = field(default_factory=dict)
    systematic: dict[str, str] = field(default_factory=dict)
    following: int = 0
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    client: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        total = sum(self.cases.values())
        lines = [f"{total} cases, seed {self.seed}, next case {self.following}: {self.cases}"]
        lines.append(f"of the systematic ones: {self.systematic}")
        for name, (seconds, cases) in self.slowest.items():
            lines.append(f"slowest packet of {name}: {seconds:.1f} s, {cases[:300]}")
        for phase, took in self.client.get("phases", {}).items():
            lines.append(f"normal client, {phase}: {took}")
        for reason, count in self.client.get("reasons", {}).items():
            lines.append(f"normal client, {count} sends not acknowledged: {reason}")
        return "\n".join([*lines, *self.findings])


class World:
    """Everything that runs, and what belongs to those who mean no harm."""

    def __init__(self, directory: Path, group: ProcessGroup) -> None:
        self._group = group
        self.namesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(self.namesrv)
        self.controller = self._add(start_twinlog_controller(directory / "controller", wait=False))
        self.master = self._broker(directory / "m", brokerRole="SYNC_MASTER")
        self.slave = self._broker(directory / "s", brokerRole="SLAVE", brokerId=1)
        self.controller.wait_for_text("twinlog controller ready")
        for broker in (self.master, self.slave):
            broker.wait_for_text("twinlog broker ready")
            self.namesrv.wait_registered(broker.address)
        self.values = dict(FIELDS)
        shown = self._config(self.master, 26)
        self.first_values = {
            key: shown[key]
            for key in sorted(live_keys(BrokerConfig) - generate.NOT_UPDATED)
            if key in shown
        }
        self._prepare()
        script = Path(__file__).with_name("normal_client.py")
        self.client = Process(
            "normal client", [sys.executable, str(script), self.namesrv.address, "normal"],
            log=directory / "client.log", stdin=PIPE,
        )  # fmt: skip
        group.add(self.client)
        wait_until(lambda: self._committed() > 0, "the normal client consumes")

    def _add(self, process: Any) -> Any:
        self._group.add(process)
        return process

    def _broker(self, directory: Path, **config: object) -> TwinlogBroker:
        values = {**BROKER, **config}
        broker: TwinlogBroker = self._add(
            start_twinlog_broker(directory, namesrv=self.namesrv.address, wait=False, **values)
        )
        return broker

    def _prepare(self) -> None:
        for topic in ("normal", "hostile"):
            ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "perm": 6,
                   "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG"}  # fmt: skip
            assert ask(self.master.address, 17, ext).code == 0
        wait_until(self._is_in_sync, "the slave is in sync")
        group = {"groupName": "normal", "retryMaxTimes": 7}
        assert self._say(self.master, Case("group", 200, {}, json.dumps(group).encode())) == 0
        record = self._send("TAGS\x01a")
        half = self._send(generate.properties_text(generate.HALF), "4")
        self.values["offset"] = str(record)
        self.values["commitLogOffset"] = str(half)
        self.values["msgId"] = f"7F000001{self.master.port:08X}{record:016X}"
        self._send(generate.properties_text({"TRAN_MSG": "true", "PGROUP": UNDECIDED}), "4")
        entry = {"namespace": "normal", "key": "k", "value": "v"}
        assert ask(self.namesrv.address, 100, entry).code == 0
        for name in ("normal", "hostile"):
            ext = {"clusterName": name, "brokerName": name, "appliedBrokerId": 1,
                   "registerCheckCode": "127.0.0.1:9;x"}  # fmt: skip
            answer = ask(self.controller.address, 1013, ext)
            assert answer.code == 0, answer.remark

    def _send(self, properties: str, flag: str = "0") -> int:
        with RawPeer(self.master.port) as peer:
            ext = generate.send_ext(10, "hostile", properties, sysFlag=flag)
            peer.send(Case("first", 10, ext, b"x").frame(1))
            answer = peer.read_answer()
        assert answer.code == 0, answer.remark
        return int(answer.ext()["msgId"][-16:], 16)

    def _say(self, process: Any, case: Case) -> int:
        with RawPeer(process.port) as peer:
            peer.send(case.frame(1))
            return peer.read_answer().code

    def _is_in_sync(self) -> bool:
        replicas = ha_status(self.master.address)["haConnectionInfo"]
        return any(each["diff"] == 0 for each in replicas)

    def _committed(self, broker: TwinlogBroker | None = None) -> int:
        total = 0
        for queue in range(4):
            ext = {"consumerGroup": "normal", "topic": "normal", "queueId": queue}
            answer = ask((broker or self.master).address, 14, ext)
            total += int(answer.ext().get("offset", "0"))
        return total

    def keys(self, process: Any, code: int) -> list[str]:
        """The keys of a server's configuration, as it shows them."""
        return sorted(self._config(process, code))

    def _config(self, process: Any, code: int) -> dict[str, str]:
        lines = ask(process.address, code).body.decode().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def phase(self, name: str) -> None:
        stdin = self.client.popen.stdin
        assert stdin is not None
        stdin.write(f"{name}\n".encode())
        stdin.flush()

    def close(self) -> None:
        """The end of its input is the end of what the normal client sends."""
        if self.client.popen.stdin is not None:
            self.client.popen.stdin.close()

    # What others rely on

    def check(self) -> None:
        """What belongs to those who mean no harm is where it was."""
        answer = ask(self.master.address, 351, {"topic": "normal"})
        assert answer.code == 0, answer.remark
        assert b'"writeQueueNums":4' in answer.body.replace(b" ", b"")
        answer = ask(self.master.address, 352, {"group": "normal"})
        assert answer.code == 0, answer.remark
        assert b'"retryMaxTimes":7' in answer.body.replace(b" ", b"")
        for code in (21, 43, 45, 201, 26, 28, 907):
            assert ask(self.master.address, code).code == 0, code
        answer = ask(self.namesrv.address, 101, {"namespace": "normal", "key": "k"})
        assert answer.ext().get("value") == "v", answer
        for code in (106, 206, 319):
            assert ask(self.namesrv.address, code).code == 0, code
        answer = ask(self.controller.address, 1004, {"brokerName": "normal"})
        assert answer.code == 0, answer.remark
        self._check_undecided()

    def check_own(self, cases: Iterable[Case]) -> None:
        """No request moves the broker's progress past a transaction that nobody has decided."""
        group, half = generate.OWN_GROUP, generate.OWN_TOPICS[0]
        queue = {"consumerGroup": group, "topic": half, "queueId": "0"}
        questions = Case("progress", 14, queue).frame(1) + Case("end", 30, queue).frame(2)
        with RawPeer(self.master.port) as peer:
            for case in cases:
                peer.send(case.frame(0))
                # Put again in this turn, the half message is behind the end until its end.
                places = [_places(peer, questions) for _ in range(3)]
                assert any(progress < end for progress, end in places), f"{case}: {places}"

    def _check_undecided(self) -> None:
        """The producer of a transaction that nobody has decided is asked about it."""
        body = {"clientID": UNDECIDED, "producerDataSet": [{"groupName": UNDECIDED}]}
        with RawPeer(self.master.port) as peer:
            peer.send(Case("heartbeat", 34, {}, json.dumps(body).encode()).frame(1))
            assert peer.read_answer().code == 0
            try:
                question = peer.read_answer()
            except TimeoutError:
                raise AssertionError("a transaction is not asked about any more") from None
            assert question.code == CHECK_TRANSACTION_STATE

    def wait_saved(self) -> None:
        """A commit from now on is in the file of the offsets."""
        marker = f"marker-{time.monotonic_ns()}"
        ext = {"consumerGroup": marker, "topic": "hostile", "queueId": "0", "commitOffset": "1"}
        assert ask(self.master.address, 15, ext).code == 0
        file = self.master.store / "config" / "consumerOffset.json"
        wait_until(
            lambda: file.exists() and marker.encode() in file.read_bytes(), "offsets are saved"
        )

    def reset(self) -> None:
        """Undo what an operator may do: limits and intervals that were changed to legal values."""
        for broker in (self.master, self.slave):
            text = "".join(f"{key}={value}\n" for key, value in self.first_values.items())
            code = self._say(broker, Case("reset", 25, {}, text.encode()))
            assert code == 0 or not broker.is_alive, code

    def restart(self) -> None:
        """Everything but the slave, with SIGTERM; all tables are read again."""
        self.wait_saved()
        before = self._committed()
        for process in (self.controller, self.namesrv, self.master):
            assert process.stop() == 0, process.tail()
        self.controller = self._add(self.controller.restart())
        self.namesrv = self._add(self.namesrv.restart())
        self.master = self._add(TwinlogBroker.start_as_it_is(self.master))
        for broker in (self.master, self.slave):
            self.namesrv.wait_registered(broker.address)
        wait_until(self._is_in_sync, "the slave is in sync")
        assert self._committed() >= before
        self.check_loaded()

    def promote(self) -> None:
        """The master is killed; its slave becomes the master by the operator's command."""
        wait_until(self._is_in_sync, "the slave is in sync")
        self.master.kill()
        wait_until(lambda: not self._facts()["isLinked"], "the slave has lost its master")
        wait_until(lambda: b'"0"' not in self._registered(), "the name server has lost the master")
        command(
            "ha", "promote", "broker-a", "-n", self.namesrv.address, "--yes",
            "--role", "ASYNC_MASTER",
        ).ok()  # fmt: skip
        self.master = self.slave
        self.check_loaded()

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(ask(self.slave.address, 10003).body)
        return facts

    def _registered(self) -> bytes:
        ext = {"topic": "normal"}
        return ask(self.namesrv.address, 105, {**ext, "acceptStandardJsonOnly": "true"}).body

    def check_loaded(self) -> None:
        for process in (self.controller, self.namesrv, self.master):
            # What the last start said before it was ready.
            start = process.output().rpartition("promoted role=")[2].partition(" ready listen")[0]
            for word in UNREADABLE:
                assert word not in start, f"{process.name}: {start[-4000:]}"
        for file in (self.master.store / "config").glob("*.json"):
            file.read_bytes().decode("utf-8")

    def account(self) -> dict[str, Any]:
        """What the normal client has to say at the end."""
        self.close()
        assert self.client.wait(deadline_s=120) == 0, self.client.tail()
        report: dict[str, Any] = json.loads(self.client.output().splitlines()[-1])
        return report


def _places(peer: RawPeer, questions: bytes) -> tuple[int, int]:
    """Progress and end, as two questions are answered."""
    peer.send(questions)
    found: dict[int, int] = {}
    while len(found) < 2:
        answer = peer.read_answer()
        if answer.is_response and answer.opaque:
            found[answer.opaque] = int(answer.ext().get("offset", "0"))
    return found[1], found[2]


class HeldPulls:
    """A consumer that holds pulls by an expression about every property, of every queue."""

    def __init__(self, port: int) -> None:
        self._peer = RawPeer(port)
        names = [name for name in generate.PROPERTY_NAMES if name[0].isalpha()]
        expression = " OR ".join(f"{name} > 1" for name in names)
        wanted = {
            "topic": "hostile", "subString": expression, "expressionType": "SQL92", "subVersion": 1,
        }  # fmt: skip
        group = {"groupName": "holds", "subscriptionDataSet": [wanted]}
        body = json.dumps({"clientID": "holds", "consumerDataSet": [group]}).encode()
        self._peer.send(Case("heartbeat", 34, {}, body).frame(QUEUES))
        self.woken = 0
        for queue in range(QUEUES):
            self._pull(queue, 0)
        self._thread = threading.Thread(target=self._run, name="held pulls")
        self._thread.start()

    def _pull(self, queue: int, offset: int) -> None:
        ext = {
            "consumerGroup": "holds", "topic": "hostile", "queueId": str(queue),
            "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0",
            "suspendTimeoutMillis": "15000", "subVersion": "1", "expressionType": "SQL92",
        }  # fmt: skip
        self._peer.send(Case("pull", 11, ext).frame(queue))

    def _run(self) -> None:
        with suppress(OSError, ValueError):  # Until it is closed, or the broker is.
            while True:
                answer = self._peer.read_answer()
                if answer.is_response and answer.opaque < QUEUES:
                    self.woken += 1
                    self._pull(answer.opaque, int(answer.ext().get("nextBeginOffset", "0")))

    def close(self) -> None:
        with suppress(OSError):
            self._peer.socket.shutdown(SHUT_RDWR)
        self._thread.join()
        self._peer.close()


class Attack:
    """All attackers of one world, one thread each."""

    def __init__(self, world: World, seed: object, first: int) -> None:
        self.world = world
        all_tables = tables()
        brokers = cases_for(
            "broker", all_tables["broker"], world.values, world.keys(world.master, 26)
        )
        codes = codes_of(all_tables["broker"], world.values)
        own = self.own = list(generate.own_cases(codes, "DefaultCluster", "broker-a"))
        self.attackers: dict[str, list[Attacker]] = {}
        for name, process, cases in (
            ("master", world.master, brokers),
            ("slave", world.slave, brokers),
            ("namesrv", world.namesrv, cases_for(
                "namesrv", all_tables["namesrv"], world.values, world.keys(world.namesrv, 319))),
            ("controller", world.controller, cases_for(
                "controller", all_tables["controller"], world.values,
                world.keys(world.controller, 1010))),
        ):  # fmt: skip
            order = generate.ordered(cases, f"{seed} {name}")
            if cases is brokers:  # What faults lived in is tried each time, and first.
                order = [*own, *order]
            count = THREADS.get(name, 1)
            self.attackers[name] = [
                Attacker(
                    name, process, process.port, order[number::count],
                    seed=f"{seed} {name} {number}", first=first,
                )
                for number in range(count)
            ]  # fmt: skip

    def run(self, seconds: float, names: Iterable[str]) -> None:
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=attacker.run, args=(end,), name=f"attack-{name}")
            for name in names
            for attacker in self.attackers[name]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in names:
            self.attackers[name][0].check([])

    @property
    def findings(self) -> list[str]:
        return [text for each in self.all for text in each.outcome.findings]

    @property
    def all(self) -> list[Attacker]:
        return [attacker for some in self.attackers.values() for attacker in some]

    def report(self, seed: object) -> Report:
        report = Report(seed)
        for name, some in self.attackers.items():
            report.cases[name] = sum(each.outcome.cases for each in some)
            tried = set().union(*(each.outcome.tried for each in some))
            count = sum(len(each.cases) for each in some) // 2
            report.systematic[name] = f"{len(tried)} of {count}"
            report.slowest[name] = max(each.outcome.slowest for each in some)
        report.following = min(each.next for each in self.all)
        report.findings = self.findings
        return report


def attack(
    directory: Path, *, seconds: float, seed: object, first: int = 0,
    say: Callable[[str], object] = print,
) -> Report:  # fmt: skip
    """Attack for about `seconds`, with a restart and a promotion between."""
    with process_group() as group, ExitStack() as cleanup:
        world = World(directory, group)
        cleanup.callback(world.close)
        world.phase("quiet")
        attacks = Attack(world, seed, first)
        everyone = tuple(attacks.attackers)
        world.check_own(attacks.own)

        def step(name: str, share: float, names: Iterable[str]) -> bool:
            world.phase(name)
            held = HeldPulls(world.master.port)
            try:
                attacks.run(seconds * share, names)
            finally:
                held.close()
            world.reset()
            say(attacks.report(seed).text())
            return not attacks.findings

        if step("attacked", 0.5, everyone):
            world.check()
            world.phase("restart")
            world.restart()
            for name in everyone:
                process = getattr(world, name)
                for attacker in attacks.attackers[name]:
                    attacker.replace(process, process.port)
            if step("attacked again", 0.3, everyone):
                world.check()
                world.phase("promotion")
                world.promote()
                world.check()
                if step("attacked after the promotion", 0.2, ("slave", "namesrv", "controller")):
                    world.check()
        report = attacks.report(seed)
        if not report.findings:
            report.client = world.account()
            if report.client["missing_count"]:
                report.findings.append(f"acknowledged and lost: {report.client['missing']}")
        return report
