"""One pair with its console for all modules that a worker runs; a guarded broker with another."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from support.console import ConsolePair, bearer, console_pair, running_console
from support.processes import process_group
from support.twinlog_servers import start_guarded_broker

RULES = {
    "accounts": [
        {"accessKey": "operator", "secretKey": "operator-secret", "admin": True},
        {"accessKey": "reader-one", "secretKey": "reader-secret", "topicPerms": ["orders=SUB"]},
    ],
}


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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A console that speaks to a broker with access rules as the operator."""
    directory = tmp_path_factory.mktemp("guarded")
    keys = {"TWINLOG_ACCESS_KEY": "operator", "TWINLOG_SECRET_KEY": "operator-secret"}
    with process_group() as group:
        namesrv, _ = start_guarded_broker(group, directory, RULES)
        with (
            running_console(directory, namesrv.address, keys) as (url, token),
            bearer(url, token) as client,
        ):
            yield client
