"""The JSON object in a request's body, read once: access rule and handler get the same object."""

from __future__ import annotations

from typing import Any

from twinlog.remoting import fastjson
from twinlog.remoting.command import Request
from twinlog.remoting.errors import CommandError


class _Known:
    """Marks a body that was read here. No header of a peer can hold one."""

    __slots__ = ("value",)

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value


def read_body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        CommandError: it is not JSON, or not an object; answered with code 1.
    """
    known = request.read_body
    if isinstance(known, _Known):
        return known.value
    try:
        value = fastjson.loads_request(request.body)
    except ValueError as error:
        raise CommandError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CommandError("the body is not a JSON object")
    request.read_body = _Known(value)
    return value


def members(value: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a body; an absent list is empty.

    Raises:
        CommandError: it is no list, or something in it is no object.
    """
    items = value.get(name)
    if items is None:
        return []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise CommandError(f"{name} in the body is not a list of objects")
    return items


def text(value: dict[str, Any], name: str) -> str:
    """A member as text; an absent one is empty."""
    return str(value.get(name) or "")
