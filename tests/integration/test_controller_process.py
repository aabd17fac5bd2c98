"""A controller as a process: RocketMQ 5's requests, SIGKILL, damaged and shared state."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.processes import ProcessGroup, free_port, process_group
from support.twinlog_servers import (
    TwinlogController,
    http_address,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import SystemClock


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with process_group() as processes:
        yield processes


@pytest.fixture
def controller(tmp_path: Path, group: ProcessGroup) -> TwinlogController:
    server = start_twinlog_controller(tmp_path)
    group.add(server)
    return server


class Peer:
    """Speaks to a controller as a broker does."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address

    async def ask(self, code: int, body: Any = None, **fields: object) -> Request:
        data = b"" if body is None else json.dumps(body).encode()
        command = RemotingCommand.request(code, body=data)
        command.ext_fields = {key: str(value) for key, value in fields.items()}
        return await self._client.invoke(self.address, command, 5_000)

    async def apply(self, n: int, uid: str | None = None) -> Request:
        return await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID, clusterName="c", brokerName="g",
            appliedBrokerId=n, registerCheckCode=f"127.0.0.1:{n};1", twinlogUid=uid or f"u{n}",
        )  # fmt: skip

    async def beat(self, n: int, **fields: object) -> Request:
        given = {
            "clusterName": "c", "brokerAddr": f"127.0.0.1:{n}", "epoch": 0, "maxOffset": 0,
            "twinlogIncarnation": f"i{n}", **fields,
        }  # fmt: skip
        return await self.ask(RequestCode.BROKER_HEARTBEAT, brokerName="g", brokerId=n, **given)

    async def beat_until_master(self, n: int, master: int, **fields: object) -> Request:
        """An election is written before anybody hears of it."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.beat(n, **fields)
                if json.loads(answer.body)["masterBrokerId"] == master:
                    return answer
                await asyncio.sleep(0.02)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


async def test_a_group_is_born_grows_and_is_shown(
    controller: TwinlogController, client: RemotingClient
) -> None:
    peer = Peer(client, controller.address)
    code = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
    answer = await peer.ask(code, clusterName="c", brokerName="g")
    assert answer.ext()["nextBrokerId"] == "1"
    assert (await peer.apply(1)).code == 0
    assert (await peer.apply(2)).code == 0
    assert (await peer.apply(1, "other")).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    answer = await peer.beat_until_master(1, 1)
    record = json.loads(answer.body)
    assert (record["masterBrokerId"], record["masterEpoch"]) == (1, 1)
    assert int(answer.ext()["twinlogLeaseMs"]) > 0
    await peer.beat(2, epoch=1)
    wanted = {"syncStateSet": [1, 2], "syncStateSetEpoch": record["syncStateSetEpoch"]}
    fields = {
        "brokerName": "g", "masterBrokerId": 1, "masterEpoch": 1,
        "twinlogIncarnation": "i1", "twinlogIncarnations": "2=i2",
    }  # fmt: skip
    answer = await peer.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, wanted, **fields)
    assert answer.code == 0, answer.remark
    assert int(answer.ext()["newSyncStateSetEpoch"]) == record["syncStateSetEpoch"] + 1
    again = await peer.ask(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, wanted, **fields)
    assert again.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    answer = await peer.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, ["g", "unknown"])
    shown = json.loads(answer.body)["replicasInfoTable"]
    assert [replica["brokerId"] for replica in shown["g"]["inSyncReplicas"]] == [1, 2]
    answer = await peer.ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, brokerName="g")
    assert answer.ext()["masterAddress"] == "127.0.0.1:1"
    answer = await peer.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext()["isLeader"] == "true"
    assert answer.ext()["controllerLeaderAddress"] == controller.address


async def test_what_was_answered_survives_sigkill(
    controller: TwinlogController, client: RemotingClient, group: ProcessGroup
) -> None:
    peer = Peer(client, controller.address)
    await peer.apply(1)
    before = json.loads((await peer.beat_until_master(1, 1)).body)
    client.close_connection(controller.address, "it is killed now")
    controller.kill()
    group.add(controller.restart())
    answer = await peer.beat(1, epoch=1, twinlogKnownEpoch=1)
    after = json.loads(answer.body)
    assert after["masterEpoch"] == before["masterEpoch"] == 1
    events = (controller.directory / "controller" / "events").read_text().splitlines()
    assert [json.loads(line)["event"] for line in events][:4] == [
        "controller-started",
        "leads",
        "registered",
        "elected",
    ]


async def test_a_closed_connection_elects_another_member(
    controller: TwinlogController, client: RemotingClient
) -> None:
    peer = Peer(client, controller.address)
    other = RemotingClient(clock=SystemClock())
    second = Peer(other, controller.address)
    try:
        await peer.apply(1)
        await second.apply(2)
        record = json.loads((await peer.beat_until_master(1, 1)).body)
        await second.beat(2, epoch=1)
        wanted = {"syncStateSet": [1, 2], "syncStateSetEpoch": record["syncStateSetEpoch"]}
        answer = await peer.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, wanted, brokerName="g", masterBrokerId=1,
            masterEpoch=1, twinlogIncarnation="i1", twinlogIncarnations="2=i2",
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        await client.close()
        answer = await second.beat_until_master(2, 2, epoch=1, twinlogKnownEpoch=1)
        assert json.loads(answer.body)["masterEpoch"] == 2
    finally:
        await other.close()


async def test_a_controller_inside_a_name_server_has_a_port_of_its_own(
    tmp_path: Path, client: RemotingClient, group: ProcessGroup
) -> None:
    """904 to a name server carries id 0 for a master, 904 to a controller the controller's id."""
    port = free_port()
    namesrv = start_twinlog_namesrv(
        tmp_path, enableControllerInNamesrv="true", controllerStorePath=tmp_path / "records",
        controllerDLegerPeers=f"n0-127.0.0.1:{port}",
    )  # fmt: skip
    group.add(namesrv)
    assert f"controller=127.0.0.1:{port}" in namesrv.output()
    peer = Peer(client, f"127.0.0.1:{port}")
    assert (await peer.apply(1)).code == 0
    await peer.beat_until_master(1, 1)
    answer = await peer.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext()["peers"] == f"n0-127.0.0.1:{port}"
    at_namesrv = Peer(client, namesrv.address)
    answer = await at_namesrv.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (await at_namesrv.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
    second = start_twinlog_controller(
        tmp_path / "second", wait=False, controllerStorePath=tmp_path / "records"
    )
    group.add(second)
    assert second.wait() == 1
    assert namesrv.stop() == 0


def test_two_controllers_do_not_share_their_state(
    controller: TwinlogController, group: ProcessGroup, tmp_path: Path
) -> None:
    store = controller.config["controllerStorePath"]
    second = start_twinlog_controller(tmp_path / "second", wait=False, controllerStorePath=store)
    group.add(second)
    assert second.wait() == 1
    assert "belongs to a running controller" in second.output()


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, group: ProcessGroup) -> None:
    directory = tmp_path / "controller"
    directory.mkdir()
    (directory / "groups.json").write_text('{"format": 1, "groups": [{"clus')
    server = start_twinlog_controller(tmp_path, wait=False)
    group.add(server)
    assert server.wait() == 1
    assert "restore it from its .bak" in server.output()


