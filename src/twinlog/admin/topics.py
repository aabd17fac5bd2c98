"""Topics: list, create, delete, where they are and what is in them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from twinlog.admin.client import Admin, Gathered, gather
from twinlog.admin.names import is_user_topic as is_user_topic
from twinlog.admin.names import system_names
from twinlog.client.errors import UsageError
from twinlog.client.message import check_topic
from twinlog.client.net.answers import body_as, table_by_queue
from twinlog.client.net.routes import TopicRoute
from twinlog.client.queues import MessageQueue
from twinlog.message.names import AUTO_CREATE_TOPIC
from twinlog.remoting.bodies.clients import GroupList
from twinlog.remoting.bodies.common import TopicList
from twinlog.remoting.bodies.offsets import TopicStatsTable
from twinlog.remoting.bodies.registration import TopicConfigSerializeWrapper
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)
from twinlog.remoting.headers.namesrv import (
    DeleteKVConfigRequestHeader,
    DeleteTopicInNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
)

QUEUES_DEFAULT = 8


class QueueStats(msgspec.Struct, frozen=True):
    """What is in one queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


async def list_topics(admin: Admin, *, cluster: str | None = None) -> list[str]:
    """All names, those of RocketMQ's own included (see `is_user_topic`)."""
    if cluster is None:
        answer = await admin.ask_name_server(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, action="list of topics"
        )
    else:
        answer = await admin.ask_name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER,
            GetTopicsByClusterRequestHeader(cluster),
            action="list of topics",
        )
    return sorted(body_as(answer, TopicList).topic_list)


async def system_topics(admin: Admin) -> frozenset[str]:
    """Names that belong to RocketMQ in this cluster: the fixed ones, clusters and brokers."""
    info = await admin.cluster()
    return system_names(info.clusters, info.brokers)


async def create_topic(
    admin: Admin,
    name: str,
    *,
    read_queues: int = QUEUES_DEFAULT,
    write_queues: int | None = None,
    perm: int = 6,
    order: bool = False,
    cluster: str | None = None,
    address: str | None = None,
) -> Gathered[Request]:
    """Create or change a topic on every master (of a cluster), or on one broker."""
    check_topic(name)
    TopicChange(read_queues, write_queues, perm).check()
    config = TopicConfig(name, read_queues, write_queues or read_queues, perm, order=order)

    async def create(master: str) -> Request:
        return await put_topic_config(admin, master, config)

    return await gather([address] if address else await admin.masters(cluster), create)


class TopicChange(Struct, frozen=True):
    """What is to be changed of a topic; None leaves it, and is the default of a new one."""

    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None

    def check(self) -> None:
        """Raise UsageError for what no topic can have."""
        if any(count is not None and count < 1 for count in (self.read_queues, self.write_queues)):
            raise UsageError("a topic has at least one queue")
        if self.perm not in (None, 0, 2, 4, 6):
            raise UsageError(f"perm {self.perm}: use 2 (write), 4 (read) or 6 (both)")

    def of(self, name: str, old: TopicConfig | None) -> TopicConfig:
        """The settings afterwards."""
        config = old or TopicConfig(name, QUEUES_DEFAULT, QUEUES_DEFAULT)
        given = {
            "read_queue_nums": self.read_queues, "write_queue_nums": self.write_queues,
            "perm": self.perm, "order": self.order,
        }  # fmt: skip
        return replace(config, **{key: value for key, value in given.items() if value is not None})


async def change_topic(
    admin: Admin, name: str, change: TopicChange, old: Mapping[str, TopicConfig | None]
) -> Gathered[TopicConfig]:
    """Change a topic on the brokers of `old`, by what each has now; None: it is made there."""

    change.check()

    async def put(address: str) -> TopicConfig:
        config = change.of(name, old[address])
        await put_topic_config(admin, address, config)
        return config

    return await gather(old, put)


