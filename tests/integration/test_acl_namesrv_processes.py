"""A cluster whose name server has access control too: brokers, client and commands sign."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import MQADMIN, Result
from support.processes import process_group
from support.twinlog_servers import (
    TWINLOG,
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin import Admin, topics
from twinlog.client import Message, Producer, PullConsumer
from twinlog.client.errors import AccessDeniedError

RULES = """\
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
- accessKey: ordinary
  secretKey: 87654321
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
ADMINISTRATOR = {"access_key": "administrator", "secret_key": "12345678"}
ORDINARY = {"access_key": "ordinary", "secret_key": "87654321"}
SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000}
REFUSED = [
    pytest.param({}, "No accessKey", id="missing"),
    pytest.param({**ORDINARY, "secret_key": "00000000"}, "Check signature failed", id="wrong"),
]
Servers = tuple[TwinlogNamesrv, TwinlogBroker, TwinlogBroker]


def with_rules(home: Path) -> Path:
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(RULES)
    return home


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A guarded name server, a broker with an account for it and one without."""
    directory = tmp_path_factory.mktemp("guarded")
    with process_group() as group:
        namesrv = start_twinlog_namesrv(with_rules(directory / "namesrv"), aclEnable=True)
        group.add(namesrv)
        home = with_rules(directory / "broker")
        broker = start_twinlog_broker(
            home, namesrv=namesrv.address, aclEnable=True, rocketmqHome=home,
            twinlogAccessKey="administrator", twinlogSecretKey="12345678", **SMALL,
        )  # fmt: skip
        group.add(broker)
        stranger = start_twinlog_broker(
            directory / "stranger", namesrv=namesrv.address, brokerName="stranger", **SMALL
        )
        group.add(stranger)
        namesrv.wait_for_text(f"address={broker.address}")
        yield namesrv, broker, stranger


def run(program: Path, *arguments: str, credentials: dict[str, str]) -> Result:
    environment = {key: value for key, value in os.environ.items() if "TWINLOG" not in key}
    if credentials:
        environment["TWINLOG_ACCESS_KEY"] = credentials["access_key"]
        environment["TWINLOG_SECRET_KEY"] = credentials["secret_key"]
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    return Result(done.returncode, done.stdout, done.stderr)


async def test_clients_with_an_account_send_and_read(servers: Servers) -> None:
    namesrv, _, _ = servers
    async with Admin(namesrv.address, **ADMINISTRATOR) as admin:
        made = await topics.create_topic(admin, "orders", read_queues=1, write_queues=1)
        made.all_or_raise()
    async with Producer("pg", name_server=namesrv.address, **ORDINARY) as producer:
        receipt = await producer.send(Message("orders", b"one"))
    async with PullConsumer("readers", name_server=namesrv.address, **ORDINARY) as consumer:
        result = await consumer.pull(receipt.queue, receipt.queue_offset)
        assert [message.body for message in result.messages] == [b"one"]


@pytest.mark.parametrize(("credentials", "reason"), REFUSED)
async def test_clients_without_a_right_one_learn_why(
    servers: Servers, credentials: dict[str, str], reason: str
) -> None:
    namesrv, _, _ = servers
    async with Producer("pg", name_server=namesrv.address, **credentials) as producer:
        with pytest.raises(AccessDeniedError, match=reason):
            await producer.send(Message("orders", b"x"))


@pytest.mark.parametrize(("credentials", "reason"), REFUSED)
@pytest.mark.parametrize("program", [TWINLOG, MQADMIN], ids=["twinlog", "mqadmin"])
def test_commands_sign_what_they_ask_a_name_server(
    servers: Servers, program: Path, credentials: dict[str, str], reason: str
) -> None:
    namesrv, broker, _ = servers
    verb = ["topic", "list"] if program == TWINLOG else ["clusterList"]
    arguments = [*verb, "-n", namesrv.address]
    shown = run(program, *arguments, credentials=ORDINARY).ok().out
    if program == MQADMIN:
        assert broker.address in shown
    refused = run(program, *arguments, credentials=credentials)
    assert refused.code == 1
    assert reason in refused.err
    assert "Traceback" not in refused.err


def test_a_broker_without_an_account_is_not_in_the_route_and_says_so(servers: Servers) -> None:
    namesrv, _, stranger = servers
    line = stranger.wait_for_text("name server refuses our account")
    assert "twinlogAccessKey" in stranger.output(), line
    assert f"address={stranger.address}" not in namesrv.output()


@pytest.mark.parametrize("content", [None, "accounts: {damaged"])
def test_a_name_server_without_usable_rules_does_not_start(
    tmp_path: Path, content: str | None
) -> None:
    (tmp_path / "conf").mkdir()
    if content is not None:
        (tmp_path / "conf" / "plain_acl.yml").write_text(content)
    file = tmp_path / "namesrv.conf"
    file.write_text(f"aclEnable=true\nrocketmqHome={tmp_path}\nlistenPort=0\n")
    done = run(TWINLOG, "namesrv", "-c", str(file), credentials={})
    assert done.code == 1
    assert "plain_acl.yml" in done.err
    assert "Traceback" not in done.err
