"""The demo's page: one HTML file that works offline, on a desktop and on a phone. Pure."""

from __future__ import annotations

import html

from twinlog.cli.demo.ledger import Ledger, latency_per_bin, rate_per_bin
from twinlog.cli.demo.plot import Mark, Point, Series, chart
from twinlog.cli.demo.verdict import Moments, Verdict

BIN_SECONDS = 0.5

_STYLE = """
:root{--ink:#1c2330;--soft:#5b6675;--paper:#fff;--line:#dfe4ea;--good:#0b7a4b;--bad:#b3261e;
--t1:#2563c9;--t2:#c2621b;--t3:#6b4bb8}
@media(prefers-color-scheme:dark){:root{--ink:#e7ebf0;--soft:#9aa5b3;--paper:#12161c;
--line:#2b333d;--good:#4cc38a;--bad:#ff8a80;--t1:#6ea8ff;--t2:#f0a35e;--t3:#b39bf0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:2rem 0 .3rem}
.verdict{border-left:.4rem solid;padding:.6rem 1rem;margin:1rem 0;font-weight:600}
.good{border-color:var(--good);color:var(--good)}.bad{border-color:var(--bad);color:var(--bad)}
table{border-collapse:collapse;width:100%}
td{border-top:1px solid var(--line);padding:.4rem .5rem;vertical-align:top}
td.f{width:80%;overflow-wrap:anywhere}
td.n{text-align:right;overflow-wrap:break-word;font-variant-numeric:tabular-nums;font-weight:600}
td.s{color:var(--soft)}
@media(min-width:40.1rem){tr td:first-child{white-space:nowrap}td.n{min-width:9.5rem}}
svg{width:100%;height:auto;display:block;overflow:visible}
svg text{fill:var(--soft);font:11px system-ui,sans-serif}svg text.mark{fill:var(--bad)}
line.grid{stroke:var(--line)}line.mark{stroke:var(--bad);stroke-dasharray:4 3}
polyline{fill:none;stroke-width:2}polyline.t1{stroke:var(--t1)}polyline.t2{stroke:var(--t2)}
polyline.t3{stroke:var(--t3)}
.legend{font-size:.85rem}.legend span{margin-right:1.2rem}.legend span:before{content:"";
display:inline-block;width:1.1rem;height:.2rem;margin-right:.4rem;vertical-align:middle}
.t1:before{background:var(--t1)}.t2:before{background:var(--t2)}.t3:before{background:var(--t3)}
.legend{margin:.2rem 0}.soft{color:var(--soft)}
@media(max-width:40rem){td.s{display:block;border:0;padding-top:0}tr{display:block;
border-top:1px solid var(--line)}td{border:0;display:inline-block}
td.f{width:auto;font-weight:600}
svg text{font-size:20px}svg{margin:.6rem 0 .6rem .5rem;width:calc(100% - .5rem)}}
"""


def page(
    verdict: Verdict, ledger: Ledger, moments: Moments, lag: list[Point], facts: dict[str, str]
) -> str:
    """The whole page. `lag` is (seconds, bytes) of the slave behind the master."""
    word = "Nothing acknowledged was lost." if verdict.is_good else "The run failed."
    tone = "good" if verdict.is_good else "bad"
    reasons = "".join(f"<br>{html.escape(reason)}" for reason in verdict.reasons)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>twinlog demo: {html.escape(word)}</title><style>{_STYLE}</style></head>",
            "<body><h1>A master dies under load</h1>",
            f'<p class="soft">{_story(verdict)} Every number below was counted in this run.</p>',
            f'<p class="verdict {tone}">{html.escape(word)}{reasons}</p>',
            _table(_rows(verdict)),
            *_charts(ledger, moments, lag),
            "<h2>The run</h2>",
            _facts(facts),
            "</body></html>",
        ]
    )


def _story(verdict: Verdict) -> str:
    if verdict.has_switched:
        return (
            "Two replicas with a controller receive numbered messages. SIGKILL ends the master, the"
            " slave takes over, and the old master returns as its slave."
        )
    return (
        "A SYNC_MASTER and its slave receive numbered messages. SIGKILL ends the master, consumers"
        " continue at the slave, and the master returns."
    )


