"""Where a frame of the twin dialect is cut: at the end of a record. Pure."""

from __future__ import annotations

from twinlog.message.layout import MAGIC_AT, MAGIC_V1, PHYSICAL_OFFSET_AT, PLACE_SIZE

_MAGIC_START = MAGIC_V1.to_bytes(4, "big")[:3]  # Of both kinds of records.


def last_record_boundary(body: bytes, offset: int, *, is_file_end: bool) -> int:
    """Bytes of `body`, the log from `offset` on, up to the last record that is whole in it.

    The whole body when it reaches the end of its file: blank filler is not looked at. 0 when no
    header is found or not one record is whole: such a record is sent in pieces. Looked for from the
    end: walking over all records would cost more than sending them.
    """
    if is_file_end:
        return len(body)
    at = len(body)
    while (at := body.rfind(_MAGIC_START, MAGIC_AT, at)) >= 0:
        start = at - MAGIC_AT
        stored_at = body[start + PHYSICAL_OFFSET_AT : start + PLACE_SIZE]
        if len(stored_at) == 8 and int.from_bytes(stored_at, "big") == offset + start:
            end = start + int.from_bytes(body[start : start + 4], "big")
            return end if end <= len(body) else start
    return 0
