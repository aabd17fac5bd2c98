"""Writes docs/METRICS.md out of the declarations of the metrics; a test holds the two together.

python tools/metrics_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twinlog.observe.families import ALL, FAMILIES, Family, Kind

PAGE = Path(__file__).resolve().parent.parent / "docs" / "METRICS.md"
HEAD = """\
# Metrics

This page lists every metric that broker, name server and controller serve at `/metrics`
of their HTTP port (`metricsPromExporterPort`, 5557 on loopback by default).
[MONITORING](MONITORING.md)
says how to scrape them, what to alert on and what to do then.

All series of a broker have the labels `cluster`, `node_type`, `node_id` (the broker's name) and
`broker_id`; those of name servers and controllers have `node_type` and `node_id` (their address).
`metricsLabel` adds more. A metric has at most `twinlogMetricsSeriesMax` series;
`twinlog_series_left_out` says how many are not shown. The metrics of the process itself
(`process_*`) are those of every Prometheus client.

This page is written by `tools/metrics_reference.py`.
"""
ABSENT = """\
## What RocketMQ 5 has and twinlog does not

- `rocketmq_pop_*` belong to POP consumption, which remoting clients of 4.9 do not use.
- `rocketmq_message_size` and `rocketmq_rpc_latency` would add a measurement to each message. The
  mean size is `rocketmq_throughput_in_total` over `rocketmq_messages_in_total`;
  `twinlog_put_seconds` and `twinlog_fsync_seconds` show where the time is spent.
- `rocketmq_timer_*` and `rocketmq_timing_messages` belong to the timer wheel of 5.x, and so does
  `rocketmq_delay_message_latency`; delayed messages are in `twinlog_delay_messages`.
- `rocketmq_finish_message_latency`: how many transactions wait is `rocketmq_half_messages`.
- `rocketmq_topic_create_execution_time` and `rocketmq_consumer_group_create_execution_time`: both
  are changes of a table in memory; `twinlog_loop_lag_seconds` would show one that takes long.
- Of the controller's, `role` is `twinlog_controller_leads`, `active_broker_num` is
  `twinlog_route_brokers` of the name server, and `election_total` is `twinlog_failovers_total`.
"""


def page() -> str:
    own = [family for family in FAMILIES if family.name.startswith("twinlog_")]
    theirs = [family for family in FAMILIES if not family.name.startswith("twinlog_")]
    assert len(own) + len(theirs) == len({family.name for family in FAMILIES})
    parts = [HEAD, _section("RocketMQ 5's names", theirs), ABSENT, _section("twinlog's own", own)]
    return "\n".join(parts)


def _section(title: str, families: list[Family]) -> str:
    rows = "\n".join(_rows(families))
    head = "| metric | kind | labels | servers | what it says |\n|---|---|---|---|---|"
    return f"## {title}\n\n{head}\n{rows}\n"


def _rows(families: list[Family]) -> Iterator[str]:
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        servers = "all" if family.servers == ALL else ", ".join(family.servers)
        name = family.exposed_name
        if family.kind is Kind.HISTOGRAM:
            name = f"{name}_bucket"
        yield f"| `{name}` | {family.kind} | {labels} | {servers} | {family.text} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
