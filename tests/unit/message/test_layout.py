"""The numbers of `layout.py` belong together, and the compiled parts have the same."""

from __future__ import annotations

import runpy
import struct
from pathlib import Path

import pytest

from twinlog.message import layout
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record

ROOT = Path(__file__).resolve().parents[3]
FIELDS = (
    "SIZE", "MAGIC", "BODY_CRC", "QUEUE_ID", "FLAG", "QUEUE_OFFSET", "PHYSICAL_OFFSET", "SYS_FLAG",
    "BORN_TIMESTAMP", "BORN_HOST", "STORE_TIMESTAMP", "STORE_HOST", "RECONSUME_TIMES",
    "PREPARED_OFFSET", "BODY_SIZE",
)  # fmt: skip


def test_the_places_of_fields_are_those_of_the_format() -> None:
    kinds = ("i", "I", "i", "i", "i", "q", "q", "i", "q", "8s", "q", "8s", "i", "q", "i")
    assert layout.head_format(8, 8) == ">" + "".join(kinds)
    places = [struct.calcsize(">" + "".join(kinds[:number])) for number in range(len(kinds))]
    assert places == [getattr(layout, f"{name}_AT") for name in FIELDS]
    assert struct.calcsize(layout.head_format(8, 8)) == layout.HEAD_SIZE


def test_sizes_are_those_of_the_formats() -> None:
    assert layout.SIZE_MAGIC.size == layout.BLANK_SIZE_MIN
    assert layout.ENTRY.size == layout.ENTRY_SIZE
    assert layout.MEMBER_HEAD.size == layout.MEMBER_HEAD_SIZE
    assert layout.INDEX_HEADER.size == layout.INDEX_HEADER_SIZE == layout.INDEX_COUNT_AT + 4
    assert layout.INDEX_ENTRY.size == layout.INDEX_ENTRY_SIZE == layout.INDEX_PREVIOUS_AT + 4
    middle = struct.calcsize(layout.middle_format(8, 20))
    assert layout.PLACE_SIZE + middle + 4 == struct.calcsize(layout.head_format(8, 20))


@pytest.mark.parametrize(("born", "store"), [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_the_smallest_record_has_the_smallest_size(born: int, store: int) -> None:
    message = PutMessage("t", 0, b"", b"", born_host=bytes(born), store_host=bytes(store))
    extra = born + store - 2 * layout.HOST_V4_SIZE
    assert len(encode_record(message, 0, 0, 0)) == layout.RECORD_SIZE_MIN + len("t") + extra


def test_the_constants_of_the_compiled_parts_are_current() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "compile.py"))
    assert tool["LAYOUT_PXD"].read_text() == tool["layout_text"](), "run tools/compile.py"
