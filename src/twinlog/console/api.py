"""The HTTP API: each operation as JSON, and its description as OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from twinlog.console.operations import BadParameters, Operation, Preview, read_params
from twinlog.console.shell import KNOWN_ERRORS, Shell, caller_of, read_body, status_of

_JSON = "application/json"


def routes(shell: Shell) -> list[Route]:
    return [
        Route("/api/openapi.json", _description(shell), methods=["GET"]),
        *(
            Route(f"/api{row.path}", _endpoint(shell, row), methods=[row.method])
            for row in shell.table.rows.values()
        ),
    ]


def answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=_JSON)


def _endpoint(shell: Shell, row: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return answer(await _run(shell, row, request))
        except KNOWN_ERRORS as error:
            return answer({"error": str(error)}, status_of(error))

    return endpoint


async def _run(shell: Shell, row: Operation, request: Request) -> Any:
    values: dict[str, Any] = dict(request.query_params)
    is_dry = _is_dry(values)
    if row.method != "GET":
        values |= _json(await read_body(request))
    params = read_params(row.params, values | request.path_params)
    if not row.is_change:
        return await shell.look(row, params)
    if is_dry:
        if row.preview is None:
            raise BadParameters("this operation has no dry run")
        shell.check_role(row, params, caller_of(request))
        return await row.preview(shell.context, params)
    return await shell.change(row, params, caller_of(request))


def _is_dry(values: dict[str, Any]) -> bool:
    """Takes `dry_run` out. What is neither true nor false is refused: it must not be done by
    mistake."""
    if "dry_run" not in values:
        return False
    text = values.pop("dry_run")
    if text not in ("true", "false"):
        raise BadParameters(f"dry_run: true or false, not {text!r}")
    return bool(text == "true")


def _json(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadParameters(f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise BadParameters("the body is not a JSON object")
    return values


# The description


def _description(shell: Shell) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return answer(openapi(shell.table.rows.values(), shell.version))

    return endpoint


def openapi(rows: Iterable[Operation], version: str) -> dict[str, Any]:
    """OpenAPI 3.1 of all operations."""
    found = list(rows)
    kinds = [*dict.fromkeys(row.result for row in found), Preview]
    schemas, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    of = dict(zip([repr(kind) for kind in kinds], schemas, strict=True))
    paths: dict[str, Any] = {}
    for row in found:
        paths.setdefault(f"/api{row.path}", {})[row.method.lower()] = _operation(row, of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "twinlog console", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}


def _operation(row: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    in_path = [part[1:-1] for part in row.path.split("/") if part.startswith("{")]
    fields = {field.encode_name: field for field in msgspec.structs.fields(row.params)}
    shown = {
        name: field for name, field in fields.items() if name in in_path or row.method == "GET"
    }
    parameters = [
        _parameter(name, field, is_in_path=name in in_path) for name, field in shown.items()
    ]
    answer: dict[str, Any] = schemas[repr(row.result)]
    if row.preview is not None:
        parameters.append(_DRY_RUN)
        answer = {"oneOf": [answer, schemas[repr(Preview)]]}
    result: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "description": f"Needs the role {row.role.text}.",
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": {_JSON: {"schema": answer}}},
            "default": {"description": "What went wrong.", "content": {_JSON: {"schema": _ERROR}}},
        },
    }
    rest = {name: field for name, field in fields.items() if name not in shown}
    if rest:
        result["requestBody"] = _body(rest)
    return result


_DRY_RUN = {
    "name": "dry_run",
    "in": "query",
    "required": False,
    "description": "With true nothing is done: the answer says what would be.",
    "schema": {"type": "boolean"},
}


def _parameter(name: str, field: Any, *, is_in_path: bool) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path" if is_in_path else "query",
        "required": is_in_path or field.required,
        "schema": msgspec.json.schema(field.type),
    }


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are not in the path; any other is refused."""
    required = [name for name, field in fields.items() if field.required]
    schema = {
        "type": "object",
        "properties": {name: msgspec.json.schema(field.type) for name, field in fields.items()},
        "required": required,
        "additionalProperties": False,
    }
    return {"required": bool(required), "content": {_JSON: {"schema": schema}}}
