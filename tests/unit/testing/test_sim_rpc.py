"""Requests of the simulated clients are what a JSON library would write."""

from __future__ import annotations

import json

import pytest

from twinlog.testing.group.rpc import encode_request


@pytest.mark.parametrize("ext", [{}, {"a": "b", 'ü"\\': "\x01€😀"}])
def test_a_request_is_the_json_that_the_library_writes(ext: dict[str, str]) -> None:
    frame = encode_request(7, 310, ext, b"body")
    fields = {"code": 310, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 7}
    wanted = json.dumps({**fields, "version": 407, "serializeTypeCurrentRPC": "JSON"}).encode()
    assert frame[8:] == wanted + b"body"
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == len(wanted)
