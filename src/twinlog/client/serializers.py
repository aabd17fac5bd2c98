"""Bodies as values: what a producer makes of a value, and a consumer of a body.

    async with Producer("group", name_server=..., serializer=JSON) as producer:
        await producer.send_value("orders", {"id": 7}, keys=["7"])

    async with PullConsumer("group", name_server=..., serializer=JSON) as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            print(message.value["id"])

Bodies are bytes unless a serializer is given. One of your own needs two methods:
`dumps(value) -> bytes` and `loads(body) -> value`.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from twinlog.client.errors import InvalidMessageError


class Serializer(Protocol):
    """Turns values into bodies and back. Must raise when it cannot."""

    def dumps(self, value: Any) -> bytes:
        """The body for a value."""
        ...

    def loads(self, body: bytes) -> Any:
        """The value of a body."""
        ...


class JsonSerializer:
    """JSON in UTF-8, compact, with keys in the order that they have."""

    def dumps(self, value: Any) -> bytes:
        """The value as JSON."""
        try:
            # NaN and infinity are not JSON: what reads them in another language would fail.
            return json.dumps(
                value, ensure_ascii=False, separators=(",", ":"), allow_nan=False
            ).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidMessageError(f"the value cannot be written as JSON: {error}") from error

    def loads(self, body: bytes) -> Any:
        """The value in the body."""
        return json.loads(body)


JSON = JsonSerializer()
