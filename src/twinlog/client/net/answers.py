"""Bodies of answers. Apart from `calls`: a tool that only asks loads no codec of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from twinlog.client.errors import UnreadableAnswerError
from twinlog.client.queues import MessageQueue
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import queue_from_answer
from twinlog.remoting.bodies.offsets import by_queue
from twinlog.remoting.command import Request
from twinlog.runtime.numbers import number_of

_T = TypeVar("_T")


def json_object(answer: Request) -> dict[str, Any]:
    """The body of an answer that must be a JSON object."""
    try:
        data = fastjson.loads(answer.body)
    except ValueError as error:
        raise UnreadableAnswerError(f"the body of an answer is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise UnreadableAnswerError("the body of an answer is not a JSON object")
    return data


def body_as(answer: Request, wanted: type[_T]) -> _T:
    """The body of an answer as one of the structs in `remoting.bodies`; without one, the empty."""
    try:
        return fastjson.loads_as(answer.body or b"{}", wanted)
    except ValueError as error:
        text = f"the body of an answer does not have the form of {wanted.__name__}: {error}"
        raise UnreadableAnswerError(text) from error


def table_by_queue(table: Mapping[str, _T]) -> dict[MessageQueue, _T]:
    """A table of an answer whose keys are queues."""
    try:
        return by_queue(table)
    except ValueError as error:
        raise UnreadableAnswerError(str(error)) from error


def parse_offset_table(body: bytes) -> dict[MessageQueue, int]:
    """Both forms: a map with queues as keys (Java), or a list (C++)."""
    table = fastjson.loads(body).get("offsetTable") or {}
    if isinstance(table, list):
        return {queue_from_answer(item): number_of(item["offset"]) for item in table}
    return {
        queue_from_answer(fastjson.loads(key)): number_of(offset) for key, offset in table.items()
    }
