"""Every record that Apache RocketMQ 4.9.7 wrote: decoded, and encoded again from its fields."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from tests.support.stores import packed_host, stored_properties

from twinlog.message.model import PutMessage
from twinlog.message.properties import decode_properties
from twinlog.message.record import ScanStop, blank_record, decode_record, encode_record, scan

VECTORS = Path(__file__).parents[2] / "vectors"
SEGMENT_SIZE = 65536


def _segments():
    directory = VECTORS / "store" / "commitlog"
    return {
        int(path.name): path.read_bytes().ljust(SEGMENT_SIZE, b"\0")
        for path in sorted(directory.iterdir())
    }


def _expected():
    lines = (VECTORS / "expected" / "commitlog.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


SEGMENTS = _segments()
EXPECTED = _expected()
MESSAGES = [entry for entry in EXPECTED if entry["kind"] == "message"]
BLANKS = [entry for entry in EXPECTED if entry["kind"] == "blank"]


def _stored(entry, size):
    segment = entry["physicalOffset"] // SEGMENT_SIZE * SEGMENT_SIZE
    start = entry["physicalOffset"] - segment
    return SEGMENTS[segment][start : start + size]


def test_vectors_are_all_there():
    assert len(MESSAGES) == 568
    assert len(BLANKS) == 8
    assert len(SEGMENTS) == 9


def _check_values(record, entry):
    assert record.total_size == entry["totalSize"]
    assert record.magic == entry["magic"]
    assert record.body_crc == entry["bodyCRC"]
    assert record.queue_id == entry["queueId"]
    assert record.flag == entry["flag"]
    assert record.queue_offset == entry["queueOffset"]
    assert record.physical_offset == entry["physicalOffset"]
    assert record.sys_flag == entry["sysFlag"]
    assert record.born_timestamp == entry["bornTimestamp"]
    assert record.born_host == packed_host(entry["bornHost"])
    assert record.store_timestamp == entry["storeTimestamp"]
    assert record.store_host == packed_host(entry["storeHost"])
    assert record.reconsume_times == entry["reconsumeTimes"]
    assert record.prepared_transaction_offset == entry["preparedTransactionOffset"]
    assert record.topic == entry["topic"]
    assert record.property_map == entry["properties"]
    assert record.message_id == entry["msgId"]
    assert len(record.body) == entry["bodyLength"]
    if "body" in entry:
        assert record.body == base64.b64decode(entry["body"])
    else:
        assert hashlib.sha256(record.body).hexdigest() == entry["bodySha256"]


def test_every_record_decodes_to_the_expected_values():
    for entry in MESSAGES:
        _check_values(decode_record(_stored(entry, entry["totalSize"])), entry)


def _message(entry, stored):
    # Long bodies are known by their hash only; the test above shows that it is the right one.
    body = base64.b64decode(entry["body"]) if "body" in entry else decode_record(stored).body
    return PutMessage(
        topic=entry["topic"],
        queue_id=entry["queueId"],
        body=body,
        properties=stored_properties(entry),
        flag=entry["flag"],
        # The address-family bits follow from the hosts: they are not taken from the caller.
        sys_flag=entry["sysFlag"] ^ 0x30,
        born_timestamp=entry["bornTimestamp"],
        born_host=packed_host(entry["bornHost"]),
        store_host=packed_host(entry["storeHost"]),
        reconsume_times=entry["reconsumeTimes"],
        prepared_transaction_offset=entry["preparedTransactionOffset"],
    )


def test_every_record_encoded_from_its_fields_is_byte_identical():
    for entry in MESSAGES:
        stored = _stored(entry, entry["totalSize"])
        message = _message(entry, stored)
        encoded = encode_record(
            message, entry["queueOffset"], entry["physicalOffset"], entry["storeTimestamp"]
        )
        assert encoded == stored, entry["physicalOffset"]
        assert decode_properties(message.properties) == entry["properties"]


def test_every_blank_record_is_byte_identical():
    for entry in BLANKS:
        assert blank_record(entry["totalSize"]) == _stored(entry, 8)


@pytest.mark.parametrize("start", sorted(SEGMENTS))
def test_scan_finds_every_record_of_a_segment(start):
    result = scan(SEGMENTS[start], 0, start)
    inside = [e for e in MESSAGES if start <= e["physicalOffset"] < start + SEGMENT_SIZE]
    names = [
        "physicalOffset",
        "totalSize",
        "queueId",
        "queueOffset",
        "sysFlag",
        "storeTimestamp",
        "topic",
    ]
    assert [entry[:7] for entry in result.entries] == [
        tuple(entry[name] for name in names) for entry in inside
    ]
    assert [decode_properties(entry[7]) for entry in result.entries] == [
        entry["properties"] for entry in inside
    ]
    is_last = start == max(SEGMENTS)
    assert result.stop is (ScanStop.EMPTY if is_last else ScanStop.BLANK), result.reason
    if not is_last:
        assert result.position + result.size == SEGMENT_SIZE
