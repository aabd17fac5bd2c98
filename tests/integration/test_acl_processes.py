"""Access control as our client and a slave meet it: right, wrong and missing credentials."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import ProcessGroup, process_group, wait_until
from support.properties import write_properties
from support.twinlog_servers import (
    TWINLOG,
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin import Admin, brokers, topics
from twinlog.client import Message, MessageQueue, Producer, PullConsumer, PushConsumer
from twinlog.client.errors import AccessDeniedError

RULES = """\
globalWhiteRemoteAddresses: []
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
- accessKey: writeonly
  secretKey: 87654321
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB
- accessKey: readonly
  secretKey: 56785678
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=SUB
  groupPerms:
  - readers=SUB
"""
SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000}
ADMINISTRATOR = {"access_key": "administrator", "secret_key": "12345678"}
WRITER = {"access_key": "writeonly", "secret_key": "87654321"}
READER = {"access_key": "readonly", "secret_key": "56785678"}
WRONG_SECRET = {"access_key": "administrator", "secret_key": "00000000"}
UNKNOWN = {"access_key": "nobody-here", "secret_key": "12345678"}
REFUSED = [
    pytest.param({}, "No accessKey", id="missing"),
    pytest.param(WRONG_SECRET, "Check signature failed", id="wrong secret"),
    pytest.param(UNKNOWN, "No acl config for nobody-here", id="unknown account"),
]
Credentials = dict[str, Any]


class Guarded:
    """A name server and a master with access control, and whatever a test adds."""

    def __init__(self, directory: Path, group: ProcessGroup) -> None:
        self.directory = directory
        self._group = group
        self.namesrv: TwinlogNamesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(self.namesrv)
        self.master = self.broker("master")

    def broker(self, name: str, **config: Any) -> TwinlogBroker:
        home = self.directory / name
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(RULES)
        broker = start_twinlog_broker(
            home, namesrv=self.namesrv.address, aclEnable=True, rocketmqHome=home,
            **{**SMALL, **config},
        )  # fmt: skip
        self._group.add(broker)
        self.namesrv.wait_for_text(f"address={broker.address}")
        return broker

    def restart(self, broker: TwinlogBroker, **changes: Any) -> TwinlogBroker:
        broker.stop()
        again = broker.restart(**changes)
        self._group.add(again)
        return again

    @property
    def address(self) -> str:
        return self.namesrv.address

    async def create_topic(self, name: str) -> None:
        async with Admin(self.address, **ADMINISTRATOR) as admin:
            made = await topics.create_topic(admin, name, read_queues=1, write_queues=1)
            made.all_or_raise()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with process_group() as group:
        yield Guarded(tmp_path_factory.mktemp("guarded"), group)


ORDERS = MessageQueue("orders", "broker-a", 0)


async def test_accounts_may_do_what_their_rules_say(guarded: Guarded) -> None:
    await guarded.create_topic("orders")
    async with Producer("pg", name_server=guarded.address, **WRITER) as producer:
        receipt = await producer.send(Message("orders", b"one"))
        await guarded.create_topic("orders-else")
        with pytest.raises(AccessDeniedError, match=r"orders-else.*needs PUB"):
            await producer.send(Message("orders-else", b"x"))
    async with PullConsumer("readers", name_server=guarded.address, **READER) as consumer:
        result = await consumer.pull(receipt.queue, receipt.queue_offset)
        assert [message.body for message in result.messages] == [b"one"]
    async with PullConsumer("strangers", name_server=guarded.address, **READER) as consumer:
        with pytest.raises(AccessDeniedError, match="group:strangers"):
            await consumer.pull(receipt.queue, receipt.queue_offset)
    async with Admin(guarded.address, **WRITER) as admin:
        with pytest.raises(AccessDeniedError, match="Need admin permission"):
            (await topics.create_topic(admin, "third")).all_or_raise()


@pytest.mark.parametrize(("credentials", "reason"), REFUSED)
async def test_sends_are_refused_at_once_with_the_reason(
    guarded: Guarded, credentials: Credentials, reason: str
) -> None:
    await guarded.create_topic("orders")
    async with Producer("pg", name_server=guarded.address, **credentials) as producer:
        with pytest.raises(AccessDeniedError, match=reason) as caught:
            await producer.send(Message("orders", b"x"))
    assert not caught.value.retriable
    assert "secret_key" in str(caught.value)


@pytest.mark.parametrize(("credentials", "reason"), REFUSED)
async def test_pulls_and_administration_are_refused_with_the_reason(
    guarded: Guarded, credentials: Credentials, reason: str
) -> None:
    await guarded.create_topic("orders")
    async with PullConsumer("readers", name_server=guarded.address, **credentials) as consumer:
        with pytest.raises(AccessDeniedError, match=reason):
            await consumer.pull(ORDERS, 0)
    async with Admin(guarded.address, **credentials) as admin:
        with pytest.raises(AccessDeniedError, match=reason):
            await brokers.broker_config(admin, guarded.master.address)


@pytest.mark.parametrize(("credentials", "reason"), REFUSED)
async def test_a_consumer_whose_heartbeat_is_refused_does_not_wait_in_silence(
    guarded: Guarded, credentials: Credentials, reason: str
) -> None:
    await guarded.create_topic("orders")

    async def handler(message: object) -> None:
        raise AssertionError("nothing may be delivered")

    async with PushConsumer("readers", name_server=guarded.address, **credentials) as consumer:
        with pytest.raises(AccessDeniedError, match=reason):
            await consumer.subscribe("orders", "*", handler)


async def test_a_slave_asks_its_master_with_the_brokers_account(guarded: Guarded) -> None:
    await guarded.create_topic("before-the-slave")
    slave = guarded.broker(
        "slave", brokerRole="SLAVE", brokerId=1,
        haMasterAddress=f"127.0.0.1:{guarded.master.ha_port}",
    )  # fmt: skip
    slave.wait_for_text("master refuses our account")
    slave.wait_for_text("slave sync failed table=topics")
    assert "before-the-slave" not in known_topics(slave)
    async with Admin(guarded.address, **ADMINISTRATOR) as admin:
        status = await brokers.broker_runtime(admin, slave.address)
    assert "twinlogAccessKey" in status["metadataProblem account"]

    account = {"twinlogAccessKey": "administrator", "twinlogSecretKey": "12345678"}
    # In this dialect topics come by the slave's requests only, never through the log.
    slave = guarded.restart(slave, twinlogHADialect="classic", **account)
    wait_until(lambda: "before-the-slave" in known_topics(slave), "the slave has the topic")

    slave = guarded.restart(slave, twinlogHADialect="auto")
    slave.wait_for_text("master is twinlog")
    async with Admin(guarded.address, **ADMINISTRATOR) as admin:
        shown = await brokers.broker_config(admin, slave.address)
    assert shown["twinlogAccessKey"] == "administrator"
    assert "twinlogSecretKey" not in shown
    assert "12345678" not in slave.output()


def known_topics(broker: TwinlogBroker) -> set[str]:
    file = broker.store / "config" / "topics.json"
    return set(json.loads(file.read_text())["topicConfigTable"]) if file.exists() else set()


def print_configuration(tmp_path: Path, **config: object) -> subprocess.CompletedProcess[str]:
    file = write_properties(tmp_path / "broker.conf", config)
    return subprocess.run(
        [str(TWINLOG), "broker", "-c", str(file), "-p"], capture_output=True, text=True, timeout=60
    )


def test_the_secret_of_the_account_is_not_printed(tmp_path: Path) -> None:
    done = print_configuration(tmp_path, twinlogAccessKey="keeper", twinlogSecretKey="hush-hush")
    assert done.returncode == 0, done.stderr
    assert "twinlogAccessKey=keeper" in done.stdout
    assert "hush-hush" not in done.stdout + done.stderr


def test_half_an_account_refuses_the_start(tmp_path: Path) -> None:
    done = print_configuration(tmp_path, twinlogAccessKey="keeper")
    assert done.returncode == 2
    assert "twinlogSecretKey" in done.stderr
