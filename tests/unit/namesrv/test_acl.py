"""Access control of the name server on every request code: a new code cannot be forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from twinlog.namesrv.server import Namesrv, build_namesrv
from twinlog.remoting.acl import AclConfigError
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config import NamesrvConfig

RULES: dict[str, Any] = {
    "globalWhiteRemoteAddresses": [],
    "accounts": [
        {"accessKey": "admin-key", "secretKey": "admin-secret", "admin": True},
        {"accessKey": "plain-key", "secretKey": "plain-secret"},
    ],
}
# Everything that any of the codes reads, so that no request is refused for want of a field.
EXT = {
    "namespace": "n", "key": "k", "value": "v", "brokerName": "b", "brokerAddr": "10.0.0.1:1",
    "clusterName": "c", "haServerAddr": "10.0.0.1:2", "brokerId": "0", "compressed": "false",
    "bodyCrc32": "0", "topic": "T", "cluster": "c",
}  # fmt: skip
# Codes that only show something: an account is enough.
FOR_EVERY_ACCOUNT = {
    RequestCode.GET_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.TWINLOG_EVENTS,
    RequestCode.TWINLOG_INFO,
}
# Codes that show or change how the server is, or who is in its routes.
ADMIN_CODES = {
    RequestCode.PUT_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.QUERY_DATA_VERSION,  # It keeps a broker alive.
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
}
DENIED = "AclException"
ADMIN = AclSigner("admin-key", "admin-secret")
PLAIN = AclSigner("plain-key", "plain-secret")
WRONG = AclSigner("plain-key", "wrong-secret")
UNKNOWN = AclSigner("unknown-key", "plain-secret")


def rule_file(directory: Path) -> Path:
    file = directory / "conf" / "plain_acl.yml"
    file.parent.mkdir(exist_ok=True)
    return file


def make(directory: Path) -> Namesrv:
    return build_namesrv(
        NamesrvConfig(
            listen_port=0,
            kv_config_path=str(directory / "kvConfig.json"),
            config_store_path=str(directory / "namesrv.properties"),
            acl_enable=True,
            rocketmq_home=str(directory),
        )
    )


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[Namesrv]:
    rule_file(tmp_path).write_text(yaml.safe_dump(RULES))
    namesrv = make(tmp_path)
    await namesrv.start()
    yield namesrv
    await namesrv.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


async def ask(
    client: RemotingClient, namesrv: Namesrv, code: int, signer: AclSigner | None
) -> tuple[int, str]:
    command = RemotingCommand.request(code, EXT, b"{}")
    if signer is not None:
        signer.sign(command)
    answer = await client.invoke(namesrv.address, command, 30_000)
    return answer.code, answer.remark or ""


async def test_every_code_has_its_rule(namesrv: Namesrv) -> None:
    assert namesrv.processor.codes == ADMIN_CODES | FOR_EVERY_ACCOUNT
    assert not ADMIN_CODES & FOR_EVERY_ACCOUNT


@pytest.mark.parametrize(
    ("signer", "words"),
    [
        pytest.param(None, "No accessKey", id="no credentials"),
        pytest.param(WRONG, "Check signature failed", id="wrong key"),
        pytest.param(UNKNOWN, "No acl config", id="unknown account"),
    ],
)
async def test_no_credentials_and_wrong_ones_are_denied_for_every_code(
    namesrv: Namesrv, client: RemotingClient, signer: AclSigner | None, words: str
) -> None:
    for code in namesrv.processor.codes:
        answer, remark = await ask(client, namesrv, code, signer)
        assert answer == ResponseCode.SYSTEM_ERROR, code
        assert DENIED in remark, code
        assert words in remark, code
    assert namesrv.routes.all_topics().topic_list == []


async def test_a_plain_account_may_look_and_an_admin_may_change(
    namesrv: Namesrv, client: RemotingClient
) -> None:
    for code in FOR_EVERY_ACCOUNT:
        assert DENIED not in (await ask(client, namesrv, code, PLAIN))[1], code
    for code in ADMIN_CODES:
        answer, remark = await ask(client, namesrv, code, PLAIN)
        assert answer == ResponseCode.SYSTEM_ERROR, code
        assert "Need admin permission" in remark, code
    for code in namesrv.processor.codes:
        assert DENIED not in (await ask(client, namesrv, code, ADMIN))[1], code


async def test_a_signature_covers_fields_and_body(namesrv: Namesrv, client: RemotingClient) -> None:
    for field, body in (("topic", b"{}"), ("", b"{ }")):
        command = RemotingCommand.request(RequestCode.REGISTER_BROKER, EXT, b"{}")
        ADMIN.sign(command)
        assert command.ext_fields is not None
        if field:
            command.ext_fields[field] += "x"
        command.body = body
        answer = await client.invoke(namesrv.address, command, 30_000)
        assert "Check signature failed" in (answer.remark or "")


async def test_rules_are_reloaded_and_a_damaged_file_changes_nothing(
    namesrv: Namesrv, client: RemotingClient, tmp_path: Path
) -> None:
    assert namesrv.guard is not None
    files, code = namesrv.guard.files, RequestCode.GET_BROKER_CLUSTER_INFO
    rule_file(tmp_path).write_text("accounts: {damaged\n" + " " * 4096)
    assert not files.reload_if_changed()
    assert files.last_problem is not None
    assert (await ask(client, namesrv, code, PLAIN))[0] == 0
    rule_file(tmp_path).write_text(yaml.safe_dump({**RULES, "accounts": RULES["accounts"][:1]}))
    assert files.reload_if_changed()
    assert "No acl config" in (await ask(client, namesrv, code, PLAIN))[1]


async def test_white_addresses_need_no_account(
    namesrv: Namesrv, client: RemotingClient, tmp_path: Path
) -> None:
    assert namesrv.guard is not None
    white = {**RULES, "globalWhiteRemoteAddresses": ["127.0.0.*"]}
    rule_file(tmp_path).write_text(yaml.safe_dump(white))
    namesrv.guard.files.reload_if_changed()
    for code in namesrv.processor.codes:
        assert DENIED not in (await ask(client, namesrv, code, None))[1], code


@pytest.mark.parametrize("content", [None, "accounts: {damaged", "accounts: [{accessKey: a}]"])
async def test_without_usable_rules_it_does_not_start(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        rule_file(tmp_path).write_text(content)
    with pytest.raises(AclConfigError, match=r"plain_acl\.yml"):
        await make(tmp_path).start()
