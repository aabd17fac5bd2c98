"""Tokens, accounts, sessions, hosts: the pure part of the door."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.console.access import (
    FAILURES_MAX,
    FAILURES_WINDOW_MS,
    IDLE_MS_MAX,
    SESSIONS_MAX,
    Access,
    Login,
    Role,
    TooManyFailures,
    host_of,
    is_loopback,
    is_own_host,
    is_own_origin,
    is_right_csrf,
)
from twinlog.console.forms import own_path


class Now:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def access(now: Now) -> Access:
    numbers = itertools.count()
    accounts = {"operator": Login("operator-secret", Role.ADMIN), "guest": Login("g", Role.VIEWER)}
    return Access(
        now, admin_token="a" * 43, viewer_token="v" * 43, accounts=lambda: accounts,
        make_secret=lambda: f"secret-{next(numbers)}",
    )  # fmt: skip


def test_a_token_has_its_role(access: Access) -> None:
    assert access.role_of_token("a" * 43, "x") is Role.ADMIN
    assert access.role_of_token("v" * 43, "x") is Role.VIEWER
    for wrong in ("", "a" * 42, "a" * 44, "A" * 43, "\ud800"):
        assert access.role_of_token(wrong, wrong) is Role.NOBODY


def test_an_account_has_its_role(access: Access) -> None:
    assert access.role_of_account("operator", "operator-secret", "x") is Role.ADMIN
    assert access.role_of_account("guest", "g", "x") is Role.VIEWER
    assert access.role_of_account("guest", "operator-secret", "x") is Role.NOBODY
    assert access.role_of_account("nobody", "", "x") is Role.NOBODY


def test_guessing_is_limited_by_address(access: Access, now: Now) -> None:
    for _ in range(FAILURES_MAX):
        access.role_of_token("wrong", "here")
    with pytest.raises(TooManyFailures):
        access.role_of_token("wrong", "here")
    with pytest.raises(TooManyFailures):
        access.role_of_account("operator", "operator-secret", "here")
    assert access.role_of_token("wrong", "there") is Role.NOBODY
    now.ms += FAILURES_WINDOW_MS + 1
    assert access.role_of_token("wrong", "here") is Role.NOBODY


def test_who_has_the_token_is_not_shut_out_by_others_guesses(access: Access) -> None:
    for _ in range(FAILURES_MAX + 1):
        with contextlib.suppress(TooManyFailures):
            access.role_of_token("wrong", "here")
    assert access.role_of_token("a" * 43, "here") is Role.ADMIN


def test_a_session_ends_when_it_is_idle(access: Access, now: Now) -> None:
    session = access.open_session(Role.VIEWER, "guest")
    now.ms += IDLE_MS_MAX
    assert access.session(session.key) is session
    now.ms += IDLE_MS_MAX
    assert access.is_alive(session)
    now.ms += 1
    assert not access.is_alive(session)
    assert access.session(session.key) is None
    assert access.session(None) is None


def test_sessions_are_bounded(access: Access, now: Now) -> None:
    first = access.open_session(Role.VIEWER, "first")
    for number in range(SESSIONS_MAX):
        now.ms += 1
        access.open_session(Role.VIEWER, str(number))
    assert access.session(first.key) is None


def test_the_secret_of_another_session_is_not_right(access: Access) -> None:
    one, other = (access.open_session(Role.ADMIN, "x") for _ in range(2))
    assert is_right_csrf(one, one.csrf)
    assert not is_right_csrf(one, other.csrf)
    assert not is_right_csrf(one, "")
    assert not is_right_csrf(one, one.key)


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("127.0.0.1:8082", "127.0.0.1"),
        ("LocalHost", "localhost"),
        ("[::1]:8082", "::1"),
        ("[::1]", "::1"),
        ("a:b", None),
        ("a:1:2", None),
        ("[::1", None),
        ("[::1]x", None),
        ("", None),
        (":8082", None),
        ("a:８０", None),
    ],
)
def test_hosts(header: str, host: str | None) -> None:
    assert host_of(header) == host


def test_only_addresses_and_allowed_names_are_own() -> None:
    names = {"console.example"}
    for header in ("127.0.0.1:1", "10.0.0.7", "[fe80::1]:1", "localhost:1", "console.example"):
        assert is_own_host(header, names), header
    for header in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:1", "0x7f.1"):
        assert not is_own_host(header, names), header


def test_origins() -> None:
    assert is_own_origin(None, "127.0.0.1:1", "http")
    assert is_own_origin("http://127.0.0.1:1", "127.0.0.1:1", "http")
    for origin in ("https://127.0.0.1:1", "http://127.0.0.1:2", "http://localhost:1", "null", ""):
        assert not is_own_origin(origin, "127.0.0.1:1", "http"), origin


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "example", ""))


@given(st.text(max_size=60))
def test_a_path_to_go_on_with_never_leaves_the_console(text: str) -> None:
    for tried in (text, "/" + text, "//" + text, "/\\" + text, "http://evil/" + text):
        path = own_path(tried)
        assert path.startswith("/")
        assert not path.startswith(("//", "/\\"))
        assert "\n" not in path
        assert "\r" not in path
