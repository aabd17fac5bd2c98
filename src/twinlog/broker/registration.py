"""Being known to the name servers: 103, 104, 322, 904. Answers to RocketMQ's BrokerOuterAPI.

Registers with all of them at the start, every `registerNameServerPeriod` and at once when a topic
changes. One name server that is away costs a log line, never the others their registration. To a
name server that said it is twinlog a heartbeat goes every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from twinlog.broker import perm
from twinlog.broker.topic_config import TopicConfigManager
from twinlog.message.crc import body_crc
from twinlog.remoting import fastjson
from twinlog.remoting.acl import REFUSAL
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.registration import (
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.namesrv import (
    BrokerHeartbeatRequestHeader,
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
_RETRY_MS = 2_000
_UNREGISTER_TIMEOUT_MS = 3_000

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
    ) -> None:
        self._config = config
        self._client = client
        self._topics = topics
        self._clock = clock
        self._broker_address = broker_address
        self._ha_address = ha_address
        self._on_master = on_master
        self._twinlog_servers: set[str] = set()
        self._failing: dict[str, str] = {}
        self._changed: set[str] = set()
        self._must_register_all = False
        self._wake = asyncio.Event()
        self._is_enabled = True
        self._is_registered = False
        topics.subscribe(self.topics_changed)

    @property
    def addresses(self) -> list[str]:
        text = self._config.namesrv_addr or ""
        return [address.strip() for address in text.split(";") if address.strip()]

    def start(self, tasks: TaskOwner) -> None:
        tasks.contained("register", self._run)
        tasks.contained("namesrv-heartbeat", self._heartbeats)

    def topics_changed(self, topics: Iterable[str]) -> None:
        """Register these topics at once."""
        self._changed.update(topics)
        self._wake.set()

    def wake(self) -> None:
        """Register everything at once (permission changed, a name server forgot us)."""
        self._must_register_all = True
        self._wake.set()

    def ask_master(self) -> None:
        """Register without topics, for the sake of the answer: a slave looks for its master."""
        self._wake.set()

    async def _run(self) -> None:
        await self.register_all()
        while True:
            period = self._period_ms()
            try:
                async with asyncio.timeout(period / 1000):
                    await self._wake.wait()
            except TimeoutError:
                await self._register_periodically()
                continue
            self._wake.clear()
            changed, self._changed = self._changed, set()
            must_register_all, self._must_register_all = self._must_register_all, False
            await (self.register_all() if must_register_all else self.register_topics(changed))

    def _period_ms(self) -> int:
        """Apache's period, but soon again while a name server does not answer: until it knows us
        no client finds this broker through it."""
        if self._failing:
            return _RETRY_MS
        return min(max(self._config.register_name_server_period, _PERIOD_MS_MIN), _PERIOD_MS_MAX)

    async def _register_periodically(self) -> None:
        if self._failing or self._config.force_register or await self._is_changed():
            await self.register_all()

    async def _is_changed(self) -> bool:
        """Ask every name server whether it has our data version (322)."""
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        body = fastjson.dumps(self._topics.data_version.to_json())
        answers = await self._ask_all(
            lambda: RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, header, body)
        )
        return any(
            answer is None or answer.ext().get("changed", "true").lower() == "true"
            for answer in answers.values()
        )

    async def register_all(self) -> None:
        """Register every topic with every name server."""
        await self._register(self._topics.table)

    async def register_topics(self, names: Iterable[str]) -> None:
        """Register only these topics: name servers keep what is not mentioned."""
        table = {name: topic for name in names if (topic := self._topics.select(name)) is not None}
        await self._register(table)

    def withdraw(self) -> None:
        """Another broker has this one's place: register no more, and say no goodbye. Apache's name
        server takes a goodbye for that of whoever has the id."""
        self._is_enabled = self._is_registered = False

    async def unregister_all(self) -> None:
        """Say goodbye (104), so that no client is sent here any more."""
        self._is_enabled = False
        if not self._is_registered:
            return
        header = UnregisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            broker_id=self._config.broker_id,
        )
        await self._ask_all(
            lambda: RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header),
            timeout_ms=_UNREGISTER_TIMEOUT_MS,
        )

    async def _register(self, table: dict[str, TopicConfig]) -> None:
        if not self._is_enabled:
            return
        self._is_registered = True
        body = self._body(table)
        header = RegisterBrokerRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._broker_address,
            cluster_name=self._config.broker_cluster_name,
            ha_server_addr=self._ha_address,
            broker_id=self._config.broker_id,
            compressed=self._config.compressed_register,
            body_crc32=body_crc(body),
        )
        answers = await self._ask_all(
            lambda: RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
        )
        good = {address: answer for address, answer in answers.items() if answer is not None}
        headers = [self._note_answer(address, answer) for address, answer in good.items()]
        if headers and self._on_master is not None and self._config.broker_role == "SLAVE":
            # One name server may not know yet what another does: the first that knows counts.
            found = next((h for h in headers if h.master_addr or h.ha_server_addr), headers[0])
            self._on_master(found.ha_server_addr, found.master_addr)
        if good:
            self._update_order(next(iter(good.values())))

    def _body(self, table: dict[str, TopicConfig]) -> bytes:
        topics = {name: self._advertised(topic) for name, topic in table.items()}
        version = self._topics.data_version
        wrapper = TopicConfigSerializeWrapper(
            DataVersion(version.counter, version.timestamp), topics
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

    def _note_answer(self, address: str, answer: Request) -> RegisterBrokerResponseHeader:
        header = answer.header(RegisterBrokerResponseHeader)
        if header.twinlog is not None:
            self._twinlog_servers.add(address)
        return header

    def _update_order(self, answer: Request) -> None:
        if not answer.body:
            return
        table = fastjson.loads(answer.body)
        self._topics.update_order((table or {}).get("table") or {})

    async def _ask_all(
        self, make: Callable[[], RemotingCommand], timeout_ms: int | None = None
    ) -> dict[str, Request | None]:
        """One request to each name server at the same time; None where none answered well."""
        addresses = self.addresses
        timeout = self._config.register_broker_timeout_mills if timeout_ms is None else timeout_ms
        answers = await asyncio.gather(
            *(self._ask(address, make(), timeout) for address in addresses)
        )
        return dict(zip(addresses, answers, strict=True))

    async def _ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> Request | None:
        try:
            answer = await self._client.invoke(address, command, timeout_ms)
        except (RemotingError, OSError) as error:
            self._note_failure(address, command.code, str(error))
            return None
        if answer.code != ResponseCode.SUCCESS:
            reason = f"code {answer.code} {answer.remark}"
            if REFUSAL in (answer.remark or ""):
                reason += "; name server refuses our account: set twinlogAccessKey and "
                reason += "twinlogSecretKey to an admin account of its plain_acl.yml"
            self._note_failure(address, command.code, reason)
            return None
        if self._failing.pop(address, None) is not None:
            _LOG.info("name server answers again address=%s", address)
        return answer

    def _note_failure(self, address: str, code: int, reason: str) -> None:
        self._twinlog_servers.discard(address)
        if self._failing.get(address) != reason:
            self._failing[address] = reason
            _LOG.warning(
                "name server request failed address=%s code=%d reason=%s", address, code, reason
            )

    async def _heartbeats(self) -> None:
        """904 every second to those that understand it: they notice at once when we stop."""
        while True:
            await self._clock.sleep_ms(_HEARTBEAT_MS)
            for address in list(self._twinlog_servers):
                await self._heartbeat(address)

    async def _heartbeat(self, address: str) -> None:
        connection = self._client.connection(address)
        if connection is None:
            # The connection broke: the name server forgot us, so register instead.
            self._twinlog_servers.discard(address)
            self.wake()
            return
        header = BrokerHeartbeatRequestHeader(
            cluster_name=self._config.broker_cluster_name,
            broker_addr=self._broker_address,
            broker_name=self._config.broker_name,
            broker_id=self._config.broker_id,
        )
        connection.oneway(RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header))
