"""exportMetadata, exportConfigs, exportMetrics: what a cluster is, as JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.admin import brokers, groups, topics
from twinlog.admin.brokers import first_number
from twinlog.cli.exit_codes import FAILED, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import masters, one_of_places
from twinlog.cli.times import now_ms
from twinlog.client.errors import ClientError
from twinlog.message.names import DLQ_PREFIX, HALF_TOPIC, REPLY_SUFFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from twinlog.remoting.codes import OWN_VERSION, version_description

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call
    from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
    from twinlog.remoting.bodies.topic import TopicConfig

DEFAULT_PATH = "/tmp/rocketmq/export"
_CONFIG_KEYS = (
    "autoCreateSubscriptionGroup", "autoCreateTopicEnable", "brokerClusterName", "brokerId",
    "brokerName", "brokerRole", "fileReservedTime", "filterServerNums", "flushDiskType",
    "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn",
    "traceTopicEnable", "useTLS",
)  # fmt: skip


def _write(call: Call, name: str, content: Any) -> None:
    path = Path(call.options.text("f", DEFAULT_PATH)) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(java.pretty_json(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"{path}: {error.strerror}", FAILED, hint="choose another: -f"
        ) from error
    call.line(f"export {path} success")


async def _user_topics(call: Call, address: str) -> dict[str, TopicConfig]:
    """Without those of RocketMQ; retry and dead-letter topics only with -s."""
    system = set(await topics.broker_system_topics(call.admin, address))
    found = await topics.all_topic_configs(call.admin, address)
    hidden = () if "s" in call.options else (RETRY_PREFIX, DLQ_PREFIX)
    return {
        name: config
        for name, config in found.items()
        if name not in system and not name.startswith(hidden) and not name.endswith(REPLY_SUFFIX)
    }


async def _user_groups(call: Call, address: str) -> dict[str, SubscriptionGroupConfig]:
    found = await groups.group_configs(call.admin, address)
    return {name: config for name, config in found.items() if groups.is_user_group(name)}


async def export_metadata(call: Call) -> None:
    one_of_places(call)
    topic_table: dict[str, dict[str, Any]] = {}
    group_table: dict[str, dict[str, Any]] = {}
    for address in await masters(call):
        for name, topic in (await _user_topics(call, address)).items():
            wire = topic.to_json()
            for key in ("readQueueNums", "writeQueueNums"):
                wire[key] += topic_table.get(name, {}).get(key, 0)
            topic_table[name] = wire
        for name, group in (await _user_groups(call, address)).items():
            wire = group.to_json()
            wire["retryQueueNums"] += group_table.get(name, {}).get("retryQueueNums", 0)
            group_table[name] = wire
    content: dict[str, Any] = {"exportTime": now_ms()}
    if "g" not in call.options:
        content["topicConfigTable"] = topic_table
    if "t" not in call.options:
        content["subscriptionGroupTable"] = group_table
    name = "topic" if "t" in call.options else "subscriptionGroup" if "g" in call.options else ""
    _write(call, f"{name or 'metadata'}.json", dict(sorted(content.items())))


async def export_configs(call: Call) -> None:
    info = await call.admin.cluster()
    configs: dict[str, Any] = {}
    slaves = 0
    for name in info.names(call.options.text("c")):
        broker = info.brokers[name]
        slaves += sum(1 for broker_id in broker.broker_addrs if broker_id)
        if broker.master_address is None:
            call.missing.append(f"mqadmin: {name} has no master now")
            continue
        values = await brokers.broker_config(call.admin, broker.master_address)
        configs[name] = {key: values[key] for key in _CONFIG_KEYS if key in values}
    scale = {
        "masterBrokerSize": len(configs),
        "namesrvSize": len(call.admin.instance.name_servers.addresses),
        "slaveBrokerSize": slaves,
    }
    _write(call, "configs.json", {"brokerConfigs": configs, "clusterScale": scale})


async def export_metrics(call: Call) -> None:
    info = await call.admin.cluster()
    report: dict[str, Any] = {}
    tps: dict[str, float] = dict.fromkeys(
        ("totalNormalInTps", "totalNormalOutTps", "totalScheduleInTps", "totalTransInTps"), 0.0
    )
    day: dict[str, int] = dict.fromkeys(
        ("normalOneDayInNum", "normalOneDayOutNum", "scheduleOneDayInNum", "transOneDayInNum"), 0
    )
    for name in info.names(call.options.text("c")):
        address = info.brokers[name].master_address
        if address is None:
            call.missing.append(f"mqadmin: {name} has no master now")
            continue
        report[name] = await _metrics_of(call, address)
        quota = report[name]["runtimeQuota"]
        for key, value in quota["tps"].items():
            tps[f"total{key[:1].upper()}{key[1:]}"] += value
        for key, value in quota["oneDayNum"].items():
            day[key] += value
    _write(call, "metrics.json", {
        "evaluateReport": report, "totalData": {"totalOneDayNum": day, "totalTps": tps},
    })  # fmt: skip


async def _metrics_of(call: Call, address: str) -> dict[str, Any]:
    runtime = await brokers.broker_runtime(call.admin, address)
    values = await brokers.broker_config(call.admin, address)
    trans_tps, trans_day = await _put_stats(call, address, HALF_TOPIC)
    delay_tps, delay_day = await _put_stats(call, address, SCHEDULE_TOPIC)
    user_groups = await _user_groups(call, address)

    def yesterday(kind: str) -> int:
        high = runtime.get(f"msg{kind}TotalTodayMorning", "0")
        return int(high) - int(runtime.get(f"msg{kind}TotalYesterdayMorning", "0"))

    quota = {
        "diskRatio": {
            "commitLogDiskRatio": runtime.get("commitLogDiskRatio"),
            "consumeQueueDiskRatio": runtime.get("consumeQueueDiskRatio"),
        },
        "groupSize": len(user_groups),
        "messageAverageSize": runtime.get("putMessageAverageSize"),
        "oneDayNum": {
            "normalOneDayInNum": yesterday("Put"), "normalOneDayOutNum": yesterday("Get"),
            "scheduleOneDayInNum": delay_day, "transOneDayInNum": trans_day,
        },
        "topicSize": len(await _user_topics(call, address)),
        "tps": {
            "normalInTps": first_number(runtime.get("putTps", "")),
            "normalOutTps": first_number(runtime.get("getTransferedTps", "")),
            "scheduleInTps": delay_tps, "transInTps": trans_tps,
        },
    }  # fmt: skip
    clients = await groups.members_of_many(call.admin, user_groups)
    versions = {
        f"{member.language}%{version_description(member.version)}"
        for members in clients.values()
        for member in members.members
    }
    return {
        "runtimeEnv": {
            "cpuNum": values.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": quota,
        "runtimeVersion": {
            "clientInfo": sorted(versions), "rocketmqVersion": version_description(OWN_VERSION),
        },
    }  # fmt: skip


async def _put_stats(call: Call, address: str, topic: str) -> tuple[float, int]:
    try:
        data = await brokers.broker_stats(call.admin, address, "TOPIC_PUT_NUMS", topic)
    except ClientError:
        return 0.0, 0  # Nothing counted yet.
    return data.stats_minute.tps, data.day_sum
