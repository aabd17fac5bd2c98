"""`twinlog generate recording-rules`: names of the exporter for RocketMQ 4.x, out of ours.

Dashboards and alerts that were made for rocketmq-exporter go on working. Rates are over a minute,
as the exporter's are.
"""

from __future__ import annotations

from typing import Any

import click

from twinlog.cli.generate.documents import dump

_BROKER = "sum by (cluster, node_id)"
_TOPIC = "sum by (cluster, node_id, topic)"
_GROUP = "sum by (cluster, node_id, topic, consumer_group)"


def _named(expression: str) -> str:
    """Labels as the exporter calls them."""
    text = f'label_replace({expression}, "broker", "$1", "node_id", "(.*)")'
    if "consumer_group" in expression:
        text = f'label_replace({text}, "group", "$1", "consumer_group", "(.*)")'
    return text


def _quantile(share: str) -> str:
    buckets = "sum by (cluster, node_id, le) (rate(twinlog_put_seconds_bucket[1m]))"
    return f"1000 * histogram_quantile({share}, {buckets})"


# name of the exporter -> expression
RECORDS: dict[str, str] = {
    "rocketmq_broker_tps": f"{_BROKER} (rate(rocketmq_messages_in_total[1m]))",
    "rocketmq_broker_qps": f"{_BROKER} (rate(rocketmq_messages_out_total[1m]))",
    "rocketmq_broker_commitlog_diff": "max by (cluster, node_id) (twinlog_replica_lag_bytes)",
    "rocketmq_producer_tps": f"{_TOPIC} (rate(rocketmq_messages_in_total[1m]))",
    "rocketmq_producer_message_size": f"{_TOPIC} (rate(rocketmq_throughput_in_total[1m]))",
    "rocketmq_producer_offset": f"{_TOPIC} (rocketmq_messages_in_total)",
    "rocketmq_consumer_tps": f"{_GROUP} (rate(rocketmq_messages_out_total[1m]))",
    "rocketmq_group_consume_tps": f"{_GROUP} (rate(rocketmq_messages_out_total[1m]))",
    "rocketmq_consumer_message_size": f"{_GROUP} (rate(rocketmq_throughput_out_total[1m]))",
    "rocketmq_group_diff": (
        'sum by (cluster, topic, consumer_group) (rocketmq_consumer_lag_messages{is_retry="false"})'
    ),
    "rocketmq_group_retrydiff": (
        'sum by (cluster, topic, consumer_group) (rocketmq_consumer_lag_messages{is_retry="true"})'
    ),
    "rocketmq_group_dlqdiff": (
        "sum by (cluster, topic, consumer_group) (rocketmq_send_to_dlq_messages_total)"
    ),
    "rocketmq_group_get_latency_by_storetime": (
        "max by (cluster, node_id, topic, consumer_group) (rocketmq_consumer_lag_latency)"
    ),
    "rocketmq_group_count": "sum by (cluster, consumer_group) (rocketmq_consumer_connections)",
    "rocketmq_producer_count": "sum by (cluster, node_id) (rocketmq_producer_connections)",
    "rocketmq_brokeruntime_put_latency_99": _quantile("0.99"),
    "rocketmq_brokeruntime_put_latency_999": _quantile("0.999"),
    "rocketmq_brokeruntime_commitlog_maxoffset": 'twinlog_log_offset_bytes{mark="appended"}',
    "rocketmq_brokeruntime_commitlog_minoffset": 'twinlog_log_offset_bytes{mark="min"}',
    "rocketmq_brokeruntime_dispatch_behind_bytes": "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_brokeruntime_commitlog_disk_ratio": (
        "max by (cluster, node_id) (twinlog_disk_used_ratio)"
    ),
    "rocketmq_brokeruntime_send_threadpoolqueue_size": (
        'rocketmq_processor_watermark{processor="send"}'
    ),
    "rocketmq_brokeruntime_pull_threadpoolqueue_size": (
        'rocketmq_processor_watermark{processor="pull"}'
    ),
}  # fmt: skip


def rules() -> dict[str, Any]:
    """The rule file."""
    found = [{"record": name, "expr": _named(text)} for name, text in RECORDS.items()]
    return {"groups": [{"name": "rocketmq-exporter", "rules": found}]}


@click.command(
    "recording-rules", epilog="Example: twinlog generate recording-rules > exporter.rules.yml"
)
def recording_rules() -> None:
    """Print recording rules with the metric names of rocketmq-exporter (RocketMQ 4.x)."""
    click.echo(dump([rules()]), nl=False)
