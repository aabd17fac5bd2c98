"""docs/BENCHMARKS.md, its pictures and the README's table, rendered from the JSON of runs.

Nothing is typed in by hand. The JSON is what `make bench` and `make bench-scale` have left in
bench-results/ (or in OUT), which is not committed: python tools/bench/report.py renders it again.
The reasons for rows that miss their aim are in remarks.toml.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import aims
import harness
import results
import shown
from rows import all_rows

DOCS = harness.ROOT / "docs"
README = harness.ROOT / "README.md"
BEGIN = "<!-- measured: written by make bench DOCS=1 -->"
NEWLINE = "\n"
END = "<!-- end of measured -->"
FAILOVER = "## Failover\n"

METHOD = """\
## Method

Each row is one measurement. The brokers take turns, round by round, on the same machine in the
same run, so that a machine that gets slower affects all of them. A cell shows the median of the
rounds, with the lowest and the highest round in brackets. The ratio compares the medians; its
brackets have the lowest and the highest ratio of a round. A ratio above 1 means that twinlog is
better, even where a lower figure is better.

Both sides run as their users would run them: a name server, a master and a slave on loopback, with
log files of 1 GiB and four queues per topic. Apache RocketMQ has a heap of 2 GB, the garbage
collector flags of its own start script, and otherwise its defaults. It runs under load for 20 s
before its first sample. Kafka runs as two brokers that are also controllers (KRaft), with the heap
and the garbage collector flags of its own start script, topics with two replicas, `acks=all`, and
its own producer with batches of 64 KiB. It also runs under load for 20 s before its first sample.
twinlog runs with its defaults.

The load generator is `tools/load` (Go, standard library). The row `load-ceiling` shows its rate
against a server that only answers. The load generator shares the cores of the machine with the
brokers, so the rates are those of the whole machine. The CPU time per message is that of the broker
alone. CPU is the user and system time of the process, memory is its anonymous resident memory, and
disk is the number of bytes that the kernel wrote for it, all from `/proc`. `16 x 16` means 16
connections with 16 requests in flight on each. In an open loop, requests are sent at fixed times,
and a latency counts from the time at which the request was due. A server that stalls therefore
cannot hide the requests that it held back (coordinated omission).

`make bench` measures everything, `make bench ONLY=send,pull` measures the rows whose names contain
one of these words, and `make bench QUICK=1` measures a few rows in under three minutes.
`make bench-scale` measures how the cost of a message grows with the work.
"""
# (row, metric) of the README's table; those that were not measured are left out.
README_ROWS = (
    ("send-async-128-16x16", "rate"),
    ("send-async-1024-16x16", "rate"),
    ("send-async-1024-16x16", "master_cpu"),
    ("send-async-1024-16x16", "p99"),
    ("send-async-1024-16x16", "anonymous"),
    ("send-sync-1024-16x16", "rate"),
    ("send-sync-1024-1x1", "rate"),
    ("pull-backlog", "rate"),
    ("latency-50", "p99"),
    ("ha-copy-twin-16384", "rate"),
    ("start-up", "first_send"),
    ("recovery", "first_send"),
    ("kafka-1024-client", "rate"),
    ("kafka-1024-client", "anonymous"),
    ("kafka-128-compiled", "rate"),
)


class PageKeptError(Exception):
    """Nothing was measured, or figures of two machines would stand next to each other."""


def write_all() -> None:
    """The page, its pictures and the README's table, from the results of all runs so far."""
    import picture

    document, scale = results.read(results.rows_file()), results.read(results.curves_file())
    page = (DOCS / "BENCHMARKS.md").read_text()
    document, scale = with_shown(document, scale, page)
    failover = failover_of(page)  # Of `make bench-failover DOCS=1`.
    page = render(document, aims.read(), scale=scale)
    (DOCS / "BENCHMARKS.md").write_text(with_failover(page, failover))
    README.write_text(with_table(README.read_text(), readme_table(document)))
    picture.draw_ratios(document, DOCS / "benchmarks.svg")
    for curve in scale["curves"]:
        picture.draw_curve(curve, DOCS / f"scale-{curve['name']}.svg")
    for verdict in unexplained(document, aims.read()):
        text = f"{verdict.row}: {verdict.aim}, seen {verdict.seen}"
        print(f"bench: no reason in remarks.toml for {text}", file=sys.stderr)


