"""The page of access rules, on a broker that enforces them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.processes import process_group, wait_until
from support.twinlog_servers import start_guarded_broker
from twinlog.admin.acl import AclAccount, AclTable
from twinlog.console.views.servers import account_rows

RULES = {
    "accounts": [
        {"accessKey": "operator", "secretKey": "operator-secret", "admin": True},
        {"accessKey": "reader-one", "secretKey": "reader-secret", "topicPerms": ["orders=SUB"]},
    ],
}


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    """A console that speaks to its broker as the operator."""
    log = tmp_path / "console.log"
    keys = {"TWINLOG_ACCESS_KEY": "operator", "TWINLOG_SECRET_KEY": "operator-secret"}
    with process_group() as group:
        namesrv, _ = start_guarded_broker(group, tmp_path, RULES)
        command = [
            sys.executable, "-m", "twinlog.cli.main", "console", "-n", namesrv.address, "--port",
            "0", "--audit", str(tmp_path / "audit.log"),
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(command, stderr=output, env={**os.environ, **keys})
        try:
            wait_until(lambda: "to look only" in log.read_text(), "ready", deadline_s=60)
            found = re.search(r"ready (http\S+)/\?token=(\S+)", log.read_text())
            assert found is not None
            bearer = {"Authorization": f"Bearer {found[2]}"}
            with httpx.Client(base_url=found[1], headers=bearer, timeout=30) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def test_accounts_are_listed_without_secrets_and_changed(http: httpx.Client) -> None:
    def accounts() -> dict[str, dict[str, object]]:
        return {row["access_key"]: row for row in http.get("/api/rules").json()["accounts"]}

    assert list(accounts()) == ["operator", "reader-one"]
    assert accounts()["operator"]["is_admin"] is True
    assert accounts()["reader-one"]["topics"] == {"orders": "SUB"}
    new = {"access_key": "billing-app", "secret_key": "billing-secret", "group_perms": "bills=SUB"}
    assert http.post("/api/rules", json=new).status_code == 200
    assert accounts()["billing-app"]["groups"] == {"bills": "SUB"}
    for path in ("/rules", "/api/rules", "/audit"):
        text = http.get(path).text
        assert "billing-app" in text
        assert not re.search("(operator|reader|billing)-secret", text), path
    assert http.delete("/api/rules/billing-app").status_code == 200
    assert "billing-app" not in accounts()


def test_brokers_that_differ_have_rows_of_their_own() -> None:
    alike, other = AclAccount("alike"), AclAccount("other", topics={"a": "PUB"})
    changed = AclAccount("other", topics={"a": "SUB"})
    rows = account_rows(
        {"h:2": AclTable((), (alike, changed)), "h:1": AclTable((), (other, alike))}
    )
    assert [(row.access_key, row.brokers) for row in rows] == [
        ("alike", ["h:1", "h:2"]), ("other", ["h:1"]), ("other", ["h:2"]),
    ]  # fmt: skip
