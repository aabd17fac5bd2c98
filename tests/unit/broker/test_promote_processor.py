"""What a replica says of its log: messages counted, bytes compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.local_brokers import Brokers
from twinlog.broker.processors.promote import count_messages, digest
from twinlog.message.crc import crc32
from twinlog.message.model import PutMessage
from twinlog.message.names import METADATA_TOPIC


@pytest.fixture
async def brokers(tmp_path: Path):  # type: ignore[no-untyped-def]
    found = Brokers(tmp_path)
    yield found
    await found.stop()


async def test_messages_are_counted_over_files_and_without_metadata(brokers: Brokers) -> None:
    broker = await brokers.start("one", mapped_file_size_commit_log=64 * 1024)
    host = bytes([127, 0, 0, 1, 0, 0, 0, 1])
    log = broker.store.commit_log
    places = []
    for number in range(120):
        topic = METADATA_TOPIC if number % 10 == 0 else "t"
        body = bytes(3000 if number % 7 == 0 else 10)
        result = broker.store.put(PutMessage(topic, 0, body, born_host=host, store_host=host))
        places.append((result.end_offset, topic))
        broker.store.write_pending()
    assert log.max_offset > 64 * 1024, "several files"
    assert await count_messages(log, log.min_offset) == (108, log.max_offset)
    for index in (0, 17, 60, 118):
        left = sum(topic == "t" for _, topic in places[index + 1 :])
        assert await count_messages(log, places[index][0]) == (left, log.max_offset)
    with pytest.raises(ValueError, match="no record"):
        await count_messages(log, places[3][0] + 3)


async def test_a_digest_is_of_the_bytes_between_two_places(brokers: Brokers) -> None:
    broker = await brokers.start("one")
    for number in range(20):
        await brokers.send(broker, b"%d" % number * 100)
    log = broker.store.commit_log
    data = log.read(0, log.max_offset)
    assert digest(log, 0, log.max_offset) == crc32(data)
    assert digest(log, 100, 500) == crc32(data[100:500])
    for start, end in ((-1, 10), (10, 5), (0, log.max_offset + 1)):
        with pytest.raises(ValueError, match="of this log"):
            digest(log, start, end)
