"""The section "Failover" of docs/BENCHMARKS.md, from the lines of the file of results. Pure but for
`write`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import report
from failover_table import ROWS, Aim, Row

PAGE = report.DOCS / "BENCHMARKS.md"
Line = dict[str, Any]
QUIET_LOAD = 3.0
"""The load average before a run on two cores that had nothing else to do; the run before it counts
for a while."""

OF: dict[str, Callable[[Sequence[float]], float]] = {
    "p50": statistics.median,
    "p99": lambda values: sorted(values)[min(len(values) - 1, int(len(values) * 0.99))],
    "max": max,
}
TEXT = """\
`make bench-failover` runs controlled groups as processes on loopback (for the network cut, in
network namespaces on a bridge). Each make of broker runs with its own name server and controller,
and both sides get the same files, requests and signals. The measuring client sends 400 messages per
second in an open loop, looks for a new route after an error or after half a second without an
answer, and repeats every message that was not acknowledged. In the rows that name a client, that
client sends through its own library; the Java, C++ and JavaScript programs send one message after
the other.

A gap is the longest time without an acknowledgement. "In sync" counts from the start of the process
that was killed until the controller lists every replica again. After each group of faults the
benchmark looks for every acknowledged message in the log of the last master, and counts a message
that is missing there as lost.

Runs of older code are left out if the behaviour that they measure has been fixed since. All other
runs count for faults and losses. The times come from runs on an otherwise idle machine (load
average of at most 3 when the run began). If there are none, they come from runs with a larger share
of the machine (`SHARE`), and otherwise from all runs. Apache runs with `allAckInSyncStateSet=true`,
because twinlog always waits for the whole set.
"""

# Measured by hand before there were rows for it, and shown until these have lines.
STEADY = """\
A controller adds no measurable CPU time per message. A fixed SYNC pair and a controlled one
received messages in turns of 4 s: 1 KiB messages over 16 connections with 16 requests in flight
each, ten turns for each pair, on 2026-11-17 at a load average of 49. The master took 13.8 and
13.7 µs of CPU per message (medians), the slave 7.9 and 7.9, and the controlled pair received 1.03
times as many messages per second (median of neighbouring turns). At rest the heartbeats of the
controlled pair cost its master 6.5 ms of CPU per second.

