"""docs/BENCHMARKS.md and its picture, rendered from the JSON of a run. Nothing is typed in by hand.

python tools/bench/report.py bench-results/bench.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import harness
import picture

DOCS = harness.ROOT / "docs"

METHOD = """\
Every row is one question. Its subjects answer it in turn, round by round, on the same machine in
the same run: a machine that gets slower meets all of them. A cell is the median of the rounds with
the lowest and the highest; the ratio is that of the medians and above 1 when twinlog is better.

Both sides run as their users would run them: a name server, a master and a slave on loopback, log
files of 1 GiB. Apache RocketMQ has a heap of 2 GB and the collector flags of its own start script,
defaults otherwise; it is warmed up under load before its first sample. twinlog has its defaults.
The load generator is `tools/load` (Go, standard library); its own ceiling against a server that
only answers is a row of its own. It shares the machine's cores with the brokers.

CPU is user and system time of the process, memory its anonymous resident memory, both from `/proc`.
`16 x 16` is 16 connections with 16 requests in flight on each.
"""


def write_docs(document: dict[str, Any]) -> None:
    DOCS.mkdir(exist_ok=True)
    (DOCS / "BENCHMARKS.md").write_text(render(document))
    picture.draw(document, DOCS / "benchmarks.png")


def render(document: dict[str, Any]) -> str:
    head = ["# Benchmarks\n", *_facts(document["facts"]), METHOD, "![bars](benchmarks.png)\n"]
    return "\n".join([*head, *(_row(row) for row in document["rows"])])


def _facts(facts: dict[str, Any]) -> list[str]:
    shown = {
        "taken": facts["taken_at"],
        "commit": facts["commit"],
        "machine": f"{facts['cpus']} CPUs, {facts['machine']}, Linux {facts['kernel']}",
        "load average before": f"{facts['load_before']:.2f}",
        "Python": facts["python"],
        **facts.get("versions", {}),
    }
    lines = [f"| {name} | {value} |" for name, value in shown.items()]
    return ["Written by `make bench DOCS=1`; do not edit.\n", "| | |", "|---|---|", *lines, ""]


def _row(row: dict[str, Any]) -> str:
    head, *lines = harness.table([row])
    head, lines = head[1:], [line[1:] for line in lines]
    text = [f"## {row['title']}\n", f"Row `{row['name']}`.\n"]
    text.append("| " + " | ".join(head) + " |")
    text.append("|---|" + "---:|" * (len(head) - 1))
    text += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    write_docs(json.loads(Path(sys.argv[1]).read_text()))
