"""One cluster of `twinlog up` for each module; nothing of the user's own configuration counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import LocalTwins


@pytest.fixture(autouse=True, scope="module")
def own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No context, no name server, no running cluster of the user is found."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NAMESRV_ADDR", "ROCKETMQ_HOME", "TWINLOG_ACCESS_KEY", "TWINLOG_SECRET_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("TWINLOG_CONFIG", str(home / "contexts.json"))
        patch.setenv("TWINLOG_HOME", str(home / "cluster"))
        patch.setenv("NO_COLOR", "1")
        yield home


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalTwins]:
    twins = LocalTwins(tmp_path_factory.mktemp("cluster") / "twins")
    twins.up().ok()
    yield twins
    twins.down()


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> None:
    """Whatever the order: what another test has killed runs again."""
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").mend()
