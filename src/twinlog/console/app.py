"""The application: operations, pages, forms, streams and the API behind one door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from twinlog.console import api, pages
from twinlog.console.access import Access, Role
from twinlog.console.audit import ConsoleAudit
from twinlog.console.door import Door
from twinlog.console.forms import Forms
from twinlog.console.live import Live
from twinlog.console.operations import Context, Table
from twinlog.console.shell import Shell, caller_of
from twinlog.console.views import cluster, failover, groups, messages, servers, topics


@dataclass(frozen=True, slots=True)
class Application:
    """What a server runs, and what it stops first when it ends."""

    asgi: ASGIApp
    live: Live
    shell: Shell


def operations() -> Table:
    """All operations, by name."""
    table = Table()
    for view in (cluster, failover, topics, groups, messages, servers):
        table.add(*view.OPERATIONS)
    return table


def build_app(
    context: Context,
    access: Access,
    *,
    cookie: str,
    host_names: Iterable[str] = (),
    is_tls: bool = False,
) -> Application:
    audit = ConsoleAudit(context.clock, context.audit_lines)
    shell = Shell(context, access, audit, operations(), _version())
    live = Live(shell)
    routes: list[Route | Mount] = [
        *pages.routes(shell),
        *Forms(shell).routes(),
        *live.routes(),
        *api.routes(shell),
        Mount("/static", StaticFiles(packages=[("twinlog.console", "static")])),
    ]
    inner = Starlette(
        routes=routes,
        exception_handlers={
            404: _missing(shell),
            405: _wrong_method(shell, routes),
            Exception: _fault(shell),
        },
    )
    shell.door = Door(inner, access, audit, cookie=cookie, host_names=host_names, is_tls=is_tls)
    return Application(shell.door, live, shell)


Handler = Callable[[Request, Exception], Awaitable[Response]]


def _missing(shell: Shell) -> Handler:
    async def handler(request: Request, error: Exception) -> Response:
        is_api = request.url.path.startswith("/api")
        return _answer(shell, request, f"there is no such {'resource' if is_api else 'page'}", 404)

    return handler


def _wrong_method(shell: Shell, routes: list[Route | Mount]) -> Handler:
    """Says which methods the path has: each of them may be another route."""

    async def handler(request: Request, error: Exception) -> Response:
        known = {
            method
            for route in routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
        response = _answer(shell, request, "this method is not for this path", 405)
        response.headers["Allow"] = ", ".join(sorted(known))
        return response

    return handler


def _fault(shell: Shell) -> Handler:
    """A fault of ours: the trace is in the log, and who asked learns that it is."""

    async def handler(request: Request, error: Exception) -> Response:
        return _answer(shell, request, "the console has a fault; its log says more", 500)

    return handler


def _answer(shell: Shell, request: Request, text: str, status: int) -> Response:
    """JSON from the API, a page elsewhere; nothing but the text to whoever is nobody."""
    if request.url.path.startswith("/api"):
        return api.answer({"error": text}, status)
    if caller_of(request).role is Role.NOBODY:
        return PlainTextResponse(text + "\n", status)
    return shell.page(request, "problem.html", {"error": text, "back": "/"}, status)


def _version() -> str:
    try:
        return version("twinlog")
    except PackageNotFoundError:
        return "unknown"
