"""Who may look and who may change: tokens, accounts, sessions. Pure; time and chance passed in.

A session lives in the memory of the console and in a cookie of the browser. A token is good for
scripts (`Authorization: Bearer`) and for the first visit of a browser, which trades it for a
session, so that it does not stay in the address bar.
"""

from __future__ import annotations

import enum
import hmac
import ipaddress
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

IDLE_MS_MAX = 12 * 3_600_000
SESSIONS_MAX = 1_000
FAILURES_MAX = 10  # Wrong tokens or passwords of one address within the window.
FAILURES_WINDOW_MS = 60_000
ADDRESSES_MAX = 10_000


class Role(enum.IntEnum):
    """What somebody may do; a higher one may all that a lower one may."""

    NOBODY = 0
    VIEWER = 1
    ADMIN = 2

    @property
    def text(self) -> str:
        return self.name.lower()


@dataclass(slots=True)
class Session:
    """Somebody who has logged in. `csrf` must come with every form that changes something."""

    key: str
    role: Role
    account: str
    csrf: str
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Login:
    """An account of the rule file."""

    secret: str
    role: Role


class TooManyFailures(Exception):
    """This address has guessed too often; it must wait."""


class Access:
    """The door of the console.

    `accounts` is asked again for each login, so that a changed rule file counts at once.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        admin_token: str | None = None,
        viewer_token: str | None = None,
        accounts: Callable[[], Mapping[str, Login]] = dict,
        is_open: bool = False,
        make_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self._now_ms = now_ms
        self._make_secret = make_secret
        self.admin_token = admin_token or make_secret()
        self.viewer_token = viewer_token or make_secret()
        self._accounts = accounts
        self.is_open = is_open
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, list[int]] = {}

    # Proofs

    def role_of_token(self, token: str, address: str) -> Role:
        """NOBODY for a wrong one. Raises TooManyFailures.

        A right one is let in also while others guess from the same address: a token of 32 random
        bytes is not guessed, and whoever shares the address must not be able to shut it out.
        """
        role = Role.NOBODY
        # Both are compared always: the time tells nothing.
        if _same(token, self.viewer_token):
            role = Role.VIEWER
        if _same(token, self.admin_token):
            role = Role.ADMIN
        if role is Role.NOBODY:
            self._check_failures(address)
            self._note_failure(address)
        return role

    def role_of_account(self, name: str, secret: str, address: str) -> Role:
        self._check_failures(address)
        login = self._accounts().get(name)
        is_right = _same(secret, login.secret if login is not None else self._make_secret())
        if login is None or not is_right:
            self._note_failure(address)
            return Role.NOBODY
        return login.role

    def _check_failures(self, address: str) -> None:
        since = self._now_ms() - FAILURES_WINDOW_MS
        recent = [moment for moment in self._failures.get(address, ()) if moment > since]
        if len(recent) >= FAILURES_MAX:
            raise TooManyFailures
        if recent:
            self._failures[address] = recent
        else:
            self._failures.pop(address, None)

    def _note_failure(self, address: str) -> None:
        if len(self._failures) >= ADDRESSES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(address, []).append(self._now_ms())

    # Sessions

    def open_session(self, role: Role, account: str) -> Session:
        if len(self._sessions) >= SESSIONS_MAX:
            oldest = min(self._sessions.values(), key=lambda session: session.seen_ms)
            del self._sessions[oldest.key]
        session = Session(self._make_secret(), role, account, self._make_secret(), self._now_ms())
        self._sessions[session.key] = session
        return session

    def session(self, key: str | None) -> Session | None:
        """The session of a cookie, if it lives."""
        found = self._sessions.get(key or "")
        if found is None:
            return None
        if self._now_ms() - found.seen_ms > IDLE_MS_MAX:
            del self._sessions[found.key]
            return None
        found.seen_ms = self._now_ms()
        return found

    def is_alive(self, session: Session) -> bool:
        """Whether it still counts; to ask is not to use it."""
        is_idle = self._now_ms() - session.seen_ms > IDLE_MS_MAX
        return session.key in self._sessions and not is_idle

    def close_session(self, key: str) -> None:
        self._sessions.pop(key, None)


def is_right_csrf(session: Session, given: str) -> bool:
    return _same(given, session.csrf)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


# Where a request says that it goes


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_own_host(header: str, names: Iterable[str]) -> bool:
    """Whether a Host header names this server and not one that a stranger's DNS points here.

    An address cannot be pointed elsewhere by DNS; a name must be one that was allowed.
    """
    host = host_of(header)
    if host is None:
        return False
    if host == "localhost" or host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(header: str) -> str | None:
    """The host of `host:port` or `[v6]:port`, in lower case; None when it is neither."""
    text = header.strip().lower()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not _is_port(rest)):
            return None
        return host
    host, colon, rest = text.partition(":")
    if not host or (colon and not _is_port(colon + rest)):
        return None
    return host


def _is_port(text: str) -> bool:
    return text[:1] == ":" and text[1:].isascii() and all("0" <= c <= "9" for c in text[1:])


def is_own_origin(origin: str | None, host_header: str, scheme: str) -> bool:
    """Whether a form came from a page of this very server: same scheme, host and port."""
    return origin is None or origin == f"{scheme}://{host_header}"
