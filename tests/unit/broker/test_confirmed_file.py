"""The published confirmed offset: only a SYNC_MASTER's, never back, never past the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinlog.broker.pair.confirmed_file import ConfirmedFile
from twinlog.broker.role import Role
from twinlog.runtime.config import BrokerConfig, BrokerRole
from twinlog.runtime.disk import PosixDisk


class World:
    """A store directory, and a watermark that the test moves."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.value = 0

    def file(self, role: BrokerRole = BrokerRole.SYNC_MASTER) -> ConfirmedFile:
        config = BrokerConfig(store_path_root_dir=str(self.root), broker_role=role)
        return ConfirmedFile(config, PosixDisk(), lambda: self.value, Role(config))

    @property
    def path(self) -> Path:
        return self.root / "twinlog" / "confirmed"

    def published(self) -> int:
        return int.from_bytes(self.path.read_bytes(), "big")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_is_published_before_a_replica_counts(world: World) -> None:
    file = world.file()
    file.load(log_end=1000)
    file.publish()
    assert not world.path.exists()
    world.value = 700
    file.publish()
    assert world.published() == 700
    file.close()


def test_a_restart_does_not_go_back_and_a_cut_log_does(world: World) -> None:
    world.value = 700
    first = world.file()
    first.close()
    world.value = 0  # no replica has reported to the new process yet
    second = world.file()
    second.load(log_end=1000)
    second.publish()
    assert world.published() == 700
    second.close()
    third = world.file()
    third.load(log_end=600)
    assert world.published() == 600
    third.close()


@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE])
def test_other_roles_publish_nothing_and_remove_what_is_there(
    world: World, role: BrokerRole
) -> None:
    world.value = 700
    world.file().close()
    other = world.file(role)
    other.load(log_end=1000)
    assert not world.path.exists()
    other.publish()
    other.close()
    assert not world.path.exists()
