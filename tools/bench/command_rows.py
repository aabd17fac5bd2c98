"""What a call of the command line costs: CPU time of the whole process, its start included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import clusters
from harness import Context, Metric, Row

from support.command_line import MQADMIN, TWINLOG

_CALLS = {
    "help": (TWINLOG, "--help"),
    "topics": (TWINLOG, "topic", "list"),
    "ha_status": (TWINLOG, "ha", "status"),
    "mqadmin": (MQADMIN, "clusterList"),
}
_REPEATS = 5


def _calls(context: Context) -> Mapping[str, float]:
    """Against a broker of its own; the best of a few, as others use the machine as well."""
    namesrv = clusters.start_namesrv("twinlog", context.directory / "namesrv")
    broker = clusters.start_broker(
        "twinlog", context.directory / "broker", namesrvAddr=namesrv.address
    )
    try:
        namesrv.wait_registered(broker.address)
        # With compiled modules, as an installed package has them: the first call writes them.
        home = {
            **os.environ, "NAMESRV_ADDR": namesrv.address, "HOME": str(context.directory),
            "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(context.directory / "pyc"),
        }  # fmt: skip
        return {
            name: min(_cpu_s([str(word) for word in words], home) for _ in range(_REPEATS))
            for name, words in _CALLS.items()
        }
    finally:
        broker.kill()
        namesrv.kill()


def _cpu_s(words: list[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


ROWS = [
    Row(
        "command-line",
        "one call of the command line",
        [
            Metric("help", "CPU s, twinlog --help", "lower"),
            Metric("topics", "CPU s, twinlog topic list", "lower"),
            Metric("ha_status", "CPU s, twinlog ha status", "lower"),
            Metric("mqadmin", "CPU s, mqadmin clusterList", "lower"),
        ],
        {"twinlog": _calls},
        text="User and system time of the process from its start to its end, best of five. Aims: "
        "0.15 s for a call, 0.1 s for the help.",
    )
]
