"""Frames of requests in both headers, made apart from the codec: what a foreign client may send."""

from __future__ import annotations

import json
import struct
from typing import Any

from twinlog.remoting.codec import binary_header

BINARY = 1 << 24  # In the header's size: how it is written.


def json_frame(code: int, fields: dict[str, Any], body: bytes, **changes: Any) -> bytes:
    """`changes` of members of the header; one that is `...` is left out."""
    head = {
        "code": code, "flag": 0, "language": "JAVA", "opaque": 7, "version": 399,
        "serializeTypeCurrentRPC": "JSON", "extFields": fields, **changes,
    }  # fmt: skip
    text = json.dumps({k: v for k, v in head.items() if v is not ...}, ensure_ascii=False).encode()
    return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body


def binary_frame(code: int, fields: dict[str, Any], body: bytes, **changes: Any) -> bytes:
    """RocketMQ's own header; a field that is None is left out."""
    head: dict[str, Any] = {"code": code, "opaque": 7, "flag": 0, "remark": None, **changes}
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    text = binary_header(head.pop("code"), **head, ext=texts)
    size = 4 + len(text) + len(body)
    return struct.pack(">ii", size, BINARY | len(text)) + text + body
