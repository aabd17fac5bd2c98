"""The part of JSON Schema that our descriptions use, checked without a library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def faults(
    schema: dict[str, Any], value: Any, root: dict[str, Any], where: str = "$"
) -> Iterator[str]:
    """What is wrong with a value. `root` holds what `$ref` names."""
    if "$ref" in schema:
        schema = root["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for key in ("anyOf", "oneOf"):
        if key in schema and all(any(faults(s, value, root)) for s in schema[key]):
            yield f"{where}: fits none of {len(schema[key])}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    kind = schema.get("type")
    if kind is not None and not _is_a(value, kind):
        yield f"{where}: {value!r} is no {kind}"
        return
    if isinstance(value, dict):
        yield from _object(schema, value, root, where)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from faults(schema["items"], item, root, f"{where}[{index}]")


def _is_a(value: Any, kind: str) -> bool:
    is_number = kind in ("integer", "number")
    return isinstance(value, _TYPES[kind]) and not (is_number and isinstance(value, bool))


def _object(
    schema: dict[str, Any], value: dict[str, Any], root: dict[str, Any], where: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    yield from (f"{where}: no {name}" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        if name in known:
            yield from faults(known[name], item, root, f"{where}.{name}")
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from faults(schema["additionalProperties"], item, root, f"{where}.{name}")
        elif known:
            yield f"{where}: {name} is not described"
