"""The application: operations, pages, forms, streams and the API behind one door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from twinlog.console import api, pages
from twinlog.console.access import Access
from twinlog.console.audit import ConsoleAudit
from twinlog.console.door import Door
from twinlog.console.forms import Forms
from twinlog.console.live import Live
from twinlog.console.operations import Context, Table
from twinlog.console.shell import Shell
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
    inner = Starlette(routes=routes, exception_handlers={404: _missing(shell)})
    shell.door = Door(inner, access, audit, cookie=cookie, host_names=host_names, is_tls=is_tls)
    return Application(shell.door, live, shell)


def _missing(shell: Shell) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        if request.url.path.startswith("/api"):
            return api.answer({"error": "there is no such resource"}, 404)
        values = {"error": "there is no such page", "back": "/"}
        return shell.page(request, "problem.html", values, 404)

    return handler


def _version() -> str:
    try:
        return version("twinlog")
    except PackageNotFoundError:
        return "unknown"
