"""Changes by forms: POST /do/OPERATION, asked for once more when they destroy something.

Works without JavaScript: a form that needs an answer first is shown as a page with what it will do,
and the same fields, and one more that says yes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from twinlog.console import wording
from twinlog.console.access import Role, TooManyFailures, is_right_csrf
from twinlog.console.door import Caller
from twinlog.console.operations import BadParameters, Operation, Preview, Refused, read_params
from twinlog.console.shell import KNOWN_ERRORS, THEMES, Shell, caller_of, read_form, status_of

_OWN_FIELDS = ("csrf", "next", "confirmed", "once")
_SENT_MAX = 1_000


class _Sent:
    """A form that was sent: what became of it, for whoever sends the same one again."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.outcome: Any = None


class Forms:
    """Handlers of what browsers post."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._sent: OrderedDict[tuple[str, ...], _Sent] = OrderedDict()

    def routes(self) -> list[Route]:
        return [
            Route("/do/{name}", self.do, methods=["POST"]),
            Route("/login", self.login_page, methods=["GET"]),
            Route("/login", self.login, methods=["POST"]),
            Route("/logout", self.logout, methods=["POST"]),
            Route("/prefer", self.prefer, methods=["GET"]),
        ]

    # Changes

    async def do(self, request: Request) -> Response:
        operation = self._shell.table.rows.get(request.path_params["name"])
        if operation is None or not operation.is_change:
            return self._problem(request, Refused("there is no such operation", 404))
        try:
            fields = await self._own_form(request)
            return await self._do(request, operation, fields)
        except KNOWN_ERRORS as error:
            return self._problem(request, error)

    async def _own_form(self, request: Request) -> dict[str, Any]:
        fields = await read_form(request)
        session = caller_of(request).session
        if session is not None and not is_right_csrf(session, str(fields.get("csrf", ""))):
            caller = caller_of(request)
            self._shell.audit.note(
                caller.account, caller.address, "form", request.url.path, "refused: no CSRF token"
            )
            raise Refused(
                "the form does not belong to this session: go back, reload and try again", 403
            )
        return fields

    async def _do(
        self, request: Request, operation: Operation, fields: Mapping[str, Any]
    ) -> Response:
        given = {name: value for name, value in fields.items() if name not in _OWN_FIELDS}
        params = read_params(operation.params, _lists(operation, given))
        caller = caller_of(request)
        target = own_path(str(fields.get("next", "/")))
        if operation.asks and fields.get("confirmed") != "yes" and caller.role >= operation.role:
            preview = Preview()
            if operation.preview is not None:
                preview = await operation.preview(self._shell.context, params)
            values = {"operation": operation, "fields": given, "preview": preview, "next": target}
            if preview.lines or not operation.asks_if_told:
                return self._shell.page(request, "confirm.html", values)
        result = await self._once(
            operation, fields, caller, lambda: self._shell.change(operation, params, caller)
        )
        self._shell.flash(caller, result.text)
        return RedirectResponse(target, 303)

    async def _once(
        self,
        operation: Operation,
        fields: Mapping[str, Any],
        caller: Caller,
        change: Callable[[], Awaitable[Any]],
    ) -> Any:
        """A page's form with the same values is carried out once, however often it is clicked."""
        if caller.session is None or "once" not in fields:
            return await change()
        key = (caller.session.key, operation.name, *(f"{k}={v}" for k, v in sorted(fields.items())))
        sent = self._sent.setdefault(key, _Sent())
        if len(self._sent) > _SENT_MAX:
            self._sent.popitem(last=False)
        async with sent.turn:
            if sent.outcome is not None:
                self._shell.flash(caller, "The form was sent twice; it was carried out once.")
                return sent.outcome
            try:
                sent.outcome = await change()
            except BaseException:
                self._sent.pop(key, None)  # What failed may be tried again.
                raise
        return sent.outcome

    def _problem(self, request: Request, error: Exception) -> Response:
        values = {"error": str(error), "back": own_path(request.headers.get("referer", "/"))}
        return self._shell.page(request, "problem.html", values, status_of(error))

    # Coming and going

    async def login_page(self, request: Request) -> Response:
        values = {
            "failed": request.query_params.get("failed", ""),
            "next": own_path(request.query_params.get("next", "/")),
        }
        return self._shell.page(request, "login.html", values, 401 if values["failed"] else 200)

    async def login(self, request: Request) -> Response:
        shell, address = self._shell, caller_of(request).address
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return self._problem(request, Refused("log in on the page of this console", 403))
        try:
            fields = await read_form(request)
            role, account = self._prove(fields, address)
        except TooManyFailures:
            return self._problem(request, Refused("too many failures: wait a minute", 429))
        except (BadParameters, ValueError) as error:
            return self._problem(request, error)
        if role is Role.NOBODY:
            shell.audit.note("", address, "login", account, "refused: wrong token or password")
            values = {"failed": "login", "next": own_path(str(fields.get("next", "/")))}
            return shell.page(request, "login.html", values, 401)
        session = shell.access.open_session(role, account)
        shell.audit.note(account, address, "login", role.text, "done")
        response = RedirectResponse(own_path(str(fields.get("next", "/"))), 303)
        assert shell.door is not None
        shell.door.give_cookie(response, session)
        return response

    def _prove(self, fields: Mapping[str, Any], address: str) -> tuple[Role, str]:
        token = str(fields.get("token", "")).strip()
        if token:
            role = self._shell.access.role_of_token(token, address)
            return role, f"token ({role.text})"
        name = str(fields.get("access_key", ""))
        secret = str(fields.get("secret_key", ""))
        return self._shell.access.role_of_account(name, secret, address), name

    async def logout(self, request: Request) -> Response:
        try:
            await self._own_form(request)
        except KNOWN_ERRORS as error:
            return self._problem(request, error)
        session = caller_of(request).session
        response = RedirectResponse("/login", 303)
        if session is not None and self._shell.door is not None:
            self._shell.access.close_session(session.key)
            self._shell.flashes.pop(session.key, None)
            self._shell.door.take_cookie(response)
        return response

    async def prefer(self, request: Request) -> Response:
        """Language and colours: nothing of value, so a link may set them."""
        response = RedirectResponse(own_path(request.query_params.get("next", "/")), 303)
        for name, known in (("lang", wording.LANGUAGES), ("theme", THEMES)):
            value = request.query_params.get(name, "")
            if value in known:
                response.set_cookie(
                    f"twinlog_{name}", value, max_age=31_536_000, httponly=True, samesite="strict"
                )
        return response


def own_path(text: str) -> str:
    """A path of this console; anything that leads elsewhere becomes the first page."""
    if text.startswith(("http://", "https://")):
        text = "/" + text.partition("://")[2].partition("/")[2]
    is_plain = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_plain and text.isprintable() and "\\" not in text else "/"


def _lists(operation: Operation, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A field that the operation takes as a list is one also when it occurs once."""
    kinds = {name: str(kind) for name, kind in operation.params.__annotations__.items()}
    return {
        name: [value]
        if kinds.get(name, "").startswith("list") and isinstance(value, str)
        else value
        for name, value in fields.items()
    }
