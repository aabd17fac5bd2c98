"""docs/ROCKETMQ-NAMES.md: what it names is there."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ROCKETMQ-NAMES.md").read_text()
ROWS = [
    cells
    for line in PAGE.splitlines()
    if line.startswith("| ")
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 4
    if cells[0] != "RocketMQ"
]
# The places that issue and articles name; each must be findable under RocketMQ's name.
MUST_HAVE = [
    "HAService",
    "AcceptSocketService",
    "GroupTransferService",
    "HAClient",
    "HAConnection",
    "ReadSocketService",
    "WriteSocketService",
    "SlaveSynchronize",
    "push2SlaveMaxOffset",
    "isSlaveOK",
    "ReputMessageService",
    "TransientStorePool",
    "notifyTransferSome",
    "WaitNotifyObject",
    "connectionCount",
    "connectionList",
    "slaveRequestOffset",
    "slaveAckOffset",
    "lastWriteOver",
    "currentReportedOffset",
    "isTimeToReportOffset",
    "reportSlaveMaxOffsetPlus",
    "dispatchPosition",
    "reallocateByteBuffer",
    "closeMaster",
    "handleHA",
    "submitReplicaRequest",
    "requestsRead",
    "requestsWrite",
    "isWaitStoreMsgOK",
    "SLAVE_NOT_AVAILABLE",
    "FLUSH_SLAVE_TIMEOUT",
    "haMasterAddress",
    "registerBroker",
    "haListenPort",
    "haSendHeartbeatInterval",
    "haHousekeepingInterval",
    "haTransferBatchSize",
    "haSlaveFallbehindMax",
    "slaveTimeout",
    "slaveReadEnable",
    "SelectMappedBufferResult",
    "MappedFile",
    "CommitLog",
    "ConsumeQueue",
    "IndexService",
    "StoreCheckpoint",
    "GroupCommitService",
    "FlushRealTimeService",
    "CleanCommitLogService",
    "RunningFlags",
    "ServiceThread",
    "CountDownLatch2",
    "thenCombine",
    "DLedger",
    "BrokerRole",
]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def module_of(name: str) -> tuple[ModuleType, list[str]]:
    """The longest part of a dotted name that is a module, and what is left."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            return importlib.import_module(".".join(["twinlog", *parts[:count]])), parts[count:]
        except ModuleNotFoundError:
            continue
    raise AssertionError(f"{name}: no such module")


def has(owner: object, name: str) -> bool:
    """A field that only __init__ sets is one, too."""
    if hasattr(owner, name) or name in getattr(owner, "__annotations__", {}):
        return True
    return inspect.isclass(owner) and f"self.{name}" in inspect.getsource(owner)


def test_every_row_has_a_place_and_a_test() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    heads = [line for line in lines if line.startswith(("| RocketMQ |", "|---"))]
    assert len(ROWS) == len(lines) - len(heads) > 89
    for subject, places, difference, tests in ROWS:
        assert names_in(places), subject
        assert difference, subject
        assert names_in(tests), subject


@pytest.mark.parametrize("place", sorted({name for row in ROWS for name in names_in(row[1])}))
def test_every_place_exists(place: str) -> None:
    owner, rest = module_of(place)
    for number, name in enumerate(rest, 1):
        assert has(owner, name), place
        if number < len(rest):
            owner = getattr(owner, name)


def test_every_test_exists() -> None:
    found = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }
    assert {name for row in ROWS for name in names_in(row[3])} - found == set()


@pytest.mark.parametrize("name", MUST_HAVE)
def test_every_name_of_rocketmqs_is_there(name: str) -> None:
    assert any(name in row[0] for row in ROWS)
