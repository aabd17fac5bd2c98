"""Who is the master of a group since when: promotions, and what a broker does about them.

Has no counterpart in RocketMQ, where two brokers that both say brokerId=0 both serve. A copy that
becomes the master counts it as a promotion: a number in `identity.json`, the time in milliseconds
and always above every number that this replica has heard of. So a master that comes back after it
was replaced can know, and ends instead of taking sends for a log that nobody follows.

A slave remembers in `store/twinlog/group.json` what its master last said about the group: when the
master is gone, that is what a promotion is judged by (`admin/promotion.py`).
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

import msgspec

from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.step_back import StepBack
from twinlog.broker.role import Role
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.route import ClusterInfo
from twinlog.remoting.bodies.twinlog import ReplicaInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.errors import StoreError

_LOG = logging.getLogger("twinlog.broker")
T = TypeVar("T")

_ASK_TIMEOUT_MS = 1_000
_LEARN_MS = 5_000  # A slave asks its master so often what the group looks like.
_LEARN_FIRST_MS = 500  # The same of a master that it has not heard yet.
_HEARD_MAX = 16
_SILENT_MS = 15_000
_TELL_MS = 5_000  # A promoted master tells the one before it so often that it was replaced.


class NotTheMasterError(StoreError):
    """This broker must not serve as the master of its group; the text says why and what to do."""


class ReplacedError(NotTheMasterError):
    """Another broker was promoted since; `taken_ids` are those that its group has."""

    def __init__(self, text: str, taken_ids: Collection[int]) -> None:
        super().__init__(text)
        self.taken_ids = taken_ids


class GroupMemory(msgspec.Struct):
    """What a slave knows of its group when its master is gone."""

    master_address: str = ""
    master_role: str = ""
    in_sync_replicas: int = 0  # 0: never heard of.
    replica_ids: list[int] = msgspec.field(default_factory=list)
    heard_ms: int = 0


def read_memory(data: bytes) -> GroupMemory:
    """What a file holds; nothing is known if it is damaged."""
    try:
        return decode_saved(data, GroupMemory)
    except BrokenSealError as error:
        # Only a promotion asks for it, and says then that it is not known.
        _LOG.warning("group not readable error=%s", error)
        return GroupMemory()


class Succession:
    """Promotions of one broker's group."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        client: RemotingClient,
        identity: StoreIdentity,
        address: str,
        log_end: Callable[[], int],
        master_address: Callable[[], str | None],
        is_linked: Callable[[], bool],
        withdraw: Callable[[], None],
        fail: Callable[[str], None],
        step_back: StepBack,
        tasks: TaskOwner,
        role: Role,
    ) -> None:
        self._config = config
        self._role = role
        self._disk = disk
        self._clock = clock
        self._client = client
        self._identity = identity
        self._address = address
        self._log_end = log_end
        self._master_address = master_address
        self._is_linked = is_linked
        self._withdraw = withdraw
        self._fail = fail
        self._step_back = step_back
        self._tasks = tasks
        self._name_servers: list[str] = []
        self._path = posixpath.join(config.store_path_root_dir, "twinlog", "group.json")
        self.memory = GroupMemory()
        self._heard_addresses: set[str] = set()
        self._silent_until_ms: dict[str, int] = {}
        self._is_news = asyncio.Event()
        self._asked: tuple[str, ReplicaInfo] | None = None
        self.is_saved = True
        """What was heard is on the disk: a start by hand knows it."""

    def load(self) -> None:
        """After the identity. A master that has become a slave knows nothing of its group: what it
        heard when it was a slave before is older than its own time as the master."""
        if not self._disk.exists(self._path):
            return
        if self._identity.was_master and not self._role.is_master:
            self._disk.unlink(self._path)
        else:
            self.memory = read_memory(self._disk.read_bytes(self._path))

    # At a start

    async def check_start(self, name_servers: list[str]) -> None:
        """Before this broker serves as the master: may it?

        Raises:
            NotTheMasterError: another broker was promoted since, as it or a copy that followed it
                says; or this copy was made the master by hand while its master lives, or while
                another copy has more.
        """
        if not self._role.is_master:
            return
        self._name_servers = name_servers
        group = await self._registered(name_servers)
        other = group.pop(0, None)
        if other is not None and other != self._address:
            self._check_other_master(other, await self._facts(other), group)
        for address in group.values():
            facts = await self._facts(address)
            if facts is not None and facts.store_id == self._identity.store_id:
                self._check_other_copy(address, facts, group)

    def _check_other_master(
        self, address: str, facts: ReplicaInfo | None, slaves: Collection[int]
    ) -> None:
        if facts is None or facts.is_slave:
            return
        if facts.promotion > self._identity.promotion:
            taken_ids = {*slaves, *facts.replica_ids}
            raise ReplacedError(self._superseded_text(address), taken_ids)
        if self._identity.is_promotion:
            raise NotTheMasterError(
                f"the master of {self._config.broker_name} is alive at {address}: two masters would"
                " accept sends into two logs. Stop it first, or set brokerRole=SLAVE here again"
            )

    def _check_other_copy(self, address: str, facts: ReplicaInfo, slaves: Collection[int]) -> None:
        is_led_by_other = facts.master_address not in ("", self._address)
        if facts.promotion > self._identity.promotion and is_led_by_other:
            # The successor is not there, but is not forgotten: two logs would go on.
            raise ReplacedError(
                f"the replica {address} has followed a master of {self._config.broker_name} that"
                " was promoted after this broker: what that master acknowledged would be lost."
                f" {self._step_back.advice}; then see `twinlog ha promote`",
                slaves,
            )
        missing = facts.log_end - self._log_end()
        # A grant is for what was compared. It may be old: the master came back instead, and the
        # copies went on with it.
        is_longer = missing > 0 and facts.log_end > self._identity.granted_end
        if self._identity.is_promotion and is_longer:
            raise NotTheMasterError(
                f"the replica {address} has {missing} bytes of log that this one does not have:"
                " they would be lost. Promote that one; or set brokerRole=SLAVE here again, start"
                " it, and see `twinlog ha promote`, which says how many messages would be lost"
            )

    def _superseded_text(self, address: str) -> str:
        return (
            f"{address} became the master of {self._config.broker_name} after this broker, and is"
            f" running: this one would be a second master. {self._step_back.advice}"
        )

    def refused(self, error: NotTheMasterError) -> None:
        """A start as the master is refused: it may go back to being a slave instead."""
        if not self._step_back.void_promotion(str(error)) and isinstance(error, ReplacedError):
            self._step_back.replaced(error.taken_ids, str(error))

    # While it runs

    async def learn(self) -> None:
        """On a slave: keep what the master says of the group."""
        while True:
            self._is_news.clear()
            address = self._master_address()
            if address is not None and self._is_linked():
                facts = await self._facts(address)
                if facts is not None and not facts.is_slave:
                    self._heard(address, facts)
            is_known = self.memory.master_address == address and self.is_saved
            with suppress(TimeoutError):
                async with asyncio.timeout((_LEARN_MS if is_known else _LEARN_FIRST_MS) / 1000):
                    await self._is_news.wait()

    async def ask_before_link(self) -> None:
        """On a slave that is about to dial: what its master says counts from the link on, and so
        do the slave's acknowledgements. The master may be lost right after the first of them."""
        self._asked = None
        address = self._master_address()
        facts = None if address is None else await self._facts(address)
        if address is not None and facts is not None and not facts.is_slave:
            self._asked = (address, facts)

    def linked(self) -> None:
        """This slave follows a master from now on."""
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] == self._master_address():
            self._heard(*asked)
        self._is_news.set()  # Ask again, or for the first time.

    def _heard(self, address: str, facts: ReplicaInfo) -> None:
        before = self.memory
        self.memory = GroupMemory(
            address,
            facts.broker_role,
            facts.in_sync_replicas,
            facts.replica_ids,
            self._clock.now_ms(),
        )
        is_news = msgspec.structs.replace(before, heard_ms=self.memory.heard_ms) != self.memory
        was_saved, self.is_saved = self.is_saved, False
        try:
            self._identity.heard(facts.promotion)
            if is_news or not was_saved:
                make_own_directory(self._disk, self._config.store_path_root_dir)
                write_atomically(self._disk, self._path, encode_saved(self.memory))
            self.is_saved = True
        except OSError as error:
            # A full disk: known to this process, and written as soon as there is room.
            if was_saved:
                _LOG.warning("group not saved path=%s error=%s", self._path, error)

    async def tell_predecessor(self) -> None:
        """On a promoted master: the one before it may come back, and must know at once."""
        address = self.memory.master_address
        if not self._identity.promotion or address in ("", self._address):
            return
        while True:
            facts = await self._facts(address)
            if facts is not None and facts.is_slave:
                return
            if facts is not None:
                _LOG.warning("the master before this one serves again address=%s", address)
            await self._clock.sleep_ms(_TELL_MS)

    def met_rival(self, address: str) -> None:
        """A name server knows another broker in our place. Of two that were promoted at the same
        time, or without a name server, the later promotion stays: the question tells it ours."""
        if self._role.is_master and not self._role.is_controlled:
            self._tasks.job("hear-successor", self.hear_successor(address), about=address)

    def is_later(self, promotion: int, address: str) -> bool:
        """Whether that promotion is later than this broker's own. Of two in the same millisecond
        one has to be it, and both sides must say the same one."""
        return (promotion, address) > (self._identity.promotion, self._address)

    async def hear_successor(self, address: str) -> None:
        """A broker says that it was promoted: if that is true, this master ends."""
        facts = await self._facts(address)
        is_successor = (
            self._role.is_master
            and facts is not None
            and not facts.is_slave
            and facts.store_id == self._identity.store_id
            # Not this very broker, under an address that it had before.
            and facts.replica_uid != self._identity.replica_uid
            and self.is_later(facts.promotion, address)
        )
        if facts is not None and is_successor:
            taken_ids = set(facts.replica_ids)
            if self._step_back.is_wanted:  # Without it, ending waits for nobody.
                taken_ids |= set(await self._registered(self._name_servers))
            self.superseded(self._superseded_text(address), taken_ids)

    def superseded(self, reason: str, taken_ids: Collection[int]) -> None:
        """Another broker is the master: this one ends, and leaves the other's route alone."""
        self._withdraw()
        if self._step_back.unused_promotion(reason) or self._step_back.replaced(taken_ids, reason):
            return
        self._fail(reason)

    # Copies of the log

    def greeted(self, cluster_name: str | None, broker_name: str | None, address: str) -> None:
        """A broker of this group has asked, and said where it is."""
        ours = (self._config.broker_cluster_name, self._config.broker_name)
        if (cluster_name, broker_name) == ours and len(self._heard_addresses) < _HEARD_MAX:
            self._heard_addresses.add(address)
            self._silent_until_ms.pop(address, None)

    async def copies(self, name_servers: list[str]) -> list[str]:
        """Addresses of the brokers of this group that have the same store as this one."""
        known = {*(await self._registered(name_servers)).values(), *self._heard_addresses}
        master = self._master_address()
        if master is not None:
            known.add(master)
        found = []
        now_ms = self._clock.monotonic_ms()
        for address in sorted(known - {self._address}):
            if now_ms < self._silent_until_ms.get(address, 0):
                continue  # It is no twinlog, or gone: this is not urgent.
            facts = await self._facts(address)
            if facts is not None:
                if facts.store_id == self._identity.store_id:
                    found.append(address)
            else:
                self._heard_addresses.discard(address)
                self._silent_until_ms[address] = now_ms + _SILENT_MS
        return found

    # Questions

    def greeting(self) -> dict[str, str]:
        """Who asks, for TWINLOG_REPLICA."""
        config = self._config
        return {
            "clusterName": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerId": str(self._role.broker_id),
            "promotion": str(self._identity.promotion),
            "address": self._address,
        }

    async def _facts(self, address: str) -> ReplicaInfo | None:
        """What a broker of this group says of itself; None of any other, or without an answer."""
        found = await self._ask(address, RequestCode.TWINLOG_REPLICA, ReplicaInfo, self.greeting())
        ours = (self._config.broker_cluster_name, self._config.broker_name)
        if found is None or (found.cluster_name, found.broker_name) != ours:
            return None
        return found

    async def _registered(self, name_servers: list[str]) -> dict[int, str]:
        """The brokers of this group that name servers know, by id."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        answers = await asyncio.gather(
            *(self._ask(address, code, ClusterInfo) for address in name_servers)
        )
        found: dict[int, str] = {}
        for cluster in answers:
            addresses = {} if cluster is None else cluster.addresses_of(self._config.broker_name)
            for number, address in addresses.items():
                # The first that knows another broker than this one.
                if address != self._address:
                    found.setdefault(number, address)
        return found

    async def _ask(
        self, address: str, code: RequestCode, wanted: type[T], header: dict[str, str] | None = None
    ) -> T | None:
        """The body of an answer; None without one, or when it is not what was asked for."""
        command = RemotingCommand.request(code, header)
        try:
            answer = await self._client.invoke(address, command, _ASK_TIMEOUT_MS)
        except (RemotingError, OSError, ValueError) as error:
            _LOG.debug("not asked address=%s code=%d reason=%s", address, code, error)
            return None
        if answer.code != ResponseCode.SUCCESS:
            return None
        try:
            return fastjson.loads_as(answer.body, wanted)
        except ValueError as error:
            _LOG.warning("not understood address=%s code=%d reason=%s", address, code, error)
            return None
