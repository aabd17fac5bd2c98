"""Generated requests against servers with access control and TLS, in several guises.

Strangers (no account, over TLS), an account with the rights of one topic, and an administrator: the
first get nothing at all, and nobody ends a process, makes a traceback or spoils what others own.
A pair with a secret of its own, a name server and the controller in it; before and after a restart,
and after a promotion. `test_generated.py` has all of it without accounts.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates, make_certificates
from support.command_line import process as command
from support.hostile_attack import Attacker, Guise
from support.hostile_cases import NOT_UPDATED, Case, ordered
from support.hostile_world import BROKER, FIELDS, cases_for, tables
from support.processes import free_port, process_group, wait_until
from support.raw_peer import RawPeer
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker, start_twinlog_namesrv
from twinlog.remoting import codec
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.config_key import live_keys

RULES = """\
globalWhiteRemoteAddresses: []
accounts:
- {accessKey: administrator, secretKey: admin-secret, admin: true}
- accessKey: hostile-owner
  secretKey: owner-secret
  topicPerms: [hostile=PUB|SUB]
  groupPerms: [hostile=SUB]
"""
ADMIN = AclSigner("administrator", "admin-secret")
OWNER = AclSigner("hostile-owner", "owner-secret")


class Secured:
    """The servers, and an administrator's questions to them."""

    def __init__(self, directory: Path, certificates: Certificates, add: Any) -> None:
        self._directory = directory
        self._tls = certificates.server_keys("enforcing")
        self._add = add
        self.trust = ssl.create_default_context(cafile=str(certificates.authority))
        self.trust.check_hostname = False
        self.controller_port = free_port()
        self.namesrv = add(
            start_twinlog_namesrv(
                self._home("namesrv"), aclEnable="true", enableControllerInNamesrv="true",
                twinlogControllerPort=self.controller_port, **self._tls,
                controllerStorePath=directory / "records",
            )
        )  # fmt: skip
        self._dialling = certificates.dialling_keys()
        self._authority = certificates.authority
        self.broker = self._start_broker("broker", brokerRole="SYNC_MASTER")
        self.slave = self._start_broker("slave", brokerRole="SLAVE", brokerId=1)
        self.namesrv.wait_registered(self.slave.address)
        wait_until(self._is_in_sync, "the slave is in sync")

    def _start_broker(self, name: str, **config: object) -> TwinlogBroker:
        home = self._home(name)
        broker: TwinlogBroker = self._add(
            start_twinlog_broker(
                home, namesrv=self.namesrv.address, aclEnable="true", rocketmqHome=home,
                twinlogAccessKey="administrator", twinlogSecretKey="admin-secret",
                **{**BROKER, **self._tls, **self._dialling, "twinlogHASecret": "ha", **config},
            )
        )  # fmt: skip
        return broker

    def _is_in_sync(self) -> bool:
        replicas = json.loads(self.ask(self.broker.port, 907, {}).body)["haConnectionInfo"]
        return any(each["diff"] == 0 for each in replicas)

    def _home(self, name: str) -> Path:
        home = self._directory / name
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(RULES)
        return home

    def ask(self, port: int, code: int, ext: dict[str, Any], body: bytes = b"") -> Request:
        command = RemotingCommand.request(code, {k: str(v) for k, v in ext.items()}, body)
        ADMIN.sign(command)
        with RawPeer(port, self.trust) as peer:
            peer.send(codec.encode_command(command))
            return peer.read_answer()

    def prepare(self) -> None:
        for topic in ("normal", "hostile"):
            ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "perm": 6,
                   "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG"}  # fmt: skip
            assert self.ask(self.broker.port, 17, ext).code == 0
        group = json.dumps({"groupName": "normal", "retryMaxTimes": 7}).encode()
        assert self.ask(self.broker.port, 200, {}, group).code == 0
        entry = {"namespace": "normal", "key": "k", "value": "v"}
        assert self.ask(self.namesrv.port, 100, entry).code == 0
        known = {"clusterName": "normal", "brokerName": "normal", "appliedBrokerId": 1,
                 "registerCheckCode": "127.0.0.1:9;x"}  # fmt: skip
        assert self.ask(self.controller_port, 1013, known).code == 0

    def check(self) -> None:
        """What belongs to those who mean no harm is where it was."""
        answer = self.ask(self.broker.port, 351, {"topic": "normal"})
        assert b'"writeQueueNums":4' in answer.body.replace(b" ", b""), answer
        answer = self.ask(self.broker.port, 352, {"group": "normal"})
        assert b'"retryMaxTimes":7' in answer.body.replace(b" ", b""), answer
        answer = self.ask(self.namesrv.port, 101, {"namespace": "normal", "key": "k"})
        assert answer.ext().get("value") == "v", answer
        assert self.ask(self.controller_port, 1004, {"brokerName": "normal"}).code == 0

    def restart(self) -> None:
        for server in (self.broker, self.namesrv):
            assert server.stop() == 0, server.tail()
        self.namesrv = self._add(self.namesrv.restart())
        self.broker = self._add(TwinlogBroker.start_as_it_is(self.broker))
        for broker in (self.broker, self.slave):
            self.namesrv.wait_registered(broker.address)
        wait_until(self._is_in_sync, "the slave is in sync")

    def promote(self) -> None:
        """The master is killed; an administrator makes its slave the master."""
        self.broker.kill()

        def is_alone() -> bool:
            return not json.loads(self.ask(self.slave.port, 10003, {}).body)["isLinked"]

        wait_until(is_alone, "the slave has lost its master")
        route = {"topic": "normal", "acceptStandardJsonOnly": "true"}
        wait_until(
            lambda: b'"0"' not in self.ask(self.namesrv.port, 105, route).body,
            "the name server has lost the master",
        )
        command(
            "ha", "promote", "broker-a", "-n", self.namesrv.address, "--yes",
            "--role", "ASYNC_MASTER", "--access-key", ADMIN.access_key,
            "--secret-key", ADMIN.secret_key, "--tls", "--tls-ca", self._authority,
        ).ok()  # fmt: skip
        self.broker = self.slave


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    with process_group() as group:

        def add(process: Any) -> Any:
            group.add(process)
            return process

        world = Secured(directory, make_certificates(directory / "certificates"), add)
        world.prepare()
        yield world