def with_shown(
    document: results.Document, scale: results.Document, page: str
) -> tuple[results.Document, results.Document]:
    """The results, and what the page shows of rows and curves that they lack: a run of a few rows
    in a fresh clone costs the page none of the others."""
    known = all_rows()
    measured = {row["name"] for row in document["rows"]}
    older = [row for row in shown.rows(page, known) if row["name"] not in measured]
    if not document["facts"]:
        raise PageKeptError(f"docs/BENCHMARKS.md stays as it is: no rows in {results.directory()}")
    if older and processor_text(document["facts"]) not in page:
        raise PageKeptError(
            "docs/BENCHMARKS.md stays as it is: it has figures of another machine, and these rows "
            f"were not measured on this one: {', '.join(row['name'] for row in older)}"
        )
    for row in older:
        document = results.with_row(document, row, [row.name for row in known])
    curves = {curve["name"]: curve for curve in (*shown.curves(page), *scale["curves"])}
    return document, {**scale, "curves": list(curves.values())}


def render(
    document: Mapping[str, Any],
    remarks: Mapping[str, Any],
    *,
    scale: Mapping[str, Any],
) -> str:
    """The page as text."""
    head = ["# Benchmarks\n", *_facts(document), "![twinlog against its rivals](benchmarks.svg)\n"]
    parts = [*head, *_aims(document, remarks), METHOD, *_failures(document["failures"])]
    parts += [_row(row, remarks) for row in document["rows"]]
    if scale["curves"]:
        parts.append(_scale(scale, remarks))
    return "\n".join(parts)


def _facts(document: Mapping[str, Any]) -> list[str]:
    facts, rows = document["facts"], document["rows"]
    dates = sorted({row["taken"]["at"][:10] for row in rows})
    commits = sorted({row["taken"]["commit"] for row in rows})
    shown = {
        "measured": " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "",
        "commits": ", ".join(commits),
        "machine": machine_text(facts),
        "took": f"{sum(row['taken']['seconds'] for row in rows) / 60:.0f} minutes",
        **facts["versions"],
    }
    lines = [f"| {name} | {value} |" for name, value in shown.items()]
    written = (
        "This page is generated by `make bench DOCS=1` from the results of its runs. "
        "Do not edit it."
    )
    return [f"{written}\n", "| | |", "|---|---|", *lines, ""]


def machine_text(facts: Mapping[str, Any]) -> str:
    return f"{processor_text(facts)}, {facts['memory_gb']} GB, Linux {facts['kernel']}"


def processor_text(facts: Mapping[str, Any]) -> str:
    return f"{facts['cpus']} CPUs ({facts['cpu']}, {facts['machine']})"


def _aims(document: Mapping[str, Any], remarks: Mapping[str, Any]) -> list[str]:
    """How many aims are met, and each that is not."""
    found = [verdict for row in document["rows"] for verdict in aims.verdicts(row, remarks)]
    missed = [verdict for verdict in found if not verdict.is_met]
    lines = ["## Aims\n", f"{len(found) - len(missed)} of {len(found)} aims are met.\n"]
    if missed:
        lines += ["| row | aim | measured | why |", "|---|---|---|---|"]
        reasons = remarks.get("remarks", {})
        lines += [
            f"| `{verdict.row}` | {verdict.aim} | {verdict.seen} "
            f"| {'below' if verdict.row in reasons else 'not examined yet'} |"
            for verdict in missed
        ]
        lines.append("")
    return lines


def unexplained(document: Mapping[str, Any], remarks: Mapping[str, Any]) -> list[aims.Verdict]:
    """Aims that are missed and have no remark."""
    reasons = remarks.get("remarks", {})
    return [
        verdict
        for row in document["rows"]
        for verdict in aims.verdicts(row, remarks)
        if not verdict.is_met and row["name"] not in reasons
    ]


