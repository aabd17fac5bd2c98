"""ACL 1.0: signatures, decision order, patterns, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinlog.remoting.acl import (
    AccessDenied,
    AclConfigError,
    AclRules,
    Permission,
    Resource,
    address_pattern,
    parse_rules,
)
from twinlog.remoting.acl_file import AclFiles
from twinlog.remoting.signing import calculate_signature, signed_content
from twinlog.runtime.disk import PosixDisk


def signature(secret: str, ext: dict[str, str], body: bytes, *, version: int = 401) -> str:
    return calculate_signature(signed_content(ext, body, version=version), secret)


DATA: dict[str, Any] = {
    "globalWhiteRemoteAddresses": ["10.10.15.*"],
    "accounts": [
        {
            "accessKey": "rocketmq1",
            "secretKey": "12345678",
            "whiteRemoteAddress": "192.168.0.{1,2}",
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "SUB",
            "topicPerms": ["orders=PUB|SUB", "audit=SUB"],
            "groupPerms": ["secret=DENY"],
        },
        {"accessKey": "adminadmin", "secretKey": "87654321", "admin": True},
    ],
}

UNSIGNED: dict[str, Any] = {"version": 401, "ext": {}, "body": b""}
ADMIN_CODES = (17, 25, 50, 51, 53, 200, 207, 215)


def ask(
    rules: AclRules,
    *resources: Resource,
    code: int = 310,
    key: str = "rocketmq1",
    secret: str = "12345678",
    address: str = "127.0.0.1",
) -> None:
    ext = {"a": "pg", "AccessKey": key}
    ext["Signature"] = signature(secret, ext, b"hi")
    account = rules.authenticate(version=401, ext=ext, body=b"hi", remote_address=address)
    if account is not None:
        account.check_standing(code, needs_admin=code in ADMIN_CODES)
        account.check_resources(resources)


@pytest.fixture
def rules() -> AclRules:
    return parse_rules(DATA, source="plain_acl.yml")


def test_signature_vectors() -> None:
    ext = {"a": "pg", "b": "T", "AccessKey": "rocketmq2"}
    assert signature("12345678", ext, b"hi") == "3rOVLv7KW+CtbX+RPHBCleBg75o="
    ext = {"AccessKey": "rocketmq2", "consumerGroup": "cg"}
    assert signature("12345678", ext, b"") == "7egiEHtbap4NdfWwHGcAsNmmbJQ="


def test_unique_key_query_is_signed_only_by_newer_clients() -> None:
    plain = {"AccessKey": "rocketmq2"}
    marked = {**plain, "_UNIQUE_KEY_QUERY": "true"}
    assert signature("12345678", marked, b"", version=399) == signature("12345678", plain, b"")
    assert signature("12345678", marked, b"", version=400) != signature("12345678", plain, b"")


def test_allowed_topic_passes_and_other_is_denied(rules: AclRules) -> None:
    ask(rules, Resource("orders", Permission.PUB))
    with pytest.raises(AccessDenied, match="audit"):
        ask(rules, Resource("audit", Permission.PUB))
    with pytest.raises(AccessDenied, match="unheard"):
        ask(rules, Resource("unheard", Permission.SUB))


def test_groups_have_their_own_default(rules: AclRules) -> None:
    ask(rules, Resource("%RETRY%any", Permission.SUB), code=11)
    with pytest.raises(AccessDenied, match="secret"):
        ask(rules, Resource("%RETRY%secret", Permission.SUB), code=11)


def test_wrong_missing_and_unknown_keys_are_denied(rules: AclRules) -> None:
    with pytest.raises(AccessDenied, match="signature"):
        ask(rules, secret="wrong-secret")
    with pytest.raises(AccessDenied, match="No acl config"):
        ask(rules, key="nobody-here")
    with pytest.raises(AccessDenied, match="No accessKey"):
        rules.authenticate(version=401, ext={}, body=b"", remote_address="127.0.0.1")


def test_white_addresses_need_no_signature(rules: AclRules) -> None:
    rules.authenticate(version=401, ext={}, body=b"", remote_address="10.10.15.9")
    ask(rules, Resource("unheard", Permission.PUB), secret="wrong-secret", address="192.168.0.2")
    with pytest.raises(AccessDenied):
        ask(rules, secret="wrong-secret", address="192.168.0.3")


@pytest.mark.parametrize("code", ADMIN_CODES)
def test_admin_requests_need_an_admin(rules: AclRules, code: int) -> None:
    ask(rules, code=code, key="adminadmin", secret="87654321")
    with pytest.raises(AccessDenied, match="admin"):
        ask(rules, code=code)


def test_trace_topic_may_always_be_published(rules: AclRules) -> None:
    ask(rules, Resource("RMQ_SYS_TRACE_TOPIC", Permission.PUB))


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", "1.2.3.4", None),
        ("*.*.*.*", "1.2.3.4", None),
        ("", None, "1.2.3.4"),
        ("1.2.3.4", "1.2.3.4", "1.2.3.5"),
        ("1.2.3.4,1.2.3.6", "1.2.3.6", "1.2.3.5"),
        ("1.2.3.{4,6}", "1.2.3.6", "1.2.3.5"),
        ("1.2.3.*", "1.2.3.255", "1.2.4.1"),
        ("1.2.3-5.*", "1.2.5.9", "1.2.6.9"),
        ("1.2.3.1-9", "1.2.3.9", "1.2.3.10"),
        ("2001:db8::1", "2001:db8:0::1", "2001:db8::2"),
        ("2001:db8:0:0:0:0:0:1-f", "2001:db8::e", "2001:db8::10"),
        ("2001:db8:*:*:*:*:*:*", "2001:db8:1::", "1.2.3.4"),
    ],
)
def test_address_patterns(pattern: str, inside: str | None, outside: str | None) -> None:
    matches = address_pattern(pattern, "file")
    assert inside is None or matches(inside)
    assert outside is None or not matches(outside)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        {"accounts": {"a": 1}},
        {"accounts": [{"accessKey": "short", "secretKey": "12345678"}]},
        {"accounts": [{"accessKey": "longenough", "secretKey": "12345678", "topicPerms": ["x"]}]},
        {"accounts": [{"accessKey": "longenough", "secretKey": "12345678",
                       "defaultTopicPerm": "ALL"}]},
        {"accounts": [DATA["accounts"][0], DATA["accounts"][0]]},
        {"globalWhiteRemoteAddresses": ["1.2.3.300-400"]},
        {"globalWhiteRemoteAddresses": ["hello"]},
    ],
)  # fmt: skip
def test_rules_that_are_not_understood_are_refused(bad: Any) -> None:
    with pytest.raises(AclConfigError, match=r"plain_acl\.yml"):
        parse_rules(bad, source="plain_acl.yml")


GOOD_FILE = "accounts:\n- accessKey: rocketmq1\n  secretKey: '12345678'\n"


def test_missing_file_refuses_the_start(tmp_path: Path) -> None:
    files = AclFiles(PosixDisk(), str(tmp_path / "plain_acl.yml"), str(tmp_path / "acl"))
    with pytest.raises(AclConfigError, match="needs"):
        files.load()


def test_damaged_reload_keeps_the_old_rules_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(GOOD_FILE)
    files = AclFiles(PosixDisk(), str(path), str(tmp_path / "acl"))
    files.load()
    path.write_text("accounts: [\n")
    assert not files.reload_if_changed()
    assert "rocketmq1" in files.rules.accounts
    assert files.last_problem is not None
    assert "line" in files.last_problem
    path.write_text(GOOD_FILE.replace("rocketmq1", "rocketmq2"))
    assert files.reload_if_changed()
    assert set(files.rules.accounts) == {"rocketmq2"}
    assert files.last_problem is None


def test_accounts_are_changed_and_removed_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(GOOD_FILE)
    files = AclFiles(PosixDisk(), str(path), str(tmp_path / "acl"))
    files.load()
    files.update_account({"accessKey": "rocketmq1", "topicPerms": ["t=PUB"]}, 5)
    assert files.rules.accounts["rocketmq1"].secret_key == "12345678"
    assert files.rules.accounts["rocketmq1"].permissions == {"t": Permission.PUB}
    with pytest.raises(AclConfigError):
        files.update_account({"accessKey": "x", "secretKey": "y"}, 6)
    assert files.data_version() == {"counter": 1, "timestamp": 5}
    assert files.delete_account("rocketmq1", 7)
    assert not files.delete_account("rocketmq1", 8)
    assert files.rules.accounts == {}
