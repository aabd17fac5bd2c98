"""What the handlers of pages, forms and API share: templates, parameters, errors as answers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from twinlog.client import errors
from twinlog.console import picture, wording
from twinlog.console.access import Access, Role
from twinlog.console.audit import ConsoleAudit
from twinlog.console.directory import only_looks
from twinlog.console.door import Caller, Door
from twinlog.console.operations import (
    BadParameters,
    Context,
    Operation,
    Refused,
    Table,
    read_params,
    resource_of,
)

FORM_SIZE_MAX = 8 * 1024 * 1024
THEMES = ("auto", "light", "dark")


class TooLarge(ValueError):
    """The body of a request is larger than any form of ours."""


@dataclass(slots=True)
class Shell:
    """Everything that a handler needs; one for the application."""

    context: Context
    access: Access
    audit: ConsoleAudit
    table: Table
    version: str
    door: Door | None = None
    flashes: dict[str, list[str]] = field(default_factory=dict)
    templates: jinja2.Environment = field(default_factory=lambda: _environment())

    async def call(self, name: str, values: Mapping[str, Any] | None = None) -> Any:
        """An operation that only looks. What a query holds besides is the page's own."""
        operation = self.table.rows[name]
        assert not operation.is_change
        known = operation.params.__struct_fields__
        given = {key: value for key, value in (values or {}).items() if key in known}
        return await self.look(operation, read_params(operation.params, given))

    async def look(self, operation: Operation, params: Any) -> Any:
        """Whoever only looks waits for nobody long."""
        mark = only_looks.set(True)
        try:
            return await operation.run(self.context, params)
        finally:
            only_looks.reset(mark)

    async def change(self, operation: Operation, params: Any, caller: Caller) -> Any:
        """An operation that changes something: who may, and a line in the audit log."""
        self.check_role(operation, params, caller)
        about = resource_of(params)
        try:
            async with self.context.turn_of(operation, params):
                result = await operation.run(self.context, params)
        except Exception as error:
            self.audit.note(
                caller.account, caller.address, operation.name, about, f"failed: {error}"
            )
            raise
        self.audit.note(caller.account, caller.address, operation.name, about, "done")
        return result

    def check_role(self, operation: Operation, params: Any, caller: Caller) -> None:
        """Raise Refused for whoever may not do this, and note it."""
        if caller.role >= operation.role:
            return
        self.audit.note(
            caller.account, caller.address, operation.name, resource_of(params),
            f"refused: needs the role {operation.role.text}",
        )  # fmt: skip
        raise Refused(f"this needs the role {operation.role.text}", 403)

    # Pages

    def page(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> Response:
        caller = caller_of(request)
        flashes: list[str] = []
        if caller.session is not None:
            flashes = self.flashes.pop(caller.session.key, [])
        text = self.render(request, template, {**values, "flashes": flashes})
        response = HTMLResponse(text, status)
        new = getattr(request.state, "new_session", None)
        if new is not None and self.door is not None:
            self.door.give_cookie(response, new)
        return response

    def render(self, request: Request, template: str, values: Mapping[str, Any]) -> str:
        caller = caller_of(request)
        language = wording.choose_language(
            request.cookies.get("twinlog_lang"), request.headers.get("accept-language", "")
        )
        theme = request.cookies.get("twinlog_theme", "auto")
        return self.templates.get_template(template).render(
            _=wording.translator(language),
            lang=language,
            theme=theme if theme in THEMES else "auto",
            caller=caller,
            is_admin=caller.role is Role.ADMIN,
            csrf=caller.session.csrf if caller.session is not None else "",
            path=request.url.path,
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            name_server=self.context.name_server,
            has_lab=self.context.lab is not None,
            now_ms=self.context.clock.now_ms(),
            version=self.version,
            name_server_error=self.context.watcher.snapshot.error,
            **values,
        )

    def flash(self, caller: Caller, text: str) -> None:
        """Shown once, on the next page of this session."""
        if caller.session is not None:
            self.flashes.setdefault(caller.session.key, []).append(text)


def caller_of(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("twinlog.console", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": wording.show_count,
        "bytes": wording.show_bytes,
        "span": wording.show_span,
        "moment": wording.show_time,
        "percent": wording.show_percent,
        "assignments": lambda pairs: ",".join(f"{name}={value}" for name, value in pairs.items()),
    }
    environment.globals |= {
        "lag_chart": picture.lag_chart,
        "event_places": picture.event_places,
        "languages": wording.LANGUAGES,
        "page_link": page_link,
        "once": lambda: secrets.token_urlsafe(9),
        "chart_width": picture.WIDTH,
        "chart_height": picture.HEIGHT,
    }
    return environment


def page_link(given: Mapping[str, Any], page: int) -> str:
    """The same list at another page."""
    return "?" + urlencode({**given, "page": page})


async def read_body(request: Request, limit: int = FORM_SIZE_MAX) -> bytes:
    """The whole body; raises TooLarge before more than `limit` bytes are kept."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge(f"the request is larger than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def read_form(request: Request) -> dict[str, Any]:
    """A form's fields; a field that occurs several times is a list."""
    body = await read_body(request)
    try:
        text = body.decode("utf-8")
        fields = parse_qs(
            text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=2000
        )
    except ValueError as error:
        raise BadParameters("the form cannot be read") from error
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def status_of(error: Exception) -> int:
    """The HTTP status for what went wrong."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, TooLarge):
        return 413
    if isinstance(error, BadParameters | errors.UsageError):
        return 400
    missing = (
        errors.TopicNotFoundError, errors.BrokerTopicNotFoundError, errors.QueryNotFoundError,
        errors.GroupNotFoundError, errors.ConsumerNotOnlineError,
    )  # fmt: skip
    if isinstance(error, missing):
        return 404
    if isinstance(error, errors.AccessDeniedError):
        return 403
    if isinstance(error, errors.BrokerBusyError | errors.ServiceNotAvailableError):
        return 503
    if isinstance(error, errors.BrokerError):
        return 409
    if isinstance(error, errors.TransportError | errors.RouteError | TimeoutError):
        return 503
    return 502


KNOWN_ERRORS = (errors.ClientError, BadParameters, Refused, TooLarge, TimeoutError)
