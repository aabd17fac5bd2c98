"""What a call of the command line costs: CPU time of the whole process, its start included."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import clusters
from harness import Context, Metric, Row

from support.command_line import MQADMIN, TWINLOG

# Name of the metric -> what is called; {broker} is the broker's address.
_CALLS = {
    "help": (TWINLOG, "--help"),
    "topics": (TWINLOG, "topic", "list"),
    "topic": (TWINLOG, "topic", "show", "orders"),
    "groups": (TWINLOG, "group", "list"),
    "produce": (TWINLOG, "topic", "produce", "orders", "one"),
    "ha_status": (TWINLOG, "ha", "status"),
    "cluster_status": (TWINLOG, "cluster", "status"),
    "brokers": (TWINLOG, "broker", "list"),
    "events": (TWINLOG, "events"),
    "doctor": (TWINLOG, "doctor"),
}
_MQADMIN_CALLS = {
    "help": (MQADMIN, "--help"),
    "topics": (MQADMIN, "topicList"),
    "clusters": (MQADMIN, "clusterList"),
    "broker_status": (MQADMIN, "brokerStatus", "-b", "{broker}"),
}
_REPEATS = 5


def _calls(context: Context, calls: Mapping[str, tuple[object, ...]]) -> Mapping[str, float]:
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
        if not context.state:  # The store stays from round to round.
            _cpu_s([str(TWINLOG), "topic", "create", "orders"], home)
            context.state["has_topic"] = True
        found = {}
        for name, words in calls.items():
            line = [str(word).format(broker=broker.address) for word in words]
            found[name] = min(_cpu_s(line, home) for _ in range(_REPEATS))
        return found
    finally:
        broker.kill()
        namesrv.kill()


def _cpu_s(words: list[str], environment: Mapping[str, str]) -> float:
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(words)}: exit code {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def _metrics(calls: Mapping[str, tuple[object, ...]]) -> list[Metric]:
    return [
        Metric(name, f"CPU s, {Path(str(words[0])).name} {' '.join(map(str, words[1:3]))}", "lower")
        for name, words in calls.items()
    ]


_TEXT = (
    "User and system time of the process from its start to its end, best of five. Aims: 0.15 s for "
    "a call, 0.1 s for the help."
)

ROWS = [
    Row(
        "command-line",
        "one call of the command line",
        _metrics(_CALLS),
        {"twinlog": partial(_calls, calls=_CALLS)},
        text=_TEXT,
    ),
    Row(
        "command-line-mqadmin",
        "one call of mqadmin",
        _metrics(_MQADMIN_CALLS),
        {"twinlog": partial(_calls, calls=_MQADMIN_CALLS)},
        text=_TEXT,
    ),
]
