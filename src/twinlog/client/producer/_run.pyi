"""What `send_many` packs, compiled: `runs.py` and `outgoing.py` have the Python forms."""

from collections.abc import Iterable
from typing import Any

from twinlog.client.message import Message
from twinlog.message.ids import UniqueIdGenerator

def pack_run(
    messages: list[Message],
    start: int,
    unique_ids: UniqueIdGenerator,
    size_room: int,
    count_room: int,
    body_size_max: int,
) -> tuple[bytes, list[str]] | None: ...
def receipts(
    status: Any, queue: Any, ids: list[str], places: Iterable[int], offset_ids: list[str]
) -> list[Any]: ...
