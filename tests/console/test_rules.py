"""The page of access rules, on a broker that enforces them."""

from __future__ import annotations

import re

import httpx

from twinlog.admin.acl import AclAccount, AclTable
from twinlog.console.views.servers import account_rows


def test_accounts_are_listed_without_secrets_and_changed(guarded: httpx.Client) -> None:
    def accounts() -> dict[str, dict[str, object]]:
        return {row["access_key"]: row for row in guarded.get("/api/rules").json()["accounts"]}

    assert list(accounts()) == ["operator", "reader-one"]
    assert accounts()["operator"]["is_admin"] is True
    assert accounts()["reader-one"]["topics"] == {"orders": "SUB"}
    new = {"access_key": "billing-app", "secret_key": "billing-secret", "group_perms": "bills=SUB"}
    assert guarded.post("/api/rules", json=new).status_code == 200
    assert accounts()["billing-app"]["groups"] == {"bills": "SUB"}
    for path in ("/rules", "/api/rules", "/audit"):
        text = guarded.get(path).text
        assert "billing-app" in text
        assert not re.search("(operator|reader|billing)-secret", text), path
    assert guarded.delete("/api/rules/billing-app").status_code == 200
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