async def put_topic_config(admin: Admin, address: str, config: TopicConfig) -> Request:
    """Create or change a topic on one broker, every setting as given."""
    header = CreateTopicRequestHeader(
        topic=check_topic(config.topic_name),
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )
    return await admin.ask(
        address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, action=f"topic {config.topic_name!r}"
    )


async def delete_topic(admin: Admin, name: str, *, cluster: str | None = None) -> Gathered[Request]:
    """Delete a topic on every master (of a cluster), then in the name servers."""
    check_topic(name)

    async def delete(master: str) -> Request:
        return await admin.ask(
            master, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(name),
            action=f"deletion of topic {name!r}",
        )  # fmt: skip

    result = await gather(await admin.masters(cluster), delete)
    if result.is_complete:
        header = DeleteTopicInNamesrvRequestHeader(name, cluster)
        told = await admin.tell_name_servers(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, header, action=f"deletion of topic {name!r}"
        )
        result.failures.update(told.failures)
    return result


async def topic_route(admin: Admin, name: str) -> TopicRoute:
    return await admin.route(name)


async def topic_config(admin: Admin, name: str) -> Gathered[TopicConfig | None]:
    """The topic's settings on each of its brokers."""

    async def read(address: str) -> TopicConfig | None:
        return (await all_topic_configs(admin, address)).get(name)

    return await gather(await admin.route_masters(name), read)


async def all_topic_configs(admin: Admin, address: str) -> dict[str, TopicConfig]:
    """Every topic of one broker."""
    answer = await admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, action="topic settings")
    return body_as(answer, TopicConfigSerializeWrapper).topic_config_table


async def topic_stats(admin: Admin, name: str) -> Gathered[list[QueueStats]]:
    """What is in each queue, by broker."""

    async def read(address: str) -> list[QueueStats]:
        answer = await admin.ask(
            address,
            RequestCode.GET_TOPIC_STATS_INFO,
            GetTopicStatsInfoRequestHeader(name),
            action="topic statistics",
        )
        return queue_stats(answer)

    return await gather(await admin.route_masters(name), read)


def queue_stats(answer: Request) -> list[QueueStats]:
    table = table_by_queue(body_as(answer, TopicStatsTable).offset_table)
    return [
        QueueStats(queue, ends.min_offset, ends.max_offset, ends.last_update_timestamp)
        for queue, ends in sorted(table.items())
    ]


async def topic_groups(admin: Admin, name: str) -> list[str]:
    """Groups that consume the topic or have an offset in it."""

    async def read(address: str) -> list[str]:
        answer = await admin.ask(
            address,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            QueryTopicConsumeByWhoRequestHeader(name),
            action="groups",
        )
        return body_as(answer, GroupList).group_list

    found = await gather(await admin.route_masters(name), read)
    return sorted({group for groups in found.all_or_raise().values() for group in groups})


async def broker_system_topics(admin: Admin, address: str) -> list[str]:
    """What a broker calls its own topics (request 305)."""
    answer = await admin.ask(
        address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, action="list of system topics"
    )
    return body_as(answer, TopicList).topic_list


# The name servers' table of values


async def get_kv(admin: Admin, namespace: str, key: str) -> str | None:
    answer = await admin.ask_name_server(
        RequestCode.GET_KV_CONFIG, GetKVConfigRequestHeader(namespace, key),
        accepted=(0, ResponseCode.QUERY_NOT_FOUND), action="value of the name server",
    )  # fmt: skip
    return answer.ext().get("value") if answer.code == 0 else None


async def put_kv(admin: Admin, namespace: str, key: str, value: str) -> Gathered[Request]:
    header = PutKVConfigRequestHeader(namespace, key, value)
    return await admin.tell_name_servers(
        RequestCode.PUT_KV_CONFIG, header, action="change of a value"
    )


async def delete_kv(admin: Admin, namespace: str, key: str) -> Gathered[Request]:
    header = DeleteKVConfigRequestHeader(namespace, key)
    return await admin.tell_name_servers(
        RequestCode.DELETE_KV_CONFIG, header, action="deletion of a value"
    )
