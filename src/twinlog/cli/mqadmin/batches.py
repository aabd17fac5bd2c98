"""Verbs that do many things: topics and groups of a file, trial sends, the monitor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from twinlog.admin import groups, topics
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import masters, one_of_places
from twinlog.cli.times import now_ms
from twinlog.client.errors import ClientError
from twinlog.client.message import Message
from twinlog.client.producer.producer import Producer
from twinlog.message.names import RETRY_PREFIX
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.runtime.small_file import MIB, read_small_file

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call

T = TypeVar("T", bound=msgspec.Struct)
_WORDS = "hello jodie"  # What Apache's trial messages consist of.
ROUND_SECONDS = 60.0
_SETTINGS_SIZE_MAX = 64 * MIB  # Some 100,000 topics.


def _read(name: str, kind: type[T]) -> list[T]:
    """A JSON array of settings. Apache's tool goes on without a file; we say that it is missing."""
    path = Path(name)
    if not path.exists():
        raise CommandError(f"the file path {name} does not exist", NOT_FOUND)
    try:
        data = read_small_file(path, _SETTINGS_SIZE_MAX)
        return msgspec.json.decode(data, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, OSError) as error:
        raise CommandError(f"{name}: {error}", USAGE) from error


async def update_topic_list(call: Call) -> None:
    one_of_places(call)
    configs = _read(call.options.text("f"), TopicConfig)
    for address in await masters(call):
        for config in configs:
            await topics.put_topic_config(call.admin, address, config)
        call.line(f"submit batch of topic config to {address} success, please check the result "
                  "later.")  # fmt: skip


async def update_sub_group_list(call: Call) -> None:
    one_of_places(call)
    configs = _read(call.options.text("f"), SubscriptionGroupConfig)
    what = "group" if "b" in call.options else "subscription group"
    for address in await masters(call):
        for config in configs:
            await groups.put_group_config(call.admin, address, config)
        call.line(f"submit batch of {what} config to {address} success, please check the result "
                  "later.")  # fmt: skip


async def send_msg_status(call: Call) -> None:
    """To the topic that has the broker's name."""
    topic = call.options.text("b")
    size, count = call.options.number("s", 128), call.options.number("c", 50)
    async with Producer("PID_SMSC", name_server=call.session.namesrv,
                        **call.session.client_settings) as producer:  # fmt: skip
        await producer.send(_trial(topic, 16))
        for _ in range(count):
            started = now_ms()
            receipt = await producer.send(_trial(topic, size))
            call.line(f"rt={now_ms() - started}ms, SendResult={java.send_result(receipt)}")


def _trial(topic: str, size: int) -> Message:
    return Message(topic, (_WORDS * -(-size // len(_WORDS))).encode())


# startMonitoring


async def start_monitoring(call: Call) -> None:
    """Apache writes this to its log file; here it is printed. Until interrupted."""
    while True:
        await _round(call)
        call.end_round()
        await asyncio.sleep(ROUND_SECONDS)


async def _round(call: Call) -> None:
    call.line("[MONITOR] =========================================beginRound")
    names = await topics.list_topics(call.admin)
    for name in sorted(n.removeprefix(RETRY_PREFIX) for n in names if n.startswith(RETRY_PREFIX)):
        try:
            await _report_group(call, name)
        except ClientError:
            continue  # Nobody is connected: as Apache does, nothing is said of such a group.
    call.line("[MONITOR] =========================================endRound")


async def _report_group(call: Call, group: str) -> None:
    progress = await groups.group_progress(call.admin, group)
    await groups.group_members(call.admin, group)
    by_topic: dict[str, list[Any]] = {}
    for entry in progress.queues:
        by_topic.setdefault(entry.queue.topic, []).append(entry)
    for topic, entries in by_topic.items():
        waiting = [max(0, entry.lag) for entry in entries]
        oldest = min((e.last_ms for e in entries if e.lag > 0 and e.last_ms > 0), default=0)
        delay = now_ms() - oldest if oldest else 0
        call.line(
            f"[MONITOR] reportUndoneMsgs: UndoneMsgs [consumerGroup={group}, topic={topic}, "
            f"undoneMsgsTotal={sum(waiting)}, undoneMsgsSingleMQ={max(waiting)}, "
            f"undoneMsgsDelayTimeMills={delay}]"
        )
    for line in await _running(call, group):
        call.line(line)


async def _running(call: Call, group: str) -> list[str]:
    """Members that subscribe to something else than the others."""
    subscriptions: dict[str, str] = {}
    for member in (await groups.group_members(call.admin, group)).members:
        info = await groups.running_info(call.admin, group, member.client_id)
        subscriptions[member.client_id] = json.dumps(info.subscription_set, sort_keys=True)
    if len(set(subscriptions.values())) < 2:
        return []
    return [f"[MONITOR]  [NOTIFY] reportConsumerRunningInfo: ConsumerGroup: {group}, "
            "Subscription different"]  # fmt: skip
