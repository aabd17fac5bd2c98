"""`twinlog ha forget`: a master whose counted slaves never return takes sends again."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from support.command_line import Result, twinlog
from support.ha_load import send_once
from support.processes import process_group
from support.twinlog_servers import TwinlogBroker, start_twinlog_broker

pytestmark = pytest.mark.timeout(240)
MISSING = 1000


def mark_of(broker: TwinlogBroker) -> Path:
    return broker.store / "twinlog" / "confirmed.mark"


def confirm(broker: TwinlogBroker, offset: int) -> None:
    """As if slaves had acknowledged the log up to there, and the end was lost with the power."""
    number = offset.to_bytes(8, "big")
    slot = number + crc32(number).to_bytes(4, "big")
    mark_of(broker).write_bytes(slot.ljust(4096, b"\0") * 3)


def forget(broker: TwinlogBroker, *options: object) -> Result:
    return twinlog("ha", "forget", "-c", broker.directory / "broker.conf", *options)


def test_what_no_replica_has_is_given_up_by_who_types_the_name(tmp_path: Path) -> None:
    with process_group() as group:
        broker = start_twinlog_broker(
            tmp_path, brokerName="broker-a", brokerRole="SYNC_MASTER",
            mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000,
        )  # fmt: skip
        group.add(broker)
        assert [send_once(broker.address, b"m%d" % n).code for n in range(3)] == [11] * 3
        assert broker.stop() == 0
        end = forget(broker, "--dry-run", "-o", "json").ok().json["log_end"]
        assert end > 0
        confirm(broker, end + MISSING)
        waiting = TwinlogBroker.start_as_it_is(broker)
        group.add(waiting)
        assert send_once(broker.address, b"refused").code == 14
        in_use = forget(broker, "--force", "broker-a")
        assert (in_use.code, "stop the broker first" in in_use.err) == (1, True)
        assert waiting.stop() == 0
        before = mark_of(broker).read_bytes()
        dry = forget(broker, "--dry-run", "-o", "json").ok().json
        assert (dry["missing_bytes"], dry["log_end"], dry["moved_to"]) == (MISSING, end, None)
        assert forget(broker, "--force", "broker-b").code == 2
        undecided = forget(broker)
        assert undecided.code == 1
        assert f"{MISSING} bytes that were acknowledged are lost" in undecided.out
        assert "--force broker-a" in undecided.err
        assert mark_of(broker).read_bytes() == before
        done = forget(broker, "--force", "broker-a", "-o", "json").ok().json
        assert (Path(done["moved_to"]) / "confirmed.mark").read_bytes() == before
        again = TwinlogBroker.start_as_it_is(broker)
        group.add(again)
        assert send_once(broker.address, b"taken").code == 11
        assert again.stop() == 0
        assert forget(broker, "--dry-run").code == 0


def test_a_store_that_is_not_there_and_a_file_that_says_nonsense(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=broker-a\nstorePathRootDir={tmp_path / 'none'}\n")
    assert twinlog("ha", "forget", "-c", conf, "--dry-run").code == 3
    conf.write_text("listenPort=many\n")
    assert twinlog("ha", "forget", "-c", conf, "--dry-run").code == 2
