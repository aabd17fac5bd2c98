"""The pages: which operation each shows, with which template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from twinlog.console.shell import KNOWN_ERRORS, Shell, status_of

# Path -> (operation, template). Parameters come from the path and the query.
PAGES = {
    "/": ("replication", "replication.html"),
    "/overview": ("overview", "overview.html"),
}


def routes(shell: Shell) -> list[Route]:
    return [
        Route(path, _page(shell, operation, template), methods=["GET"])
        for path, (operation, template) in PAGES.items()
    ]


def _page(shell: Shell, operation: str, template: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        given: dict[str, Any] = dict(request.query_params) | request.path_params
        try:
            view = await shell.call(operation, given)
        except KNOWN_ERRORS as error:
            values = {"error": str(error), "back": "/"}
            return shell.page(request, "problem.html", values, status_of(error))
        return shell.page(request, template, {"view": view, "given": given, "error": ""})

    return endpoint