def attackers(world: Secured, seed: str) -> list[Attacker]:
    """Strangers everywhere; whoever has an account where it opens the most."""
    all_tables = tables()
    keys = sorted(live_keys(BrokerConfig) - NOT_UPDATED)
    found = []
    for kind, process, port, signer in (
        ("broker", world.broker, world.broker.port, OWNER),
        ("namesrv", world.namesrv, world.namesrv.port, ADMIN),
        ("controller", world.namesrv, world.controller_port, ADMIN),
    ):
        cases = cases_for(kind, all_tables[kind], dict(FIELDS), keys)
        guises = (Guise(world.trust, is_stranger=True), Guise(world.trust, signer))
        for number, guise in enumerate(guises):
            order = ordered(cases, f"{seed} {kind} {number}")
            found.append(
                Attacker(kind, process, port, order, seed=f"{seed} {kind} {number}", first=0,
                         guise=guise)
            )  # fmt: skip
    return found


def run(some: list[Attacker], seconds: float) -> None:
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=each.run, args=(end,)) for each in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.timeout(300)
def test_nobody_gets_further_with_tls_or_an_account(
    world: Secured, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("TWINLOG_HOSTILE_SEED") or os.urandom(4).hex()
    for step, seconds in (("first", 6.0), ("restarted", 2.0), ("promoted", 2.0)):
        some = attackers(world, f"{seed} {step}")
        run(some, seconds)
        counts = {f"{each.name} {number}": each.outcome.cases for number, each in enumerate(some)}
        said = f"{sum(counts.values())} secured cases, seed {seed}, {step}: {counts}"
        record_property("say", said)
        findings = [text for each in some for text in each.outcome.findings]
        assert not findings, (seed, step, findings)
        assert min(counts.values()) > 10, counts
        world.check()
        if step == "first":
            world.restart()
        elif step == "restarted":
            world.promote()
        world.check()


def test_a_stranger_with_a_signed_guise_is_told_apart(world: Secured) -> None:
    """The check can fail: who has an account is answered, a stranger is not."""
    case = Case("metadata", 1005)
    for guise, is_let_in in ((Guise(world.trust), False), (Guise(world.trust, ADMIN), True)):
        with RawPeer(world.controller_port, world.trust) as peer:
            peer.send(guise.frame(case, 1))
            assert (peer.read_answer().code == 0) == is_let_in