@pytest.mark.parametrize(
    ("key", "value"),
    [("twinlogLeaseMs", "5"), ("twinlogControllerEtcd", "127.0.0.1:1")],
)
def test_bad_configuration_ends_with_2(
    tmp_path: Path, group: ProcessGroup, key: str, value: str
) -> None:
    server = start_twinlog_controller(tmp_path, wait=False, **{key: value})
    group.add(server)
    assert server.wait() == 2
    assert key in server.output()


async def test_garbage_is_answered_and_changes_nothing(
    controller: TwinlogController, client: RemotingClient
) -> None:
    peer = Peer(client, controller.address)
    await peer.apply(1)
    code = RequestCode
    assert (await peer.apply(-1)).code != 0
    assert (await peer.ask(code.BROKER_HEARTBEAT, brokerName="g")).code != 0
    assert (await peer.beat(1, twinlogIncarnation="x" * 10, twinlogLink="²")).code != 0
    fields = {"brokerName": "g", "masterBrokerId": 1, "masterEpoch": 0}
    for body in (None, [], {"syncStateSet": "x"}, {"syncStateSet": [-1]}):
        answer = await peer.ask(code.CONTROLLER_ALTER_SYNC_STATE_SET, body, **fields)
        assert answer.code != 0
    for ids in ("", "x", "1;²", "9" * 5000):
        answer = await peer.ask(
            code.CLEAN_BROKER_DATA, brokerName="g", brokerControllerIdsToClean=ids
        )
        assert answer.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert (await peer.ask(4711)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "Traceback" not in controller.output()
    assert (await peer.beat(1)).code == 0


# Bad input: a clear line, and no wrong master


async def _pair(peer: Peer) -> dict[str, Any]:
    """Replicas 1 and 2 of group g, 1 the master, both in sync; the record."""
    await peer.apply(1)
    await peer.apply(2)
    record = json.loads((await peer.beat_until_master(1, 1)).body)
    await peer.beat(2, epoch=1, twinlogKnownEpoch=1)
    wanted = {"syncStateSet": [1, 2], "syncStateSetEpoch": record["syncStateSetEpoch"]}
    answer = await peer.ask(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, wanted, brokerName="g", masterBrokerId=1,
        masterEpoch=1, twinlogIncarnation="i1", twinlogIncarnations="2=i2",
    )  # fmt: skip
    assert answer.code == 0, answer.remark
    return dict(json.loads((await peer.beat(1, epoch=1, twinlogKnownEpoch=1)).body))


async def test_a_broker_of_another_cluster_is_no_replica(
    controller: TwinlogController, client: RemotingClient
) -> None:
    peer = Peer(client, controller.address)
    record = await _pair(peer)
    answer = await peer.ask(
        RequestCode.CONTROLLER_APPLY_BROKER_ID, clusterName="other", brokerName="g",
        appliedBrokerId=3, registerCheckCode="127.0.0.1:3;1",
    )  # fmt: skip
    assert "g belongs to cluster c" in (answer.remark or "")
    answer = await peer.beat(2, clusterName="other", epoch=9, twinlogKnownEpoch=9)
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "g belongs to cluster c, not to other" in (answer.remark or "")
    assert json.loads((await peer.beat(1, epoch=1, twinlogKnownEpoch=1)).body) == record
    assert "refused group=g replica=2" in controller.output()


async def test_two_processes_with_one_id(
    controller: TwinlogController, client: RemotingClient
) -> None:
    """Somebody copied a store with its identity and started it elsewhere."""
    peer = Peer(client, controller.address)
    record = await _pair(peer)
    copy = RemotingClient(clock=SystemClock())
    try:
        answer = await Peer(copy, controller.address).beat(
            1, brokerAddr="127.0.0.1:99", twinlogIncarnation="copy", epoch=1, maxOffset=10**12
        )
        assert "id 1 of g is taken: 127.0.0.1:1 has it and is alive" in (answer.remark or "")
    finally:
        await copy.close()
    assert json.loads((await peer.beat(1, epoch=1, twinlogKnownEpoch=1)).body) == record


async def test_an_old_backup_of_the_state_elects_nobody(
    controller: TwinlogController, client: RemotingClient, group: ProcessGroup
) -> None:
    peer = Peer(client, controller.address)
    await _pair(peer)
    file = controller.directory / "controller" / "groups.json"
    backup = file.read_bytes()
    client.close_connection(controller.address, "the controller stops")
    assert controller.stop() == 0
    file.write_bytes(backup)
    group.add(controller.restart())
    # Replica 2 was elected since, and replica 1 has restarted: by the backup it could win.
    await peer.beat(1, twinlogIncarnation="later", epoch=1, twinlogKnownEpoch=1)
    answer = await peer.beat(2, epoch=5, twinlogKnownEpoch=5)
    assert "it is older than the group, adopt the group again" in answer.ext()["twinlogFrozen"]
    for _ in range(8):
        answer = await peer.beat(1, twinlogIncarnation="later", epoch=1, twinlogKnownEpoch=1)
        record = json.loads(answer.body)
        assert (record["masterEpoch"], record["masterIncarnation"]) == (1, "i1")
        assert answer.ext()["twinlogLeaseMs"] == "0"
        await asyncio.sleep(0.4)  # Longer in all than any silence that would be acted upon.


async def test_old_alters_are_refused_however_often_they_come(
    controller: TwinlogController, client: RemotingClient
) -> None:
    peer = Peer(client, controller.address)
    record = await _pair(peer)
    code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
    for set_epoch in range(record["syncStateSetEpoch"]):
        answer = await peer.ask(
            code, {"syncStateSet": [1], "syncStateSetEpoch": set_epoch}, brokerName="g",
            masterBrokerId=1, masterEpoch=1, twinlogIncarnation="i1",
        )  # fmt: skip
        assert answer.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    huge = {"syncStateSet": list(range(9_000)), "syncStateSetEpoch": record["syncStateSetEpoch"]}
    answer = await peer.ask(
        code, huge, brokerName="g", masterBrokerId=1, masterEpoch=1, twinlogIncarnation="i1"
    )
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REPLICAS
    assert len(answer.remark or "") < 200
    assert json.loads((await peer.beat(1, epoch=1, twinlogKnownEpoch=1)).body) == record


def test_a_broker_follows_nobody_while_two_controllers_lead(
    controller: TwinlogController, group: ProcessGroup, tmp_path: Path
) -> None:
    """Two files with records of their own: each controller would elect a master."""
    second = start_twinlog_controller(tmp_path / "second")
    group.add(second)
    broker = start_twinlog_broker(
        tmp_path / "broker", wait=False, brokerId=-1, brokerRole="SYNC_MASTER",
        enableControllerMode="true", controllerAddr=f"{controller.address};{second.address}",
        mappedFileSizeCommitLog=1 << 20,
    )  # fmt: skip
    group.add(broker)
    both = " and ".join(sorted([controller.address, second.address]))
    broker.wait_for_text(f"controllers {both} both lead")
    for server in (controller, second):
        assert not (server.directory / "controller" / "groups.json").exists()


def lose_the_directory(home: Path) -> Path:
    """As when a file system was unmounted: lock, record and journal are gone."""
    return home.rename(home.with_name("lost"))


def health_of(controller: TwinlogController) -> str:
    """What its port for health says."""
    url = f"http://{http_address(controller)}/health/ready"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def refuse_writes(home: Path) -> Path:
    """As a full disk does, but for root too: the place of the new file is taken."""
    obstacle = home / "groups.json.tmp"
    obstacle.mkdir()
    return obstacle


@pytest.mark.parametrize("spoil", [lose_the_directory, refuse_writes])
async def test_a_controller_that_cannot_write_waits_and_serves(
    controller: TwinlogController, client: RemotingClient, spoil: Callable[[Path], Path]
) -> None:
    """It used to try again at once, forever, and without a turn for anybody else."""
    home = controller.directory / "controller"
    peer = Peer(client, controller.address)
    await peer.apply(1)
    await peer.beat_until_master(1, 1)
    spoiled = spoil(home)
    began = time.monotonic()
    waiting = asyncio.create_task(peer.apply(2))
    async with asyncio.timeout(60):
        while controller.output().count("record not ") < 8:
            assert (await peer.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)).code == 0
            await asyncio.sleep(0.02)
    reason = await asyncio.to_thread(health_of, controller)
    assert "cannot save the records of its groups" in reason, reason
    tries = controller.output().count("record not ")
    assert tries < 6 + 6 * (time.monotonic() - began)
    spoiled.rmdir() if spoiled.parent == home else spoiled.rename(home)
    with suppress(RemotingError):  # It was refused, or it waited for longer than a request may.
        await waiting
    async with asyncio.timeout(60):
        while (await peer.apply(2)).code != 0:
            await peer.beat(1, epoch=1)
    assert json.loads((await peer.beat(1, epoch=1)).body)["masterEpoch"] == 1
    assert "cannot save" not in await asyncio.to_thread(health_of, controller)
