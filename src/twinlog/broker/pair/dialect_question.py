"""A slave asks its master what it is, before it dials the HA port: the shell of `ha/dialect.py`.

The question (TWINLOG_INFO) goes to a service port. Which one belongs to the HA port is known from a
name server or guessed. A guessed address may be anybody's, and a known one may be another process's
by now, so an answer counts only from a broker of our group:

| trust      | address                              | twinlog counts  | not twinlog counts         |
|------------|--------------------------------------|-----------------|----------------------------|
| REGISTERED | registered together with the HA port | if of our group | unless it says it is other |
| GUESSED    | same host: HA port - 1, our own port | if of our group | if it says it is ours      |
| ELSEWHERE  | the master with another HA port      | if of our group | never                      |

It says so in its configuration (GET_BROKER_CONFIG), which every Apache broker gives: `brokerName`
is ours and `haListenPort` the port that is to be dialled.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable

from twinlog.ha.dialect import DialectJudge, Heard, Verdict
from twinlog.remoting import fastjson
from twinlog.remoting.addresses import join_address
from twinlog.remoting.bodies.twinlog import BrokerInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.address_set import address_or_none
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.numbers import number_or_none

_LOG = logging.getLogger("twinlog.broker")
_ASK_TIMEOUT_MS = 3_000  # A master under load answers late, and nothing is dialled before.


class Trust(enum.Enum):
    """How an address belongs to the HA port that is to be dialled."""

    REGISTERED = "registered"
    GUESSED = "guessed"
    ELSEWHERE = "elsewhere"


class DialectQuestion:
    """Asks, and remembers what was heard. `heard` is called with news: whether the master is
    another kind than before."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        client: RemotingClient,
        identity: Callable[[], dict[str, str]],
        heard: Callable[[bool], None],
        is_copy: Callable[[], bool],
    ) -> None:
        self._config = config
        self._client = client
        self._identity = identity
        self._on_heard = heard
        self._is_copy = is_copy
        self._registered: tuple[str, str | None] | None = None
        self._asked_about = ""
        self._complaint: tuple[str, str] | None = None  # Said once, not every few seconds.
        self._lock = asyncio.Lock()
        self._judge = DialectJudge(
            config.twinlog_ha_dialect.value,
            has_credentials=bool(config.twinlog_ha_secret) or config.twinlog_ha_tls,
        )

    @property
    def heard(self) -> Heard:
        """Of the master that was asked last."""
        return self._judge.heard_of(self._asked_about)

    @property
    def refusal(self) -> str:
        """Why the master is not known yet although it answers; empty when it is."""
        if self._complaint is None or self.heard is not Heard.NOTHING:
            return ""
        address, remark = self._complaint
        hint = "; set twinlogAccessKey and twinlogSecretKey" if "AclException" in remark else ""
        return f"{address} does not say what it is: {remark}{hint}"

    def registered(self, address: str, ha_address: str | None) -> None:
        """What a name server says, or the master itself: its service and its HA address."""
        self._registered = (address, ha_address)

    async def ask(self, ha_address: str) -> Verdict:
        """What to speak at `ha_address`; asked again, whatever was heard before."""
        if self._judge.must_ask:
            async with self._lock:
                await self._ask_all(ha_address)
        self._asked_about = ha_address
        host = ha_address.rpartition(":")[0]
        peers = self._config.ha_classic_peers
        # A name is looked at when it has become an address: see `MasterLink`.
        is_listed = host in peers or (bool(peers) and address_or_none(host) is None)
        return self._judge.verdict(ha_address, is_copy=self._is_copy(), is_listed=is_listed)

    async def _ask_all(self, ha_address: str) -> None:
        heard, address = Heard.NOTHING, ""
        for address, trust in self._service_addresses(ha_address).items():
            heard = await self._ask_one(address, trust, ha_address.rpartition(":")[2])
            if heard is not Heard.NOTHING:
                break
        is_news = heard is not self._judge.heard_of(ha_address)
        is_other = self._judge.hear(ha_address, heard)
        if is_news and heard is not Heard.NOTHING:
            _LOG.info("master is %s address=%s ha=%s", heard.value, address, ha_address)
            self._on_heard(is_other)

    def _service_addresses(self, ha_address: str) -> dict[str, Trust]:
        """Where to ask, the surest first. Never at an HA port, where the question would be taken
        for an acknowledgement, and never at our own ports."""
        config = self._config
        found: dict[str, Trust] = {}
        address, registered_ha = self._registered or ("", None)
        if registered_ha == ha_address:
            found[address] = Trust.REGISTERED
        host, _, port = ha_address.rpartition(":")
        host = host.strip("[]")
        if (number := number_or_none(port, 2, 65535)) is not None:
            found.setdefault(join_address(host, number - 1), Trust.GUESSED)
        found.setdefault(join_address(host, config.listen_port), Trust.GUESSED)
        found.setdefault(address, Trust.ELSEWHERE)
        own = (
            join_address(ip, config.listen_port) for ip in (config.broker_ip1, config.bind_address)
        )
        for never in ("", ha_address, registered_ha or "", *own):
            found.pop(never, None)
        return found

    async def _ask_one(self, address: str, trust: Trust, ha_port: str) -> Heard:
        answer = await self._invoke(address, RequestCode.TWINLOG_INFO, self._identity())
        if answer is None:
            return Heard.NOTHING
        if answer.code == ResponseCode.SUCCESS:
            return self._heard_from_twinlog(answer)
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._complain(address, answer)
            return Heard.NOTHING
        if trust is Trust.ELSEWHERE:
            return Heard.NOTHING
        is_ours = await self._is_apache_of_ours(address, ha_port)
        if is_ours is None:
            is_ours = trust is Trust.REGISTERED
        return Heard.NOT_TWINLOG if is_ours else Heard.NOTHING

    def _heard_from_twinlog(self, answer: Request) -> Heard:
        """A broker of our group other than this one? Not a name server or another group's."""
        try:
            peer = fastjson.loads_as(answer.body, BrokerInfo)
        except ValueError:
            return Heard.NOTHING
        ours = self._identity()
        is_group = (peer.cluster_name, peer.broker_name) == (
            ours["clusterName"], ours["brokerName"],
        )  # fmt: skip
        is_self = peer.broker_id == ours["brokerId"]
        return Heard.TWIN if is_group and not is_self else Heard.NOTHING

    async def _is_apache_of_ours(self, address: str, ha_port: str) -> bool | None:
        """Whether the process there is the broker of our name with that HA port; None when it does
        not say, as a name server does not."""
        answer = await self._invoke(address, RequestCode.GET_BROKER_CONFIG, {})
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        lines = set(bytes(answer.body).decode("utf-8", "replace").splitlines())
        return {f"brokerName={self._config.broker_name}", f"haListenPort={ha_port}"} <= lines

    async def _invoke(self, address: str, code: int, header: dict[str, str]) -> Request | None:
        command = RemotingCommand.request(code, header)
        try:
            return await self._client.invoke(address, command, _ASK_TIMEOUT_MS)
        except (RemotingError, OSError) as error:
            # Not a verdict: the process behind the address may not be up yet.
            _LOG.debug("master not asked yet address=%s reason=%s", address, error)
            return None

    def _complain(self, address: str, answer: Request) -> None:
        """No verdict either: the rules may change, and the question is then asked again."""
        remark = answer.remark or ""
        if (address, remark) == self._complaint:
            return
        self._complaint = (address, remark)
        if "AclException" in remark:
            _LOG.warning(
                "master refuses our account address=%s reason=%s; set twinlogAccessKey and"
                " twinlogSecretKey to an admin account of its plain_acl.yml", address, remark,
            )  # fmt: skip
        else:
            _LOG.warning(
                "master does not say whether it is twinlog address=%s code=%d reason=%s;"
                " it is asked again",
                address, answer.code, remark,
            )  # fmt: skip
