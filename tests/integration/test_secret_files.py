"""Files with secrets stay their owner's alone, whoever of ours writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from support.processes import process_group
from support.twinlog_servers import start_twinlog_broker
from twinlog.cli.admin import contexts
from twinlog.cli.local_cluster import ClusterPlan, prepare_cluster
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.signing import AclSigner
from twinlog.runtime.clock import SystemClock

RULES = """\
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [0o600, 0o644])
async def test_what_a_broker_rewrites(tmp_path: Path, before: int) -> None:
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    rules.write_text(RULES)
    rules.chmod(before)
    with process_group() as group:
        broker = start_twinlog_broker(
            tmp_path, aclEnable=True, rocketmqHome=tmp_path, twinlogHASecret="top-secret",
            mappedFileSizeCommitLog=1 << 20,
        )  # fmt: skip
        group.add(broker)
        config = tmp_path / "broker.conf"
        config.chmod(before)
        client = RemotingClient(clock=SystemClock(), hooks=[AclSigner("administrator", "12345678")])
        account = {"accessKey": "newaccount", "secretKey": "newsecret", "admin": "false"}
        for code, header, body in (
            (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, account, b""),
            (RequestCode.UPDATE_BROKER_CONFIG, None, b"fileReservedTime=48"),
        ):
            command = RemotingCommand.request(code, header, body)
            answer = await client.invoke(broker.address, command, 30_000)
            assert answer.code == 0, answer.remark
        await client.close()
    text = rules.read_text()
    assert "newsecret" in text
    for path in (*tmp_path.glob("broker.conf*"), *rules.parent.iterdir()):
        assert mode_of(path) == 0o600, path
    assert "top-secret" in (tmp_path / "broker.conf.bak").read_text()
    said = "acl file with secrets is open to others" in (tmp_path / "broker.log").read_text()
    assert said == (before != 0o600)


def test_contexts_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINLOG_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    directory = tmp_path / "twinlog"
    directory.mkdir(mode=0o755)
    (directory / "contexts.tmp").write_text("left by a crash")
    (directory / "contexts.tmp").chmod(0o666)
    old = os.umask(0o000)
    try:
        contexts.save(contexts.Contexts())
    finally:
        os.umask(old)
    assert mode_of(directory) == 0o700
    assert mode_of(directory / "contexts.json") == 0o600


def test_a_local_cluster(tmp_path: Path) -> None:
    plan = ClusterPlan(directory=tmp_path / "up", overrides={"twinlogHASecret": "top-secret"})
    old = os.umask(0o000)
    try:
        cluster = prepare_cluster(plan)
    finally:
        os.umask(old)
    assert mode_of(tmp_path / "up") == 0o700
    for node in cluster.nodes:
        assert mode_of(Path(node.directory)) == 0o700
        assert mode_of(node.config_path) == 0o600
