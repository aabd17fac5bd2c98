"""What every request passes: host, session or token, origin, headers of the answer.

Plain ASGI, so that streams are not held up. The caller is in `scope["state"]["caller"]`; whoever is
nobody gets the login page, or 401 from the API.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twinlog.console.access import (
    Access,
    Role,
    Session,
    TooManyFailures,
    is_own_host,
    is_own_origin,
    is_right_csrf,
)
from twinlog.console.audit import ConsoleAudit

_NO_PLACE_TO_RETURN = ("/do/", "/logout")  # Only forms lead there.
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # With no-referrer a browser hides the origin from us too.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. A script with a token has no session, and needs none."""

    role: Role
    account: str
    address: str
    session: Session | None = None


class Door:
    """The outermost layer of the application."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        audit: ConsoleAudit,
        *,
        cookie: str,
        host_names: Iterable[str] = (),
        is_tls: bool = False,
    ) -> None:
        self._app = app
        self._access = access
        self._audit = audit
        self._cookie = cookie
        self._host_names = frozenset(name.lower() for name in host_names)
        self._is_tls = is_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Neither websockets nor lifespan: the connection is closed.
        answer = self._with_headers(scope, send)
        headers = Headers(scope=scope)
        if not is_own_host(headers.get("host", ""), self._host_names):
            refusal = PlainTextResponse("this console is not known by that host name\n", 421)
            await refusal(scope, receive, answer)
            return
        response = self._admit(scope, headers)
        await (response or self._app)(scope, receive, answer)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        is_static = scope["path"].startswith("/static/")

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "max-age=300" if is_static else "no-store"
            await send(message)

        return answer

    # Who it is

    def _admit(self, scope: Scope, headers: Headers) -> Response | None:
        """None to go on, or the answer to whoever may not."""
        address = scope["client"][0] if scope.get("client") else ""
        try:
            caller, response = self._identify(scope, headers, address)
        except TooManyFailures:
            return _refusal(scope, 429, "too many wrong tokens or passwords: wait a minute")
        if response is not None:
            return response
        scope.setdefault("state", {})["caller"] = caller
        path = scope["path"]
        if is_open_path(path):
            return None
        if caller.role is Role.NOBODY:
            return self._stranger(scope)
        if scope["method"] not in _SAFE_METHODS and not self._is_own(scope, headers, caller):
            self._audit.note(caller.account, address, "request", path, "refused: foreign origin")
            return _refusal(scope, 403, "the request did not come from a page of this console")
        return None

    def _identify(
        self, scope: Scope, headers: Headers, address: str
    ) -> tuple[Caller, Response | None]:
        bearer = headers.get("authorization", "")
        if bearer.lower().startswith("bearer "):
            role = self._access.role_of_token(bearer[7:].strip(), address)
            return Caller(role, f"token ({role.text})", address), None
        session = self._access.session(HTTPConnection(scope).cookies.get(self._cookie))
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if "token" in query and scope["method"] == "GET":
            return self._trade(scope, query, address)
        if session is None and self._access.is_open and not scope["path"].startswith("/static/"):
            session = self._access.open_session(Role.ADMIN, "anybody")
            scope.setdefault("state", {})["new_session"] = session
        if session is None:
            return Caller(Role.NOBODY, "", address), None
        return Caller(session.role, session.account, address, session), None

    def _trade(
        self, scope: Scope, query: dict[str, str], address: str
    ) -> tuple[Caller, Response | None]:
        """A token in the address for a session, and the same page without the token."""
        role = self._access.role_of_token(query.pop("token"), address)
        nobody = Caller(Role.NOBODY, "", address)
        if role is Role.NOBODY:
            self._audit.note("", address, "login", "token", "refused: wrong token")
            return nobody, RedirectResponse("/login?failed=token", 303)
        session = self._access.open_session(role, f"token ({role.text})")
        self._audit.note(session.account, address, "login", "token", "done")
        rest = f"?{urlencode(query)}" if query else ""
        place = "/" + quote(scope["path"].lstrip("/"))  # With two slashes it is another server.
        response = RedirectResponse(place + rest, 303)
        self.give_cookie(response, session)
        return nobody, response

    def give_cookie(self, response: Response, session: Session) -> None:
        response.set_cookie(
            self._cookie, session.key, httponly=True, samesite="strict", secure=self._is_tls,
            path="/",
        )  # fmt: skip

    def take_cookie(self, response: Response) -> None:
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="strict")

    def _stranger(self, scope: Scope) -> Response:
        if scope["path"].startswith(("/api", "/live")):
            return _refusal(scope, 401, "log in, or send Authorization: Bearer TOKEN")
        target, query = scope["path"], scope["query_string"].decode("latin-1")
        if scope["method"] != "GET" or target.startswith(_NO_PLACE_TO_RETURN):
            target, query = "/", ""
        place = quote(target) + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?{urlencode({'next': place})}", 303)

    def _is_own(self, scope: Scope, headers: Headers, caller: Caller) -> bool:
        """A change by a browser comes from our own page and has its secret; see `forms.py` for
        the secret of forms, which is in the body."""
        if caller.session is None:
            return True  # A bearer token: no browser sends one by itself.
        scheme = "https" if self._is_tls else "http"
        if not is_own_origin(headers.get("origin"), headers.get("host", ""), scheme):
            return False
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        if scope["path"].startswith("/api"):
            return is_right_csrf(caller.session, headers.get("x-csrf-token", ""))
        return True


def is_open_path(path: str) -> bool:
    """What a stranger may ask for: the way in, its colours and its language."""
    return path in ("/login", "/prefer") or path.startswith("/static/")


def _refusal(scope: Scope, status: int, text: str) -> Response:
    if scope["path"].startswith("/api"):
        body = json.dumps({"error": text}).encode()
        return Response(body, status, media_type="application/json")
    return PlainTextResponse(text + "\n", status)