def _failures(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    if not failures:
        return []
    lines = ["## Rows that failed\n"]
    for entry in failures:
        reason = entry["error"].splitlines()[0]
        lines.append(f"- `{entry['name']}`, {entry['at']}, commit {entry['commit']}: {reason}")
    return [*lines, ""]


def _row(row: Mapping[str, Any], remarks: Mapping[str, Any]) -> str:
    taken = row["taken"]
    text = [f"## {row['title']}\n"]
    if row.get("text"):
        text.append(f"{row['text']}\n")
    text += _markdown([line[1:] for line in harness.table([row])])
    scale = "" if taken["scale"] == 1 else f", scale {taken['scale']:g}"
    text.append(
        f"\nRow `{row['name']}`, {taken['at']}, commit {taken['commit']}, "
        f"{taken['rounds']} round{'s' * (taken['rounds'] > 1)}, {taken['seconds']:.0f} s, "
        f"load average before {taken['load_before']:.2f}{scale}.\n"
    )
    for verdict in aims.verdicts(row, remarks):
        outcome = "met" if verdict.is_met else "missed"
        text.append(f"- aim {verdict.aim}: {outcome}, {verdict.seen}")
    remark = remarks.get("remarks", {}).get(row["name"])
    if remark is not None:
        text += ["", *_remark(remark)]
    return "\n".join(text).rstrip() + "\n"


def _remark(remark: Mapping[str, str]) -> list[str]:
    lines = [f"**Why:** {remark['why'].strip()}\n"]
    if remark.get("evidence"):
        evidence = remark["evidence"].strip(NEWLINE)
        listing = f"```\n{evidence}\n```\n"  # Lines as a profiler printed them.
        lines.append(listing if NEWLINE in evidence else f"**Measured:** {evidence}\n")
    if remark.get("needed"):
        lines.append(f"**What would be needed:** {remark['needed'].strip()}\n")
    return lines


def _scale(document: Mapping[str, Any], remarks: Mapping[str, Any]) -> str:
    """The curves of `make bench-scale`."""
    text = ["## Cost per message as the work grows\n"]
    text.append("This section is generated by `make bench-scale DOCS=1`.\n")
    for curve in document["curves"]:
        text += [f"### {curve['title']}\n", f"![{curve['title']}](scale-{curve['name']}.svg)\n"]
        head = [curve["axis"], *(f"{m['name']} [{m['unit']}]" for m in curve["metrics"])]
        lines = [
            [f"{point['x']:g}", *(harness.number_text(point[m["name"]]) for m in curve["metrics"])]
            for point in curve["points"]
        ]
        taken = curve["taken"]
        text += [*_markdown([head, *lines]), f"\n{taken['at']}, commit {taken['commit']}.\n"]
        remark = remarks.get("remarks", {}).get(f"scale-{curve['name']}")
        if remark is not None:
            text += _remark(remark)
    return "\n".join(text).rstrip() + "\n"


def _markdown(table: Sequence[Sequence[str]]) -> list[str]:
    head, *lines = (f"| {' | '.join(line)} |" for line in table)
    return [head, "|---|" + "---:|" * (len(table[0]) - 1), *lines]


def with_failover(page: str, section: str) -> str:
    """The page with this section at its end, or in place of the one that it has."""
    if not section:
        return page
    before, found, rest = page.partition(FAILOVER)
    behind = rest.partition("\n## ")[2] if found else ""
    return f"{before.rstrip()}\n\n{section}" + (f"\n## {behind}" if behind else "")


def failover_of(page: str) -> str:
    """The section that a page has, or nothing."""
    _, found, rest = page.partition(FAILOVER)
    return found + rest.partition("\n## ")[0] if found else ""


def readme_table(document: Mapping[str, Any]) -> str:
    rows = {row["name"]: row for row in document["rows"]}
    found = [(rows[name], metric) for name, metric in README_ROWS if name in rows]
    lines = [["", "twinlog", "rival", "ratio"]]
    dates: dict[str, None] = {}
    for row, name in found:
        metric = next(metric for metric in row["metrics"] if metric["name"] == name)
        first, rival = row["subjects"][next(iter(row["subjects"]))], row["subjects"][row["rival"]]
        if name not in first or name not in rival:
            continue
        label = f"{row['title']}: {metric['unit']}"
        theirs = f"{harness.number_text(rival[name]['median'])} ({row['rival']})"
        lines.append([
            label, harness.number_text(first[name]["median"]), theirs,
            harness.ratio_text(harness.ratio(row, metric)),
        ])  # fmt: skip
        dates[row["taken"]["at"][:10]] = None
    where = f"Measured {', '.join(sorted(dates))} on {machine_text(document['facts'])}"
    return "\n".join([
        *_markdown(lines), "",
        f"{where}, both sides in one run; above 1 twinlog is better.",
        "[docs/BENCHMARKS.md](docs/BENCHMARKS.md) has every row, the method and the missed aims.",
    ])  # fmt: skip


def with_table(readme: str, table: str) -> str:
    """The README with the table between its two marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    try:
        write_all()
    except PageKeptError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
