"""One pair with its console for all modules that a worker runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.console import ConsolePair, console_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsolePair]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NAMESRV_ADDR", "ROCKETMQ_HOME", "TWINLOG_ACCESS_KEY", "TWINLOG_SECRET_KEY"):
            patch.delenv(name, raising=False)
        found = console_pair(tmp_path_factory.mktemp("console") / "pair")
        try:
            yield found
        finally:
            found.close()
