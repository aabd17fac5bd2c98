"""The twin dialect in a controlled group: epochs on both ends of a connection (R4, R9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.twin_cores import SEGMENT, Pair, log_of, master_facts
from twinlog.ha.authority import Authority
from twinlog.ha.epoch_file import EpochFile, apache_text
from twinlog.ha.epochs import EpochEntry
from twinlog.ha.twin import wire
from twinlog.ha.twin.sender import MasterFacts, history_of
from twinlog.testing.simdisk import SimDisk

COMMON = log_of(1, 40_000)
LOST, NEW = log_of(2, 900), log_of(3, 700)


def entries(*pairs: tuple[int, int], is_clean: bool = True) -> list[wire.EpochEntry]:
    *before, last = [wire.EpochEntry(epoch, start) for epoch, start in pairs]
    return [*before, wire.EpochEntry(last.epoch, last.start_offset, 0, is_clean)]


def facts(*epochs: wire.EpochEntry) -> MasterFacts:
    return replace(
        master_facts("c", "g", "store-1", SEGMENT), epochs=tuple(epochs), is_controlled=True
    )


def pair_of(
    of_master: list[wire.EpochEntry], *, hello_epoch: int = 2, version: int = 3, **hello: object
) -> Pair:
    """A master of epoch 2, whose log parts from the slave's behind the common part."""
    pair = Pair(
        COMMON + NEW,
        COMMON + LOST,
        facts=facts(*of_master),
        hello={
            "version": version, "epoch": hello_epoch, "epochs": entries((1, 0)),
            "incarnation": "x", "confirmed": 0, **hello,
        },
    )  # fmt: skip
    pair.slave_is_longer = pair.sender.truncate_slave  # type: ignore[method-assign]
    return pair


def test_a_tail_of_an_older_epoch_is_cut_where_the_newer_one_began() -> None:
    pair = pair_of(entries((1, 0), (2, len(COMMON))))
    pair.run()
    assert pair.slave == COMMON + NEW
    assert pair.aside == LOST
    assert pair.receiver.epoch == 2


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_slave_follows_the_master_of_its_own_epoch_only(epoch: int) -> None:
    pair = pair_of(entries((1, 0), (2, len(COMMON))), hello_epoch=epoch)
    pair.run()
    assert pair.slave == COMMON + LOST
    assert "the controller is asked" in pair.ended["slave"]


def test_a_controlled_group_does_not_speak_older_versions() -> None:
    pair = pair_of(entries((2, 0)), version=2)
    pair.run()
    assert "version 3" in pair.ended["slave"]


@pytest.mark.parametrize(("is_clean", "is_cut"), [(True, False), (False, True)])
def test_confirmed_bytes_are_cut_only_after_an_election_that_gave_them_up(
    is_clean: bool, is_cut: bool
) -> None:
    """R9."""
    epochs = entries((1, 0), (2, len(COMMON)), is_clean=is_clean)
    pair = pair_of(epochs, confirmed=len(COMMON) + 100)
    pair.run()
    assert (pair.slave == COMMON + NEW) is is_cut
    if not is_cut:
        assert "confirmed up to" in pair.ended["slave"]


@pytest.mark.parametrize(
    "theirs", [[], [wire.EpochEntry(2, 5), wire.EpochEntry(1, 9)], entries((1, 0), (2, 10))]
)
def test_epochs_are_hints_and_content_decides(theirs: list[wire.EpochEntry]) -> None:
    pair = pair_of(entries((1, 0), (2, len(COMMON))), epochs=theirs)
    pair.run()
    assert pair.slave == COMMON + NEW


def test_epochs_that_point_at_nothing_common_are_left_aside() -> None:
    pair = Pair(
        NEW, LOST, facts=facts(*entries((1, 0), (2, 500))),
        hello={"version": 3, "epoch": 2, "epochs": entries((1, 0), (2, 300)), "incarnation": "x"},
    )  # fmt: skip
    pair.run()
    assert "not one record is common" in pair.ended["master"], "looked for in all of it"


def test_a_frame_of_another_epoch_ends_the_connection() -> None:
    for epoch in (1, 3):
        pair = pair_of(entries((1, 0), (2, len(COMMON))))
        pair.run()
        pair.receiver.receive_data(wire.encode_heartbeat(len(pair.master), 0, epoch), 0)
        assert f"epoch {epoch}" in pair.receiver.reason


def test_a_history_out_of_order_is_none() -> None:
    assert history_of([wire.EpochEntry(2, 0), wire.EpochEntry(2, 5)]) is None
    assert history_of([wire.EpochEntry(1, 5), wire.EpochEntry(2, 5)]) is None
    known = history_of(entries((1, 0), (4, 9)))
    assert known is not None
    assert known.last_epoch == 4


def test_epochs_on_disk_survive_the_loss_of_one_copy_and_end_with_the_log() -> None:
    disk = SimDisk()
    disk.make_directories("/store")
    first = EpochFile(disk, "/store")
    listed = [EpochEntry(1, 0), EpochEntry(3, 500, 7, False)]
    first.replace(listed)
    assert list(first.history(501)) == listed
    assert list(first.history(500)) == listed[:1]
    file = disk.open("/store/twinlog/epochs")
    file.pwritev([b"x"], 0)
    file.close()
    again = EpochFile(disk, "/store")
    again.load()
    assert list(again.history(501)) == listed
    assert not again.was_lost
    file = disk.open("/store/twinlog/epochs.bak")
    file.pwritev([b"x"], 0)
    file.close()
    lost = EpochFile(disk, "/store")
    lost.load()
    assert lost.was_lost
    assert disk.read_bytes("/store/epochFileCheckpoint").decode() == apache_text(listed)
    assert apache_text(listed).splitlines()[0] == "2"
    assert apache_text(listed).splitlines()[2:] == ["1-0", "3-500"]


def test_one_that_joins_is_known_until_it_is_proposed() -> None:
    authority = Authority(
        own_id=1, incarnation="a", epoch=1, epoch_start=0, members=frozenset([1]), set_epoch=1
    )
    assert not authority.is_joining
    authority.connected(2, 1, "b", 0)
    authority.join(2)
    assert authority.is_joining
    authority.give_up_joining()
    assert not authority.is_joining
