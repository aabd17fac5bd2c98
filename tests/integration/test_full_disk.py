"""A broker whose real disk is full or read-only: it lives, and consumers drain.

It starts on a full disk, too. A store that cannot be written at all is refused at the start.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import ProcessGroup, process_group, wait_until
from support.raw_peer import RawPeer, request
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request

SIZE = "16m"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False)


def read_only(mount: Path) -> Callable[[], object]:
    """What is open stays open; nothing new can be written. Returns the way back."""
    store, view = str(mount / "store"), str(mount / "view")
    (mount / "view").mkdir(exist_ok=True)
    for command in (["--bind", store, view], ["-o", "remount,ro,bind", view]):
        subprocess.run(["mount", *command], check=True)
    # In one step: between two of them the broker would open files in it.
    subprocess.run(["mount", "--bind", view, store], check=True)
    return lambda: subprocess.run(["umount", "-l", store, view], check=True)


def full(mount: Path) -> Callable[[], object]:
    return fill(mount).unlink


def fill(mount: Path) -> Path:
    """Take the last byte of the disk."""
    path = mount / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return path


def start(mount: Path, tmp_path: Path, group: ProcessGroup) -> TwinlogBroker:
    broker = start_twinlog_broker(
        tmp_path, storePathRootDir=mount / "store", storePathCommitLog=mount / "store/commitlog",
        mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=6000, maxHashSlotNum=100,
        maxIndexNum=400, flushConsumerOffsetInterval=200, cleanFileForciblyEnable=False,
    )  # fmt: skip
    group.add(broker)
    return broker


def send(peer: RawPeer, topic: str) -> Request:
    header = {
        "a": "p", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
        "j": 0, "k": "false",
    }  # fmt: skip
    peer.send(request(RequestCode.SEND_MESSAGE_V2, header, bytes(500)))
    return peer.read_answer()


def pull(peer: RawPeer, group: str, offset: int = 0) -> Request:
    header = {
        "consumerGroup": group, "topic": "t", "queueId": 0, "queueOffset": offset,
        "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return peer.ask(RequestCode.PULL_MESSAGE, header)


def drain(peer: RawPeer, group: str) -> int:
    """Read everything, as a consumer does; how many messages."""
    offset = 0
    while (answer := pull(peer, group, offset)).code == 0:
        offset = int(answer.ext()["nextBeginOffset"])
    commit = {"consumerGroup": group, "topic": "t", "queueId": 0, "commitOffset": offset}
    assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    return offset


def unsaved(peer: RawPeer) -> dict[str, Any]:
    table = fastjson.loads(peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    return {key: value for key, value in table.items() if key.startswith("notSaved ")}


def committed(peer: RawPeer, group: str) -> str | None:
    header = {"consumerGroup": group, "topic": "t", "queueId": 0}
    return peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header).ext().get("offset")


@pytest.mark.parametrize(
    ("spoil", "reason"), [(full, "No space left"), (read_only, "Read-only file system")]
)
def test_a_disk_that_cannot_be_written_for_a_while(
    mount: Path, tmp_path: Path, spoil: Callable[[Path], Callable[[], object]], reason: str
) -> None:
    with process_group() as group:
        broker = start(mount, tmp_path, group)
        with RawPeer(broker.port) as peer:
            for _ in range(50):
                assert send(peer, "t").code == 0
            mend = spoil(mount)
            assert drain(peer, "new") == 50
            refused = send(peer, "new-topic")
            assert refused.code in (1, 14)
            assert refused.remark
            wait_until(lambda: "notSaved offsets" in unsaved(peer), "offsets cannot be saved")
            assert reason in unsaved(peer)["notSaved offsets"]
            mend()
            wait_until(lambda: not unsaved(peer), "everything is saved")
            wait_until(lambda: send(peer, "new-topic").code == 0, "sends again")
            assert broker.is_alive
        broker.kill()
        again = broker.restart()
        group.add(again)
        with RawPeer(again.port) as peer:
            assert committed(peer, "new") == "50"
            assert send(peer, "new-topic").code == 0


def test_a_broker_that_starts_on_a_full_disk(mount: Path, tmp_path: Path) -> None:
    with process_group() as group:
        broker = start(mount, tmp_path, group)
        with RawPeer(broker.port) as peer:
            for _ in range(50):
                assert send(peer, "t").code == 0
            assert pull(peer, "g").code == 0
        broker.kill()
        filler = fill(mount)
        again = broker.restart()
        group.add(again)
        with RawPeer(again.port) as peer:
            assert drain(peer, "g") == 50
            wait_until(lambda: "notSaved offsets" in unsaved(peer), "offsets cannot be saved")
            filler.unlink()
            wait_until(lambda: not unsaved(peer), "everything is saved")
            wait_until(lambda: send(peer, "t").code == 0, "sends again")
            assert committed(peer, "g") == "50"
            assert again.is_alive


def test_a_read_only_store_refuses_the_start(mount: Path, tmp_path: Path) -> None:
    with process_group() as group:
        broker = start(mount, tmp_path, group)
        assert broker.stop() == 0
        mend = read_only(mount)
        with pytest.raises(AssertionError, match=r"ended with 1 .*\n.*cannot write to storePath"):
            broker.restart()
        mend()
        again = broker.restart()
        group.add(again)
        with RawPeer(again.port) as peer:
            assert send(peer, "t").code == 0
