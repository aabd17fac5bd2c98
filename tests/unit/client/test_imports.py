"""What the client brings along: neither servers, nor Spark, nor numpy, nor uvloop."""

from __future__ import annotations

import subprocess
import sys

UNWANTED = [
    "twinlog.store", "twinlog.ha", "twinlog.broker", "twinlog.namesrv", "twinlog.controller",
    "twinlog.spark", "numpy", "pyarrow", "pyspark", "uvloop", "opentelemetry",
]  # fmt: skip
PROGRAM = f"""
import sys
import twinlog.admin, twinlog.client, twinlog.client.blocking
print(sorted(name for name in {UNWANTED} if name in sys.modules))
"""


def test_the_client_stands_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