def _facts(facts: dict[str, str]) -> str:
    """Texts, not numbers: they begin at the left."""
    cells = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="f">{html.escape(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{cells}</table>"


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = "".join(
        f'<tr><td>{html.escape(name)}</td><td class="n">{html.escape(value)}</td>'
        f'<td class="s">{html.escape(meaning)}</td></tr>'
        for name, value, meaning in rows
    )
    return f"<table>{cells}</table>"


def _rows(verdict: Verdict) -> list[tuple[str, str, str]]:
    before, after = verdict.latency_ms_before, verdict.latency_ms_after
    unknown = ", ".join(f"{name} {count:,}" for name, count in verdict.unknown.items()) or "none"
    return [
        ("Acknowledged", f"{verdict.acknowledged:,}",
         "Sends answered with SEND_OK: every replica that was in sync then had the message."),
        ("Consumed", f"{verdict.consumed:,}",
         "Different messages that the consumers saw. Sends of unknown outcome may be among them."),
        ("Lost", f"{verdict.lost:,}", "Acknowledged and never seen by a consumer."),
        ("Missing on the slave", f"{verdict.missing_on_slave:,}",
         f"Of {verdict.acknowledged_before_kill:,} messages acknowledged before the kill, those"
         " not found, whole and undamaged, in the slave's files alone."),
        ("Open sends at the kill", f"{verdict.in_flight_at_kill:,}",
         "Sends that had no answer yet when the master died: their outcome is unknown."),
        ("Unknown outcomes", unknown, "Failed or unanswered sends; never counted as acknowledged."),
        ("Duplicates", f"{verdict.duplicates:,}",
         "Repeated deliveries; at-least-once allows them after a crash."),
        ("Order violations", f"{verdict.order_violations:,}",
         "Messages that were first delivered after a later message of the same queue."),
        ("Seconds without reads", _seconds(verdict.seconds_without_reads),
         "The longest pause of the consumers while a single replica was running and had messages"
         " for them."),
        ("Seconds without writes", _seconds(verdict.seconds_without_writes),
         "The longest pause between two SEND_OK."
         + ("" if verdict.has_switched else " With fixed roles no slave becomes master.")),
        ("Seconds to catch up", _seconds(verdict.seconds_to_catch_up),
         "From the restart of the killed replica until both had the same log again."),
        ("Sends per second", f"{verdict.rate_before:,.0f} / {verdict.rate_after:,.0f}",
         "Before the kill / after the return."),
        ("p50 of a send, ms", f"{before['p50']:.1f} / {after['p50']:.1f}",
         "Half of the acknowledged sends took at most this long."),
        ("p99 of a send, ms", f"{before['p99']:.1f} / {after['p99']:.1f}",
         "99 of 100 acknowledged sends took at most this long."),
        ("Audit", verdict.audit, "The Spark job that compares the two replicas' files."),
        ("Rows archived", verdict.rows_archived_text,
         "Messages that the Spark job wrote to Parquet, each exactly once."),
    ]  # fmt: skip


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def _charts(ledger: Ledger, moments: Moments, lag: list[Point]) -> list[str]:
    end = max(moments.stopped, 1.0)
    marks = [Mark(moments.kill, "SIGKILL"), Mark(moments.restart, "restart")]
    why = "Sends stop while there is no master; reads go on from the slave."
    if moments.switched:
        marks.insert(1, Mark(moments.switched, "takes over"))
        why = "Sends stop until the slave has taken over."
    acknowledged = rate_per_bin(ledger.acknowledged.values(), end, BIN_SECONDS)
    consumed = rate_per_bin(ledger.consumed_at, end, BIN_SECONDS)
    latency = ledger.latency_ms
    behind = [point for point in lag if point[0] < end]
    return [
        "<h2>Messages per second</h2>",
        f"<p class=soft>{why}</p>",
        chart([Series("acknowledged", acknowledged, 1), Series("consumed", consumed, 2)], marks,
              end=end, unit="messages/s", label="Acknowledged and consumed messages per second"),
        "<h2>Slave behind master</h2>",
        "<p class=soft>Bytes of the master's log that the slave does not have. While the slave is"
        " away, every send adds to them; after its restart it catches up.</p>",
        chart([Series("bytes behind", behind, 3)], marks, end=end, unit="bytes",
              label="Bytes of the log that the slave lacks"),
        "<h2>Time of an acknowledged send</h2>",
        "<p class=soft>The median and the 99th percentile of each half second, on a logarithmic"
        " scale.</p>",
        chart([Series("p50", latency_per_bin(latency, end, BIN_SECONDS, 0.50), 1),
               Series("p99", latency_per_bin(latency, end, BIN_SECONDS, 0.99), 2)], marks,
              end=end, unit="milliseconds", label="Latency of acknowledged sends",
              is_logarithmic=True),
    ]  # fmt: skip
