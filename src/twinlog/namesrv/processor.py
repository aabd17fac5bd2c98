"""What a name server answers to each request: answers to DefaultRequestProcessor.

Shell over the route table and the KV configuration: reads the request, asks, answers. Codes and
remarks are RocketMQ's, also where its code 0 hides that nothing was found.

Apache's name server has no access control. Here routes and lists are shown to every account; who
may register brokers, take them out or change configuration could redirect all traffic, and must be
an admin. Apache's brokers cannot sign their registrations: their addresses belong into
`globalWhiteRemoteAddresses`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from twinlog.namesrv.config_update import ConfigUpdater
from twinlog.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG, KVConfigError, KVConfigManager
from twinlog.namesrv.routes import (
    HEARTBEAT_EXPIRED_MS,
    BrokerIdentity,
    RegisterBrokerResult,
    RouteInfoManager,
    RouteTableFullError,
    TopicScope,
)
from twinlog.namesrv.watch import NamesrvWatch
from twinlog.remoting import fastjson
from twinlog.remoting.acl_guard import AccessGuard
from twinlog.remoting.audit import AuditLog, Door
from twinlog.remoting.bodies.common import DataVersion, KVTable, TopicList
from twinlog.remoting.bodies.controller import UNREGISTERED
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    body_crc32,
    decode_old_registration,
    decode_registration,
)
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.bodies.twinlog import NameServerInfo, RivalInfo
from twinlog.remoting.codes import LanguageCode, RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import BodyTooLargeError, CommandError
from twinlog.remoting.headers import namesrv as headers
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.remoting.request_table import (
    ADMIN,
    ANY_ACCOUNT,
    SMALL_BODY,
    UNUSED_BODY,
    WHOLE_TABLE,
    Handler,
    NoHeader,
    RequestTable,
    Row,
)
from twinlog.remoting.server import ON_LOOP_SIZE_MAX, ServerConnection
from twinlog.runtime.clock import Clock, RunningTime
from twinlog.runtime.config import NamesrvConfig
from twinlog.runtime.config_format import parse_update
from twinlog.runtime.failures import Failures
from twinlog.runtime.saving import TableSaver

_LOG = logging.getLogger("twinlog.namesrv")
VERSION_3_0_11 = 37  # From here on a registration carries filter servers too.
VERSION_4_9_4 = 401  # From here on clients read standard JSON, integer keys in quotes.
_RIVAL_LOG_MS = 60_000
STEP_MS_MAX = 1_000  # Twice the period of the scan: without a turn for longer, nobody was heard.
_TOPICS_A_STEP = 2_000  # Some 5 ms of the loop.
_SCOPES = {"all": TopicScope.ALL, "some": TopicScope.SOME}
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class NamesrvProcessor:
    """One row per request code; everything else is refused with code 3."""

    def __init__(
        self,
        *,
        config: NamesrvConfig,
        routes: RouteInfoManager,
        kv: KVConfigManager,
        updater: ConfigUpdater,
        clock: Clock,
        guard: AccessGuard | None = None,
        failures: Failures | None = None,
        controller_address: Callable[[], str] = lambda: "",
        watch: NamesrvWatch,
    ) -> None:
        self._watch = watch
        self._controller_address = controller_address
        self._failures = failures
        self._config = config
        self.audit = AuditLog(clock)
        self._routes = routes
        self._rivals_logged_ms: dict[str, int] = {}
        self._kv = kv
        self._updater = updater
        self._clock = clock
        self._time = RunningTime(clock.monotonic_ms, STEP_MS_MAX)
        self.table = RequestTable(self._rows())
        door = Door(guard, self.audit)
        self._answers = {row.code: (door.handler(row), row.body_max) for row in self.table}

    def _rows(self) -> list[Row[Any]]:
        code, routes = RequestCode, self._routes
        return [
            Row(code.PUT_KV_CONFIG, headers.PutKVConfigRequestHeader,
                self._put_kv, ADMIN, UNUSED_BODY, _kv_key),
            Row(code.GET_KV_CONFIG, headers.GetKVConfigRequestHeader,
                self._get_kv, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.DELETE_KV_CONFIG, headers.DeleteKVConfigRequestHeader,
                self._delete_kv, ADMIN, UNUSED_BODY, _kv_key),
            Row(code.GET_KVLIST_BY_NAMESPACE, headers.GetKVListByNamespaceRequestHeader,
                self._kv_list, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.REGISTER_BROKER, headers.RegisterBrokerRequestHeader,
                self._register, ADMIN, WHOLE_TABLE),
            Row(code.UNREGISTER_BROKER, headers.UnregisterBrokerRequestHeader,
                self._unregister, ADMIN, UNUSED_BODY),
            Row(code.QUERY_DATA_VERSION, headers.QueryDataVersionRequestHeader,
                self._query_data_version, ADMIN, SMALL_BODY),
            Row(code.BROKER_HEARTBEAT, headers.BrokerHeartbeatRequestHeader,
                self._heartbeat, ADMIN, UNUSED_BODY),
            Row(code.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader,
                self._route, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_BROKER_CLUSTER_INFO, NoHeader,
                self._cluster_info, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.WIPE_WRITE_PERM_OF_BROKER, headers.WipeWritePermOfBrokerRequestHeader,
                self._wipe_write_perm, ADMIN, UNUSED_BODY, _broker_name),
            Row(code.ADD_WRITE_PERM_OF_BROKER, headers.AddWritePermOfBrokerRequestHeader,
                self._add_write_perm, ADMIN, UNUSED_BODY, _broker_name),
            Row(code.DELETE_TOPIC_IN_NAMESRV, headers.DeleteTopicInNamesrvRequestHeader,
                self._delete_topic, ADMIN, UNUSED_BODY, _topic_name),
            Row(code.GET_TOPICS_BY_CLUSTER, headers.GetTopicsByClusterRequestHeader,
                self._topics_by_cluster, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader,
                _list(routes.all_topics), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader,
                _list(routes.system_topics), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_UNIT_TOPIC_LIST, NoHeader,
                _list(routes.unit_topics), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader,
                _list(routes.unit_sub_topics), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader,
                _list(routes.unit_sub_ununit_topics), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.UPDATE_NAMESRV_CONFIG, NoHeader,
                self._update_config, ADMIN, SMALL_BODY, _config_keys),
            Row(code.GET_NAMESRV_CONFIG, NoHeader, self._get_config, ADMIN, UNUSED_BODY),
            Row(code.TWINLOG_INFO, NoHeader, self._info, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.TWINLOG_EVENTS, EventsRequestHeader,
                self._watch.answer, ANY_ACCOUNT, UNUSED_BODY),
        ]  # fmt: skip

    def handle(self, connection: ServerConnection, request: Request) -> None:
        """Handler of the remoting server."""
        known = self._answers.get(request.code)
        if known is None:
            remark = f" request type {request.code} not supported"
            connection.reply(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return
        answer, body_max = known
        if len(request.body) > body_max:
            refusal = BodyTooLargeError(request.code, len(request.body), body_max)
            self.audit.refused(connection, request.code, refusal.remark)
            raise refusal
        answer(connection, request)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are answered."""
        return frozenset(self.table.rows)

    # Brokers

    def _register(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.RegisterBrokerRequestHeader)
        if header.body_crc32 != 0 and body_crc32(request.body) != header.body_crc32:
            _LOG.warning("registration refused peer=%s reason=crc32", connection.remote_text)
            raise CommandError("crc32 not match")
        # What a few bytes inflate to is not known before.
        if header.compressed or len(request.body) > ON_LOOP_SIZE_MAX:
            connection.read_elsewhere(
                request,
                lambda: _registration(request, is_compressed=header.compressed),
                lambda body: self._register_in_steps(connection, request, header, body),
            )
        else:
            body = _registration(request, is_compressed=False)
            is_new = self._routes.data_version(header.broker_addr) is None
            self._registered(connection, request, header, body, is_new=is_new)

    def _register_in_steps(
        self,
        connection: ServerConnection,
        request: Request,
        header: headers.RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
    ) -> Iterator[None]:
        """The topics of a broker of many in parts, then its registration: turns for others."""
        broker = _identity(header, header.ha_server_addr)
        wrapper = body.topic_config_serialize_wrapper
        version = self._routes.data_version(broker.address)
        topics = list(wrapper.topic_config_table.values())
        if version == wrapper.data_version or len(topics) <= _TOPICS_A_STEP:
            topics = []  # What comes again as it was is left to the registration.
        try:
            if topics and version is None:
                self._routes.register(
                    broker, data_version=DataVersion(), topics=(), connection=connection,
                    now_ms=self._time.now_ms(),
                )  # fmt: skip
            are_taken = bool(topics)
            for start in range(0, len(topics), _TOPICS_A_STEP):
                part = topics[start : start + _TOPICS_A_STEP]
                are_taken &= self._routes.take_topics(broker, part)
                yield
        except RouteTableFullError as error:
            raise CommandError(str(error)) from error
        if are_taken and _scope(header) is not TopicScope.ALL:
            wrapper.topic_config_table = {}
        self._registered(connection, request, header, body, is_new=version is None)

    def _registered(
        self,
        connection: ServerConnection,
        request: Request,
        header: headers.RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
        *,
        is_new: bool,
    ) -> None:
        if connection.is_closed:
            return  # Its end would not be noticed any more.
        wrapper = body.topic_config_serialize_wrapper
        broker = _identity(header, header.ha_server_addr, header.twinlog_lineage or "")
        try:
            result = self._routes.register(
                broker,
                data_version=wrapper.data_version,
                topics=wrapper.topic_config_table.values(),
                connection=connection,
                now_ms=self._time.now_ms(),
                filter_servers=body.filter_server_list
                if request.version >= VERSION_3_0_11
                else None,
                scope=_scope(header),
            )
        except RouteTableFullError as error:
            raise CommandError(str(error)) from error
        # Only twinlog sends this language to a name server; an Apache broker gets exactly what
        # Apache's name server answers.
        is_twinlog = request.language is LanguageCode.PYTHON
        self._report_rival(broker, result, is_new=is_new)
        if not result.is_in_route and broker.broker_id == MASTER_ID and not is_twinlog:
            # It would take silence for success; so it has the reason in its own log.
            raise CommandError(
                f"broker id 0 of {broker.broker_name} is held by {result.rival}: stop one of them"
            )
        if is_new:
            if result.is_in_route:
                self._watch.came((broker.broker_name, broker.broker_id), broker.address)
            _LOG.info(
                "broker registered cluster=%s name=%s id=%d address=%s",
                broker.cluster_name, broker.broker_name, broker.broker_id, broker.address,
            )  # fmt: skip
        orders = self._kv.namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
        connection.reply(
            request,
            header=headers.RegisterBrokerResponseHeader(
                result.ha_server_addr,
                result.master_addr,
                twinlog="1" if is_twinlog else None,
                twinlog_digest=f"{result.topics_digest:x}" if is_twinlog else None,
                twinlog_rival=result.rival if is_twinlog else None,
                twinlog_in_route=result.is_in_route if is_twinlog and result.rival else None,
                twinlog_epoch=result.newer_epoch if is_twinlog else None,
            ),
            body=b"" if orders is None else fastjson.dumps(KVTable(orders)),
        )

    def _report_rival(
        self, broker: BrokerIdentity, result: RegisterBrokerResult, *, is_new: bool
    ) -> None:
        """In the log when it appears, and then once a minute."""
        now_ms = self._clock.monotonic_ms()
        if result.rival is None or result.is_in_route:
            return
        if not is_new and now_ms - self._rivals_logged_ms.get(broker.address, 0) < _RIVAL_LOG_MS:
            return
        self._rivals_logged_ms[broker.address] = now_ms
        _LOG.error(
            "two brokers with one name and id, the second is not in the route name=%s id=%d "
            "in_route=%s second=%s: stop one of the two, or change brokerName or brokerId",
            broker.broker_name, broker.broker_id, result.rival, broker.address,
        )  # fmt: skip

    def _unregister(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.UnregisterBrokerRequestHeader)
        broker = _identity(header)
        self._routes.unregister(broker)
        self._watch.left(broker.address, UNREGISTERED)
        _LOG.info(
            "broker unregistered name=%s id=%d address=%s",
            broker.broker_name, broker.broker_id, broker.address,
        )  # fmt: skip
        connection.reply(request)

    def _query_data_version(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.QueryDataVersionRequestHeader)
        try:
            asked = fastjson.loads_as(
                request.body, DataVersion, lenient_max=fastjson.LENIENT_SIZE_MAX
            )
        except ValueError as error:
            raise CommandError(f"Failed to decode DataVersion: {error}") from error
        known = self._routes.data_version(header.broker_addr)
        is_changed = known is None or known != asked
        if not is_changed:
            self._routes.touch(header.broker_addr, self._time.now_ms())
        connection.reply(
            request,
            header=headers.QueryDataVersionResponseHeader(changed=is_changed),
            body=b"" if known is None else fastjson.dumps(known),
        )

    def _heartbeat(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.BrokerHeartbeatRequestHeader)
        if self._routes.heartbeat(header.broker_addr, self._time.now_ms()):
            connection.reply(request)
            return
        remark = f"the broker {header.broker_addr} is not registered: register first"
        connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)

    def connection_lost(self, connection: ServerConnection) -> None:
        """A closed connection takes the brokers that registered over it out at once; but not when
        this name server stood still: whoever hung up then has had no answer, and dials again."""
        is_excused = self._time.has_resumed(HEARTBEAT_EXPIRED_MS)
        for address in self._routes.connection_lost(connection, is_excused=is_excused):
            self._watch.left(address, f"connection {connection.close_reason}")
            _LOG.info(
                "broker gone address=%s reason=connection %s", address, connection.close_reason
            )

    def expire(self) -> None:
        """Take brokers without a sign of life out of the route and close their connections."""
        for live, reason in self._routes.expire(self._time.now_ms()):
            self._watch.left(live.address, reason)
            _LOG.warning("broker gone address=%s reason=%s", live.address, reason)
            if isinstance(live.connection, ServerConnection):
                live.connection.close(reason)

    # Routes

    def _route(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.GetRouteInfoRequestHeader)
        route = self._routes.route(header.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            connection.reply(request, ResponseCode.TOPIC_NOT_EXIST, remark=remark)
            return
        if self._config.order_message_enable:
            route.order_topic_conf = self._kv.get(NAMESPACE_ORDER_TOPIC_CONFIG, header.topic)
        is_standard = request.version >= VERSION_4_9_4 or header.accept_standard_json_only
        connection.reply(request, body=fastjson.dumps(route, quote_int_keys=is_standard))

    def _cluster_info(self, connection: ServerConnection, request: Request) -> None:
        connection.reply(request, body=fastjson.dumps(self._routes.cluster_info()))

    def _topics_by_cluster(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.GetTopicsByClusterRequestHeader)
        body = fastjson.dumps(self._routes.topics_of_cluster(header.cluster))
        connection.reply(request, body=body)

    def _wipe_write_perm(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.WipeWritePermOfBrokerRequestHeader)
        count = self._routes.wipe_write_perm(header.broker_name)
        _LOG.info("write permission wiped name=%s topics=%d", header.broker_name, count)
        answer = headers.WipeWritePermOfBrokerResponseHeader(count)
        connection.reply(request, header=answer)

    def _add_write_perm(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.AddWritePermOfBrokerRequestHeader)
        count = self._routes.add_write_perm(header.broker_name)
        _LOG.info("write permission added name=%s topics=%d", header.broker_name, count)
        answer = headers.AddWritePermOfBrokerResponseHeader(count)
        connection.reply(request, header=answer)

    def _delete_topic(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.DeleteTopicInNamesrvRequestHeader)
        self._routes.delete_topic(header.topic, header.cluster_name or None)
        _LOG.info("topic deleted topic=%s cluster=%s", header.topic, header.cluster_name)
        connection.reply(request)

    # KV configuration

    def _put_kv(self, connection: ServerConnection, request: Request) -> None:
        ext = request.ext()
        if not ext.get("namespace") or not ext.get("key"):
            raise CommandError("namespace or key is null")
        header = request.header(headers.PutKVConfigRequestHeader)
        try:
            self._kv.put(header.namespace, header.key, header.value)
        except KVConfigError as error:
            raise CommandError(str(error)) from error
        self._answer_when_saved(connection, request, self._kv.saver)

    def _answer_when_saved(
        self, connection: ServerConnection, request: Request, saver: TableSaver
    ) -> None:
        def saved(reason: str) -> None:
            if reason:
                remark = (
                    f"changed, but {saver.name} cannot be written: {reason}; it is tried again"
                    " until it can"
                )
                connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
            else:
                connection.reply(request)

        saver.when_saved(saved)

    def _get_kv(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.GetKVConfigRequestHeader)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            connection.reply(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {header.namespace} Key: {header.key}",
                header=headers.GetKVConfigResponseHeader(),
            )
            return
        connection.reply(request, header=headers.GetKVConfigResponseHeader(value))

    def _delete_kv(self, connection: ServerConnection, request: Request) -> None:
        ext = request.ext()
        if not ext.get("namespace") or not ext.get("key"):
            raise CommandError("namespace or key is null")
        header = request.header(headers.DeleteKVConfigRequestHeader)
        self._kv.delete(header.namespace, header.key)
        self._answer_when_saved(connection, request, self._kv.saver)

    def _kv_list(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.GetKVListByNamespaceRequestHeader)
        table = self._kv.namespace(header.namespace)
        if table is None:
            remark = f"No config item, Namespace: {header.namespace}"
            connection.reply(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)
            return
        connection.reply(request, body=fastjson.dumps(KVTable(table)))

    # Configuration

    def _update_config(self, connection: ServerConnection, request: Request) -> None:
        changed = self._updater.update(request.body)
        _LOG.info("configuration changed peer=%s keys=%s", connection.remote_text, changed)
        self._answer_when_saved(connection, request, self._updater.saver)

    def _get_config(self, connection: ServerConnection, request: Request) -> None:
        connection.reply(request, body=self._config.to_properties().encode("utf-8"))

    def _info(self, connection: ServerConnection, request: Request) -> None:
        rivals = [
            RivalInfo(rival.broker_name, rival.broker_id, rival.address, rival.holder)
            for rival in self._routes.rivals()
        ]
        info = NameServerInfo(rivals, self._controller_address())
        header = {"twinlog": "1", "role": "namesrv"}
        failures = {} if self._failures is None else self._failures.status()
        body = fastjson.dumps({**failures, **msgspec.to_builtins(info)})
        connection.reply(request, header=header, body=body)


def _kv_key(
    header: headers.PutKVConfigRequestHeader | headers.DeleteKVConfigRequestHeader, request: Request
) -> str:
    return f"namespace={header.namespace} key={header.key}"


def _broker_name(
    header: headers.WipeWritePermOfBrokerRequestHeader | headers.AddWritePermOfBrokerRequestHeader,
    request: Request,
) -> str:
    return f"broker_name={header.broker_name}"


def _topic_name(header: headers.DeleteTopicInNamesrvRequestHeader, request: Request) -> str:
    return f"topic={header.topic} cluster_name={header.cluster_name}"


def _config_keys(header: NoHeader, request: Request) -> str:
    return "keys=" + ",".join(sorted(parse_update(request.body)))


def _identity(
    header: headers.RegisterBrokerRequestHeader | headers.UnregisterBrokerRequestHeader,
    ha_server_addr: str = "",
    lineage: str = "",
) -> BrokerIdentity:
    return BrokerIdentity(
        cluster_name=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=header.broker_addr,
        ha_server_addr=ha_server_addr,
        lineage=lineage,
    )


def _scope(header: headers.RegisterBrokerRequestHeader) -> TopicScope:
    return _SCOPES.get(header.twinlog_topics or "", TopicScope.BY_VERSION)


def _registration(request: Request, *, is_compressed: bool) -> RegisterBrokerBody:
    if not request.body:
        return RegisterBrokerBody(TopicConfigSerializeWrapper())
    if request.version < VERSION_3_0_11:
        return decode_old_registration(request.body)
    return decode_registration(request.body, compressed=is_compressed)


def _list(topics: Callable[[], TopicList]) -> Handler:
    def answer(connection: ServerConnection, request: Request) -> None:
        connection.reply(request, body=fastjson.dumps(topics()))

    return answer