A message becomes visible when it is confirmed, which is one round trip to the slowest member later
than in a fixed pair. There is no timer in between: a test on virtual time reads the message at the
moment of SEND_OK. Half an hour of sends, each as soon as the one before it was answered (3,498,000
sends, load average 24 to 60), caused no election.
"""
STEADY_ROWS = {"cost", "full-load"}


def figures(lines: Sequence[Line], name: str) -> list[float]:
    return [seen[name] for line in lines for seen in line["seen"] if name in seen]


def timed(lines: Sequence[Line]) -> Sequence[Line]:
    """Those whose times count: of a machine without other work, else with a larger share of it, if
    there are any."""
    quiet = [line for line in lines if line["load"][0] <= QUIET_LOAD]
    return quiet or [line for line in lines if line.get("share", "0") != "0"] or lines


def text(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 100 else f"{value:,.0f}"


def summary(lines: Sequence[Line]) -> str:
    """Gaps, then whatever else the row has, then the balance."""
    parts = []
    for name, shown in SHOWN.items():
        values = figures(timed(lines), name)
        if values:
            wanted = ("p50", "p99", "max") if len(values) >= 20 else ("p50", "max")
            parts.append(f"{shown} " + ", ".join(f"{of} {text(OF[of](values))}" for of in wanted))
    for name in ("code", "codes"):
        found = {str(seen[name]) for line in lines for seen in line["seen"] if name in seen}
        parts += [f"codes {', '.join(sorted(found))}"] if found else []
    remarks = {seen["remark"] for line in lines for seen in line["seen"] if seen.get("remark")}
    parts += [f"“{remark[:70]}”" for remark in sorted(remarks)]
    if any(line["lost"] for line in lines) and lines[0]["make"] == "twinlog":
        parts.append(kept_aside(lines))
    errors = [line["error"] for line in lines if line["error"]]
    parts += [f"ended early: {error[:80]}" for error in errors]
    return "; ".join(parts)


def kept_aside(lines: Sequence[Line]) -> str:
    """Whether what was lost is found in what old masters moved aside when they rejoined."""
    lost, missing = sum(line["lost"] for line in lines), not_aside(lines)
    if missing:
        return f"of {lost:,} lost ones {missing:,} are not kept aside"
    return f"the {lost:,} lost ones are all kept aside on the old master"


def not_aside(lines: Sequence[Line]) -> int:
    return sum(line.get("lost_not_aside", line["lost"]) for line in lines)


SHOWN = {
    "gap_s": "gap s",
    "from_start_s": "from the start of both s",
    "in_sync_s": "in sync s",
    "refused": "refused",
    "unknown": "unknown",
    "back_s": "back s",
    "forward": "forward",
    "stored_bytes": "stored bytes",
    "files": "files aside",
    "slower_percent": "slower by %",
    "later_ms": "visible later by ms",
    "messages": "messages",
    "elections": "elections",
}


def balance(lines: Sequence[Line]) -> str:
    total = {key: sum(line[key] for line in lines) for key in ("times", "acknowledged", "lost")}
    return f"{total['times']}; {total['lost']:,} of {total['acknowledged']:,}"


def verdict(row: Row, lines: Sequence[Line]) -> str:
    """Each aim with what was seen, and whether nothing was lost."""
    parts = [_aim(aim, timed(lines)) for aim in row.aims]
    if not row.may_lose:
        lost = sum(line["lost"] for line in lines)
        parts.append("0 lost: " + ("met" if not lost else f"**missed, {lost}**"))
    elif any(line["lost"] for line in lines):
        missing = not_aside(lines)
        outcome = "met" if not missing else f"**missed, {missing}**"
        parts.append(f"0 lost and not kept aside: {outcome}")
    return "; ".join(part for part in parts if part)


def _aim(aim: Aim, lines: Sequence[Line]) -> str:
    values = figures(lines, aim.figure)
    if not values:
        return ""
    seen = OF[aim.of](values)
    name = SHOWN[aim.figure].removesuffix(" s")
    outcome = "met" if seen <= aim.bound else f"**missed, {text(seen)}**"
    return f"{name} {aim.of} ≤ {text(aim.bound)}: {outcome}"


def render(lines: Sequence[Line]) -> str:
    """The section as text."""
    loads = [load for line in lines for load in line["load"]]
    has_steady = {line["row"] for line in lines} >= STEADY_ROWS
    parts = [report.FAILOVER, TEXT, *([] if has_steady else [STEADY])]
    shares = sorted({line.get("share", "0") for line in lines})
    kills = [line for line in lines if line["row"] in KILLS and line["make"] == "twinlog"]
    sync = [line for line in kills if line["row"] not in MAY_LOSE]
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    total = {key: sum(line[key] for line in sync) for key in ("times", "acknowledged", "lost")}
    parts.append(
        f"{len(lines)} runs, {lines[0]['at'][:10]} to {lines[-1]['at'][:10]}, commits {commits}. "
        f"The machine has two cores and had other work: load average {min(loads):g} to "
        f"{max(loads):g}, median {statistics.median(loads):g}; the processes of both makes ran "
        f"with autogroup nice {' or '.join(shares)} (`SHARE`). SIGKILLs of masters of SYNC groups "
        f"of twinlog in all: {total['times']:,}, with {total['acknowledged']:,} messages "
        f"acknowledged and {total['lost']:,} lost.\n"
    )
    parts.append("| | twinlog | faults; lost | Apache 5.3.3 | faults; lost | aim |")
    parts.append("|---|---|---|---|---|---|")
    for row in ROWS:
        of_row = [line for line in lines if line["row"] == row.name]
        ours, theirs = ([x for x in of_row if x["make"] == make] for make in ("twinlog", "apache"))
        if ours:
            cells = [row.title, summary(ours), balance(ours)]
            cells += [summary(theirs), balance(theirs)] if theirs else ["", ""]
            parts.append("| " + " | ".join([*cells, verdict(row, ours)]) + " |")
    remarks = [remark for row in ROWS for remark in remarks_on(row, lines)]
    parts += ["", *remarks]
    return "\n".join(parts) + "\n"


def remarks_on(row: Row, lines: Sequence[Line]) -> list[str]:
    """What the row's figures leave out, in words."""
    of_row = [line for line in lines if line["row"] == row.name]
    texts = [row.remark] if row.remark and of_row else []
    ours = [line for line in of_row if line["make"] == "twinlog"]
    times = timed(ours)
    untimed = [line for line in ours if line not in times]
    for aim in (aim for aim in row.aims if aim.of == "max"):
        above = [
            line for line in untimed if max(figures([line], aim.figure), default=0) > aim.bound
        ]
        if above:
            loads = [load for line in above for load in line["load"]]
            name = SHOWN[aim.figure].removesuffix(" s")
            worst = text(max(figures(above, aim.figure)))
            texts.append(
                f"The times leave out {len(above)} run{'s' if len(above) > 1 else ''} on a busier "
                f"machine (load average {min(loads):g} to {max(loads):g}) in which “{name}” "
                f"reached {worst}."
            )
    return [f"- {row.title}: {' '.join(texts)}"] if texts else []


KILLS = {row.name for row in ROWS if row.name.startswith("kill") and row.name != "kill-slave"}
MAY_LOSE = {row.name for row in ROWS if row.may_lose}


def write(results: Path) -> None:
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    PAGE.write_text(report.with_failover(PAGE.read_text(), render(lines)))


def one_line(row: Row, line: Line) -> str:
    shown = f"{row.name} {line['make']}: {summary([line])}; {balance([line])} lost"
    return f"{shown}; refused {line['refused']} {line['first_refusal'][:1]}; load {line['load']}"
