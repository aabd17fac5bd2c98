"""Captured commands decode and encode again to the same bytes; broken headers are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from support.doc_blocks import blocks_run_by
from twinlog.remoting import codec
from twinlog.remoting.codes import LanguageCode

FRAMES = Path(__file__).parents[2] / "vectors" / "frames"
INDEX = [json.loads(line) for line in (FRAMES / "frames.jsonl").read_text().splitlines()]
FILES = sorted(FRAMES.glob("*.bin"))


def test_all_captured_frames_are_there() -> None:
    assert len(INDEX) == 247
    assert len(FILES) == 473


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_captured_command_encodes_to_the_same_bytes(path: Path) -> None:
    frame = path.read_bytes()
    assert codec.encode_command(codec.decode_command(frame)) == frame


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_captured_command_survives_decoded_ext_fields(path: Path) -> None:
    frame = path.read_bytes()
    command = codec.decode_command(frame)
    command.ext()
    again = codec.decode_command(codec.encode_command(command))
    assert again.ext() == command.ext()
    assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
    assert (again.remark, again.body) == (command.remark, command.body)


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["name"])
def test_captured_command_decodes_to_the_indexed_header(entry: dict[str, object]) -> None:
    for side in ("request", "response"):
        path = FRAMES / f"{entry['name']}.{side}.bin"
        if not path.exists():
            continue
        command = codec.decode_command(path.read_bytes())
        expected = entry[f"{side}Header"]
        assert isinstance(expected, dict)
        assert command.code == expected["code"]
        assert command.opaque == expected["opaque"]
        assert command.flag == expected["flag"]
        assert command.version == expected["version"]
        assert command.remark == expected.get("remark")
        assert command.ext() == (expected.get("extFields") or {})
        assert len(command.body) == entry[f"{side}BodyLength"]
        assert command.language is LanguageCode.JAVA


def test_the_header_of_the_page_is_read_and_written_to_the_letter() -> None:
    (block,) = blocks_run_by("tests/unit/remoting/test_codec.py", "docs/WIRE.md")
    header = block.text.strip().encode()
    frame = struct.pack(">ii", 4 + len(header), len(header)) + header
    command = codec.decode_command(frame)
    assert (command.code, command.ext(), command.opaque) == (105, {"topic": "T"}, 1)
    assert codec.encode_command(command) == frame
