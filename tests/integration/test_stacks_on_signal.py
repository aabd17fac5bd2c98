"""SIGUSR1 writes the stack of a server's loop to its log, and never hurts the server."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from support.processes import process_group, wait_until
from support.raw_peer import RawPeer, request
from support.twinlog_servers import start_twinlog_broker
from twinlog.remoting.codes import RequestCode

SIGNALS = 1500
STACK = "(most recent call first)"


def new_topic(number: int) -> bytes:
    """Its table is saved by a thread: the more of them, the more stacks are in motion."""
    header = {
        "topic": f"t{number}", "defaultTopic": "TBW102", "readQueueNums": "1",
        "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header, opaque=number)


def test_a_busy_broker_survives_signals_in_any_number(tmp_path: Path) -> None:
    with process_group() as group:
        broker = group.add(start_twinlog_broker(tmp_path, flushDiskType="SYNC_FLUSH"))
        with RawPeer(broker.port) as peer:
            for number in range(SIGNALS):
                if number % 3 == 0:
                    peer.send(new_topic(number))
                os.kill(broker.pid, signal.SIGUSR1)
                time.sleep(0.001)  # The moments are what varies; two signals at once are one.
            assert broker.is_alive
            wait_until(lambda: STACK in broker.output(), "a stack in the log")
        assert "runners.py" in broker.output()
        assert broker.stop() == 0
