"""Very many peers, and peers that come and go: others are served, memory comes back."""

from __future__ import annotations

from support.hostile_target import Target
from support.raw_peer import RawPeer, request

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
