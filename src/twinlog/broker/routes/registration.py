"""Being known to the name servers: 103, 104, 322, 904. Corresponds to RocketMQ's BrokerOuterAPI.

Registers with all of them at the start, every `registerNameServerPeriod` and at once when a topic
changes. One name server that is away costs a log line, never the others their registration. To a
name server that said it is twinlog a heartbeat goes every second.

What a name server must be told is decided by what *it* acknowledged (`namesrv_view.py`): a
registration carries everything that changed since then, because a name server takes a table's
version for known as soon as it has seen it. One registration is on its way to each at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from twinlog.broker.role import Role
from twinlog.broker.routes.namesrv_view import NamesrvView, Plan, TopicChanges
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.message import perm
from twinlog.message.crc import body_crc
from twinlog.remoting import fastjson
from twinlog.remoting.acl import REFUSAL
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.ha import HARival
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from twinlog.remoting.bodies.route import MASTER_ID, ClusterInfo
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Header, RemotingCommand, Request
from twinlog.remoting.errors import CommandError, RemotingError, RequestTimeoutError
from twinlog.remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
    GetTopicsByClusterRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnregisterBrokerRequestHeader,
)
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.broker")

_PERIOD_MS_MIN = 10_000
_PERIOD_MS_MAX = 60_000
_HEARTBEAT_MS = 1_000
_REDIAL_MS = 500  # A name server that comes back has no routes until its brokers are there.
_RETRY_MS = 2_000
_UNREGISTER_TIMEOUT_MS = 3_000
ANNOUNCE_MS = 3_000  # So long the answer to updateTopic waits for the route.
# So long that of a send which creates its topic: below the 3 s that clients wait for it.
ANNOUNCE_SEND_MS = 1_500
_RIVAL_LOG_MS = 60_000
_SILENCES_MAX = 2

# Called with (HA address of the master, service address of the master), None when unknown.
MasterListener = Callable[[str | None, str | None], None]


class Registration:
    """The broker's side of every name server it knows."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        client: RemotingClient,
        topics: TopicConfigManager,
        clock: Clock,
        broker_address: str,
        ha_address: str,
        on_master: MasterListener | None = None,
        role: Role,
    ) -> None:
        self._config = config
        self._role = role
        self._client = client
        self._topics = topics
        self._clock = clock
        self._broker_address = broker_address
        self._ha_address = ha_address
        self._on_master = on_master
        self._changes = TopicChanges(lambda: self._topics.table)
        self._views: dict[str, NamesrvView] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._told = asyncio.Event()  # Set, and replaced, whenever a name server has answered.
        self._rivals_logged_ms: dict[str, int] = {}
        self._is_enabled = True
        self.is_paused = self._role.is_controlled
        """In a controlled group: this broker does not know yet, or any more, what it is."""
        self._is_registered = False
        self.on_rival: Callable[[str], None] = lambda address: None
        """Called with the address of another broker that lives with our name and id."""
        self.on_newer_epoch: Callable[[int], None] = lambda epoch: None
        self.lineage = ""
        """Of the controlled group in which this broker was elected; see GroupRecord."""
        topics.subscribe(self.topics_changed)

    @property
    def addresses(self) -> list[str]:
        text = self._config.namesrv_addr or ""
        return [address.strip() for address in text.split(";") if address.strip()]

    def start(self, tasks: TaskOwner) -> None:
        tasks.contained("register", partial(self._run, tasks))
        tasks.contained("namesrv-heartbeat", self._heartbeats)

    # What changed

    def topics_changed(self, topics: Iterable[str]) -> None:
        """Register these topics at once."""
        self._changes.changed(topics)
        self._wake_all()

    def wake(self) -> None:
        """Register everything at once (permission changed, a name server forgot us)."""
        for view in self._views.values():
            view.forget()
        self._wake_all()

    def ask_master(self) -> None:
        """Register for the sake of the answer: a slave looks for its master."""
        self._wake_all()

    def _wake_all(self) -> None:
        for event in self._wakes.values():
            event.set()

    # Waiting for the route

    async def register_all(self) -> None:
        """Register everything with every name server, and wait for their answers."""
        self.wake()
        await self.announce()

    async def announce(self, limit_ms: int = ANNOUNCE_MS) -> str | None:
        """Wait until the name servers have every topic of now. None: those that answer have it.

        A text says that none did within the limit: clients do not find the topic yet.
        """
        number = self._changes.number
        deadline_ms = self._clock.monotonic_ms() + limit_ms
        while self.addresses and self._is_enabled:
            told, views = self._told, self._current_views()
            has_it = [view for view in views if view.knows(number)]
            if has_it and all(view.knows(number) or view.failure for view in views):
                return None
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                late = [a for a in self.addresses if a not in {v.address for v in has_it}]
                return f"no route within {limit_ms} ms: {', '.join(late)} did not answer"
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await told.wait()
            except TimeoutError:
                continue
        return None

    @property
    def is_announced(self) -> bool:
        """Whether there is nothing to wait for: every name server has every topic of now."""
        number = self._changes.number
        return all(
            (view := self._views.get(address)) is not None and view.knows(number)
            for address in self.addresses
        )

    def _current_views(self) -> list[NamesrvView]:
        return [self._views[address] for address in self.addresses if address in self._views]

    # One loop for each name server

    async def _run(self, tasks: TaskOwner) -> None:
        """Name servers may be added and taken away while we run."""
        while True:
            for address in self.addresses:
                if address not in self._views:
                    self._views[address] = NamesrvView(address)
                    self._wakes[address] = asyncio.Event()
                    tasks.contained("register-with", partial(self._serve, address), about=address)
            await self._clock.sleep_ms(_HEARTBEAT_MS)

    async def _serve(self, address: str) -> None:
        view, wake = self._views[address], self._wakes[address]
        is_periodic = False
        while address in self.addresses:
            wake.clear()
            if is_periodic:
                await self._prepare_periodic(view)
            is_well = await self._register(view)
            is_periodic = False
            if is_well and view.acknowledged is None and view.is_repaired:
                continue  # It differs: everything, at once.
            try:
                async with asyncio.timeout(self._period_ms(view) / 1000):
                    await wake.wait()
            except TimeoutError:
                is_periodic = True
        del self._views[address], self._wakes[address]

    def _period_ms(self, view: NamesrvView) -> int:
        """Apache's period, but soon again while a name server does not answer, or has another
        broker in our place: until it knows us no client finds this broker through it."""
        if view.failure:
            return _REDIAL_MS
        if not view.is_in_route:
            return _RETRY_MS
        return min(max(self._config.register_name_server_period, _PERIOD_MS_MIN), _PERIOD_MS_MAX)

    async def _prepare_periodic(self, view: NamesrvView) -> None:
        """Of a twinlog name server the answer tells whether it has our topics. Of another one it
        must be found out."""
        if view.is_twinlog or view.failure:
            return
        await self._look_for_rival(view)
        if self._role.broker_id == MASTER_ID and await self._lacks_topics(view):
            # The same version would be taken for known.
            self._topics.bump_version()
            view.forget()
        elif self._config.force_register or await self._is_changed(view):
            view.forget()

    async def _lacks_topics(self, view: NamesrvView) -> bool:
        """Whether topics of ours are missing there (224). The list is that of the cluster."""
        header = GetTopicsByClusterRequestHeader(self._config.broker_cluster_name)
        answer = await self._ask(view, RequestCode.GET_TOPICS_BY_CLUSTER, header)
        names = None if answer is None else _member(answer.body, "topicList")
        if not isinstance(names, list):
            return False
        # What changed since is on its way.
        missing = (
            self._topics.table.keys()
            - set(names)
            - set(self._changes.since(view.acknowledged or 0))
        )
        if missing:
            _LOG.warning(
                "name server lacks topics, registering all address=%s count=%d first=%s",
                view.address, len(missing), min(missing),
            )  # fmt: skip
        return bool(missing)

    async def _look_for_rival(self, view: NamesrvView) -> None:
        """An Apache name server has whoever registered last (106): is it still us?"""
        answer = await self._ask(view, RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            cluster = None if answer is None else fastjson.loads_as(answer.body, ClusterInfo)
        except ValueError:
            return  # Not a list of brokers.
        holders = {} if cluster is None else cluster.addresses_of(self._config.broker_name)
        if holders:
            holder = holders.get(self._role.broker_id)
            is_other = holder is not None and holder != self._broker_address
            self._note_rival(view, holder if is_other else None, is_in_route=True)

    async def _is_changed(self, view: NamesrvView) -> bool:
        """Ask whether it has our data version (322)."""
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._role.broker_id,
        )
        version = self._topics.data_version.to_json()
        if self._role.epoch:
            version["stateVersion"] = self._role.epoch
        body = fastjson.dumps(version)
        answer = await self._ask(view, RequestCode.QUERY_DATA_VERSION, header, body)
        return answer is None or answer.ext().get("changed", "true").lower() == "true"

    # Registering

    def withdraw(self) -> None:
        """Another broker has this one's place: register no more, and say no goodbye. Apache's name
        server takes a goodbye for that of whoever has the id."""
        self._is_enabled = self._is_registered = False

    def pause(self) -> None:
        """Say nothing until this broker knows again what it is."""
        self.is_paused = True

    def resume(self) -> None:
        """This broker has a role, perhaps another one than before: tell everybody at once."""
        self.is_paused = False
        if self._role.is_master:
            self._topics.bump_version()  # The same version would be taken for known.
        self.wake()

    async def _register(self, view: NamesrvView) -> bool:
        """One registration. True: it was taken."""
        if not self._is_enabled or self.is_paused:
            return False
        self._is_registered = True
        before = self._client.connection(view.address)
        plan = view.plan(self._changes, before)
        body = self._body(self._planned(plan))
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._role.broker_id,
            compressed=self._config.compressed_register,
            body_crc32=body_crc(body),
            twinlog_topics=plan.scope,
            twinlog_lineage=(self._role.epoch and self.lineage) or None,
        )
        answer = await self._ask(view, RequestCode.REGISTER_BROKER, header, body)
        after = self._client.connection(view.address)
        if answer is not None:
            if plan.names is not None and after is not before:
                # A part went to a name server that may know nothing else: everything, again.
                self._topics.bump_version()
                view.forget()
            else:
                view.answered(plan, after)
                self._note_answer(view, plan, answer)
        self._changes.forget(min((v.acknowledged or 0 for v in self._views.values()), default=0))
        told, self._told = self._told, asyncio.Event()
        told.set()
        return answer is not None

    def _planned(self, plan: Plan) -> dict[str, TopicConfig]:
        if plan.names is None:
            return self._topics.table
        return {n: topic for n in plan.names if (topic := self._topics.select(n)) is not None}

    def _body(self, table: dict[str, TopicConfig]) -> bytes:
        topics = {name: self._advertised(topic) for name, topic in table.items()}
        version = self._topics.data_version
        wrapper = TopicConfigSerializeWrapper(
            DataVersion(version.counter, version.timestamp, self._role.epoch or None), topics
        )
        return encode_registration(
            RegisterBrokerBody(wrapper), compressed=self._config.compressed_register
        )

    def _advertised(self, topic: TopicConfig) -> TopicConfig:
        """A broker that is not open for reading and writing says so for all its topics."""
        permission = self._config.broker_permission
        if perm.is_readable(permission) and perm.is_writeable(permission):
            return topic
        return msgspec.structs.replace(topic, perm=permission)

    def _note_answer(self, view: NamesrvView, plan: Plan, answer: Request) -> None:
        try:
            header = answer.header(RegisterBrokerResponseHeader)
        except CommandError as error:
            _LOG.warning(
                "unexpected answer of name server address=%s reason=%s", view.address, error
            )
            return
        view.is_twinlog = header.twinlog is not None
        view.master = (header.ha_server_addr, header.master_addr)
        if header.twinlog_epoch is not None:
            self.on_newer_epoch(header.twinlog_epoch)
        if view.is_twinlog:
            self._note_rival(
                view, header.twinlog_rival, is_in_route=header.twinlog_in_route is not False
            )
            self._compare(view, plan, header.twinlog_digest)
        good = [v for v in self._current_views() if v.is_answering]
        is_asked = self._on_master is not None and not self._role.is_controlled
        if good and is_asked and self._role.is_slave:
            assert self._on_master is not None
            # One name server may not know yet what another does: the first that knows counts.
            self._on_master(*next((v.master for v in good if any(v.master)), good[0].master))
        if good and good[0] is view:
            self._update_order(answer)

    def _compare(self, view: NamesrvView, plan: Plan, digest: str | None) -> None:
        """Whether it has exactly our topics. Only those of a master in the route count."""
        if self._role.broker_id != MASTER_ID or not view.is_in_route or digest is None:
            return
        if not view.compare(plan, digest) and not view.is_repaired:
            _LOG.warning("name server has other topics than we told it address=%s", view.address)

    def _note_rival(self, view: NamesrvView, rival: str | None, *, is_in_route: bool) -> None:
        view.rival, view.is_in_route = rival, is_in_route
        now_ms = self._clock.monotonic_ms()
        if rival is None:
            self._rivals_logged_ms.pop(view.address, None)
            return
        self.on_rival(rival)
        logged_ms = self._rivals_logged_ms.get(view.address)
        if logged_ms is not None and now_ms - logged_ms < _RIVAL_LOG_MS:
            return
        self._rivals_logged_ms[view.address] = now_ms
        _LOG.error(
            "another broker has our name and id name=%s id=%d ours=%s other=%s in_route=%s "
            "namesrv=%s: stop one of the two, or give it another brokerName or brokerId",
            self._config.broker_name, self._role.broker_id, self._broker_address, rival,
            "ours" if is_in_route else "the other", view.address,
        )  # fmt: skip

    def rivals(self) -> list[HARival]:
        """Living brokers with our name and id, as the name servers know them; for the status."""
        return [
            HARival(view.rival, view.address, view.is_in_route)
            for view in self._current_views()
            if view.rival is not None
        ]

    def _update_order(self, answer: Request) -> None:
        orders = _member(answer.body, "table") if answer.body else {}
        if isinstance(orders, dict) or orders is None:
            self._topics.update_order(orders or {})

    async def unregister_all(self) -> None:
        """Say goodbye (104), so that no client is sent here any more."""
        self._is_enabled = False
        if not self._is_registered:
            return
        header = UnregisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._role.broker_id,
        )
        views = [NamesrvView(address) for address in self.addresses]
        await asyncio.gather(
            *(
                self._ask(
                    view, RequestCode.UNREGISTER_BROKER, header, timeout_ms=_UNREGISTER_TIMEOUT_MS
                )
                for view in views
            )
        )

    # Requests

    async def _ask(
        self,
        view: NamesrvView,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> Request | None:
        """One request; None when it was not answered well."""
        command = RemotingCommand.request(code, header, body)
        timeout = self._config.register_broker_timeout_mills if timeout_ms is None else timeout_ms
        try:
            answer = await self._client.invoke(view.address, command, timeout)
        except (RemotingError, OSError) as error:
            self._note_failure(view, code, str(error))
            if isinstance(error, RequestTimeoutError):
                self._note_silence(view)
            return None
        view.silences = 0
        if answer.code != ResponseCode.SUCCESS:
            reason = f"code {answer.code} {answer.remark}"
            if REFUSAL in (answer.remark or ""):
                reason += "; name server refuses our account: set twinlogAccessKey and "
                reason += "twinlogSecretKey to an admin account of its plain_acl.yml"
            self._note_failure(view, code, reason)
            return None
        if view.failure:
            view.failure = ""
            _LOG.info("name server answers again address=%s", view.address)
        return answer

    def _note_silence(self, view: NamesrvView) -> None:
        """A connection may stand though nobody is there any more: dial again after the second."""
        view.silences += 1
        if view.silences >= _SILENCES_MAX:
            view.silences = 0
            self._client.close_connection(view.address, "the name server does not answer")

    def _note_failure(self, view: NamesrvView, code: int, reason: str) -> None:
        is_new = view.failure != reason
        view.failed(reason)
        if is_new:
            _LOG.warning(
                "name server request failed address=%s code=%d reason=%s",
                view.address, code, reason,
            )  # fmt: skip

    async def _heartbeats(self) -> None:
        """904 every second to those that understand it: they notice at once when we stop."""
        while True:
            await self._clock.sleep_ms(_HEARTBEAT_MS)
            for view in () if self.is_paused else self._current_views():
                if view.is_answering:
                    self._heartbeat(view)

    def _heartbeat(self, view: NamesrvView) -> None:
        connection = self._client.connection(view.address)
        if connection is None or connection is not view.connection:
            # The connection broke: the name server forgot us, so register instead. Also when
            # another request has opened a new one since.
            view.is_twinlog = False
            self._wakes[view.address].set()
            return
        if not view.is_twinlog:
            return
        header = BrokerHeartbeatRequestHeader(
            cluster_name=self._config.broker_cluster_name,
            broker_addr=self._broker_address,
            broker_name=self._config.broker_name,
            broker_id=self._role.broker_id,
        )
        connection.oneway(RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header))


def _member(body: bytes, name: str) -> object:
    """One member of a JSON object; None when the body is not one."""
    try:
        data = fastjson.loads(body)
    except ValueError:
        return None
    return data.get(name) if isinstance(data, dict) else None
