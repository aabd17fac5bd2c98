"""The pages: which operation each shows, with which template."""

from __future__ import annotations

import base64
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
    "/topics": ("topics", "topics.html"),
    "/topics/{topic}": ("topic", "topic.html"),
    "/groups": ("groups", "groups.html"),
    "/groups/{group}": ("group", "group.html"),
    "/messages": ("messages", "messages.html"),
    "/messages/{id}": ("message", "message.html"),
    "/dead-letters": ("dead-letters", "dead_letters.html"),
    "/dead-letters/{group}": ("letters", "letters.html"),
    "/transactions": ("transactions", "transactions.html"),
    "/delayed": ("delayed", "delayed.html"),
    "/connections": ("connections", "connections.html"),
    "/configuration": ("configuration", "configuration.html"),
    "/rules": ("rules", "rules.html"),
    "/lab": ("lab", "lab.html"),
    "/audit": ("audit", "audit.html"),
}


def routes(shell: Shell) -> list[Route]:
    return [
        Route("/tail/{topic}", _tail(shell), methods=["GET"]),
        Route("/messages/{id}/body", _download(shell), methods=["GET"]),
        *(
            Route(path, _page(shell, operation, template), methods=["GET"])
            for path, (operation, template) in PAGES.items()
        ),
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


def _tail(shell: Shell) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        topic = request.path_params["topic"]
        return shell.page(request, "tail.html", {"topic": topic})

    return endpoint


def _download(shell: Shell) -> Callable[[Request], Awaitable[Response]]:
    """The body as it is. Whatever it holds, the browser stores it and does not open it."""

    async def endpoint(request: Request) -> Response:
        given: dict[str, Any] = dict(request.query_params) | request.path_params
        try:
            view = await shell.call("message", given)
        except KNOWN_ERRORS as error:
            values = {"error": str(error), "back": "/messages"}
            return shell.page(request, "problem.html", values, status_of(error))
        name = "".join(c for c in view.row.message_id if c.isascii() and c.isalnum()) or "message"
        headers = {"Content-Disposition": f'attachment; filename="{name}.bin"'}
        body = base64.b64decode(view.body)
        return Response(body, headers=headers, media_type="application/octet-stream")

    return endpoint
