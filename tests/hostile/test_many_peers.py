"""Very many peers, and peers that come and go: others are served, memory comes back."""

from __future__ import annotations

import shlex
from pathlib import Path

from support.hostile_target import Target
from support.processes import Process, free_port, wait_until
from support.properties import write_properties
from support.raw_peer import RawPeer, request
from support.twinlog_servers import TWINLOG

IDLE = 2000
STORM = 3000


def test_two_thousand_idle_connections(target: Target) -> None:
    peers = [RawPeer(target.port) for _ in range(IDLE)]
    target.check_others_are_served()
    target.check_growth()
    for peer in peers[::100]:
        assert peer.ask().code == 3, "an idle peer is served when it speaks"
    for peer in peers:
        peer.close()
    target.check_others_are_served()
    target.check_memory_comes_back()


def test_storm_of_connections(target: Target) -> None:
    """Peers connect and go: silently, in the middle of a frame, by reset, after a question."""
    with RawPeer(target.port) as neighbour:
        for number in range(STORM):
            peer = RawPeer(target.port)
            if number % 4 == 1:
                peer.send(request()[:20])
            elif number % 4 == 2:
                peer.send(request())
            if number % 2:
                peer.reset()
            else:
                peer.close()
            if number % 100 == 0:
                assert neighbour.ask().code == 3
    target.check_growth()
    target.check_memory_comes_back()


def test_more_connections_than_the_process_may_open(tmp_path: Path) -> None:
    """With 300 descriptors a part of the peers is refused; those inside are served."""
    port = free_port()
    values = {"listenPort": port, "kvConfigPath": tmp_path / "kvConfig.json"}
    file = write_properties(tmp_path / "namesrv.conf", values)
    command = f"ulimit -n 300; exec {shlex.quote(str(TWINLOG))} namesrv -c {shlex.quote(str(file))}"
    process = Process("small namesrv", ["bash", "-c", command], log=tmp_path / "log", cwd=tmp_path)
    try:
        process.wait_for_text("twinlog namesrv ready")
        with RawPeer(port) as first:
            peers = [RawPeer(port) for _ in range(400)]
            assert first.ask().code == 3
            wait_until(
                lambda: "reason=one address has its limit of 51" in process.output(),
                "a line that says so",
            )
            for peer in peers:
                peer.close()
            assert first.ask().code == 3
        wait_until(lambda: _is_served(port), "room again")
        assert "Traceback" not in process.output()
    finally:
        assert process.stop() == 0


def _is_served(port: int) -> bool:
    try:
        with RawPeer(port) as peer:
            return peer.ask().code == 3
    except ConnectionError:
        return False
