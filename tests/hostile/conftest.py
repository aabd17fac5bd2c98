"""Real servers for hostile peers: one name server and one broker for the whole directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hostile_target import Target
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv


@pytest.fixture(scope="session")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    process = start_twinlog_namesrv(tmp_path_factory.mktemp("namesrv"))
    target = Target(process, process.port)
    yield target
    target.check_all_attacks_together()
    assert process.stop() == 0


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory: Path = tmp_path_factory.mktemp("broker")
    process = start_twinlog_broker(directory, mappedFileSizeCommitLog=64 * 1024 * 1024)
    target = Target(process, process.port)
    yield target
    target.check_all_attacks_together()
    assert process.stop() == 0


@pytest.fixture(params=["namesrv", "broker"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found: Target = request.getfixturevalue(request.param)
    found.base_mb = found.memory_mb()
    yield found
    found.check_others_are_served()
    found.check_log()
