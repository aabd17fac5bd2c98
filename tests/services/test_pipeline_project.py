"""The project of `examples/pipeline` in Spark's own pipelines: topics in, table and topics out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from support.processes import process_group
from support.raw_log import raw_bodies
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.client import Message, blocking

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1500)]
RUN = Path(__file__).resolve().parents[2] / "examples" / "pipeline" / "run.sh"


def body_of(number: int) -> bytes:
    """Every fifth is none, the others are orders; of those the first two cost nothing."""
    amount = f"{max(0, number - 2)}.50" if number > 2 else "0"
    order = {"id": number, "amount": amount, "at": "2026-11-17T10:00:00Z"}
    return b"no order" if number % 5 == 0 else json.dumps(order).encode()


def is_good(number: int) -> bool:
    return number % 5 != 0 and number > 2


def test_the_project_runs_with_one_command_and_goes_on(tmp_path: Path) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "n")
        group.add(namesrv)
        broker = start_twinlog_broker(tmp_path / "b", namesrv=namesrv.address)
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        work = tmp_path / "work"
        environment = {
            **os.environ, "NAME_SERVER": namesrv.address, "WORK": str(work),
            "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it runs once
        }  # fmt: skip
        for numbers in (range(20), range(20, 30)):
            with blocking.Producer("shop", name_server=namesrv.address) as producer:
                producer.send_many([Message("orders", body_of(n)) for n in numbers])
            done = subprocess.run(
                ["bash", str(RUN)], env=environment, capture_output=True, text=True, timeout=700
            )
            assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        rows = DeltaTable(str(work / "orders")).to_pyarrow_table().to_pylist()
        good = [n for n in range(30) if is_good(n)]
        assert sorted((row["id"], row["amount"]) for row in rows) == [
            (n, Decimal(f"{n - 2}.50")) for n in good
        ]
        sent = raw_bodies(broker.store, "order-results").elements()
        results = [json.loads(body) for body in sent]
        assert sorted(result["id"] for result in results) == good
        refused = Counter(body_of(n) for n in range(30) if not is_good(n))
        assert raw_bodies(broker.store, "orders-refused") == refused
