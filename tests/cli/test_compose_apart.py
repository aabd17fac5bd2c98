"""`twinlog generate compose`, run: a network namespace in the place of each container.

Clients reach brokers at the machine's address, replicas reach each other by their names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import twinlog
from support.compose_apart import ComposeApart
from support.processes import wait_until

NAMESRV = ("-n", "127.0.0.1:9876")
LINES = [f"order {number:02}" for number in range(20)]


def compose(*options: str) -> dict[str, Any]:
    found = yaml.safe_load(twinlog("generate", "compose", *options).ok().out)
    assert isinstance(found, dict)
    return found


def consumed(host: ComposeApart) -> list[str]:
    words = ("topic", "consume", "orders", "-o", "start", "-e", "--json", *NAMESRV)
    rows = [json.loads(line) for line in host.twinlog(*words).out.splitlines()]
    return sorted(row["body"] for row in rows)


def master_of(host: ComposeApart) -> str:
    """The service whose published port the route names as the master."""
    rows = host.twinlog("broker", "list", "-o", "json", *NAMESRV).ok().json
    (address,) = [row["address"] for row in rows if row["id"] == 0]
    return {"127.0.0.1:10911": "broker-a-0", "127.0.0.1:10921": "broker-a-1"}[address]


def sends(host: ComposeApart) -> bool:
    return host.twinlog("topic", "produce", "orders", "one more", *NAMESRV).code == 0


@pytest.mark.parametrize("options", [("--sync",), ("--failover", "--name-servers", "2")])
def test_containers_replicate_and_lose_their_master(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    document = compose(*options)
    with ComposeApart(tmp_path / "apart", document) as host:
        host.twinlog("cluster", "health", "--wait", "60s", "--brokers", 2, *NAMESRV).ok()
        for service in document["services"]:
            assert host.healthcheck(service).code == 0, service
        host.twinlog("topic", "produce", "orders", "--create", *LINES, *NAMESRV).ok()
        assert consumed(host) == LINES
        master = master_of(host)
        host.kill(master)
        assert host.healthcheck(master).code != 0
        wait_until(lambda: consumed(host) == LINES, "the other one serves all of it")
        if "--failover" in options:
            wait_until(lambda: sends(host), "the other one is the master")
            assert master_of(host) != master
