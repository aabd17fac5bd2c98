"""Two brokers as one: what master and slave of a group do for each other besides copying the log.

On a slave: find the master, ask whether it is twinlog, copy its tables every ten seconds, apply
the metadata that comes through the log. On a master: write metadata into the log once a twin slave
has come, and after a start fetch the offsets that were committed on the slave meanwhile.

Nothing here may delay replication of the log itself: every question is asked in a task of its own
and has a time-out.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Awaitable, Callable, Collection, Mapping

from twinlog import __version__
from twinlog.broker.pair.dialect_question import DialectQuestion
from twinlog.broker.pair.late_commits import CommitRelay
from twinlog.broker.pair.metadata_service import WRITE_INTERVAL_MS, MetadataReader, MetadataWriter
from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.pair.slave_synchronize import SlaveSynchronize
from twinlog.broker.role import Role
from twinlog.ha.dialect import Dialect, Heard, Verdict
from twinlog.remoting import fastjson
from twinlog.remoting.addresses import join_address, replica_address
from twinlog.remoting.bodies.twinlog import BrokerInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import Request
from twinlog.remoting.headers.twinlog import TwinlogInfoRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically
from twinlog.runtime.tasks import TaskOwner

_LOG = logging.getLogger("twinlog.broker")

_NO_MASTER_MS = 2_000  # A slave without a master asks the name servers this often.


class PairService:
    """The pair's side of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        disk: Disk,
        clock: Clock,
        tasks: TaskOwner,
        client: RemotingClient,
        writer: MetadataWriter,
        reader: MetadataReader,
        synchronize: SlaveSynchronize,
        offset_return: OffsetReturn,
        ask_registration: Callable[[], None],
        master_is_back: Callable[[str], None],
        master_is_at: Callable[[str | None], None],
        dialect_heard: Callable[[bool], None],
        dialled: Callable[[], str | None],
        is_copy: Callable[[], bool],
        is_replicating: Callable[[], bool],
        ha_address: Callable[[], str],
        redispatch: Callable[[ServerConnection, Request], None],
        role: Role,
    ) -> None:
        self._config = config
        self._role = role
        self._disk = disk
        self._clock = clock
        self._tasks = tasks
        self._client = client
        self._ask_registration = ask_registration
        self._master_is_back = master_is_back
        self._master_is_at = master_is_at
        self._dialled = dialled
        self._is_replicating = is_replicating
        self._ha_address = ha_address
        self._redispatch = redispatch
        self._marker = posixpath.join(config.store_path_root_dir, "twinlog", "twin_slave")
        self._master_address: str | None = None  # The last one known, also while it is away.
        self.before_link: Callable[[], Awaitable[None]] | None = None
        """On a slave: awaited before a master that is twinlog is dialled."""
        self.is_complete = False
        """On a master: its tables say what its log says."""
        self._is_tail_new = False
        self._question = DialectQuestion(
            config,
            client=client,
            identity=self._identity,
            heard=dialect_heard,
            is_copy=is_copy,
        )
        self.writer = writer
        self.reader = reader
        self.synchronize = synchronize
        self.offset_return = offset_return
        self._late_commits = CommitRelay(
            client=client,
            clock=clock,
            identity=self._identity,
            master_address=self._reachable_twin,
            takes_none=lambda: self.is_master_classic,
            not_taken=ask_registration,
        )

    # Life

    def load(self, *, was_master: bool) -> None:
        """After the tables and the store: apply what the log says about them.

        On a master too: a copy that becomes the master has metadata in its log that its tables,
        saved every few seconds, do not show yet. A master's own topics and groups are in its
        tables before they are in its log, so of its own log it takes only what moved forward.
        """
        self.reader.load(only_offsets=self._role.is_master and was_master)

    def complete(self, *, was_master: bool) -> None:
        """On a master: its log has all that it should have; some of it came from a slave."""
        self.reader.catch_up(only_offsets=was_master)
        self.is_complete = True

    def tail_is_coming(self) -> None:
        """On a master that serves: a slave has more of its log, and metadata in it."""
        if self.is_complete:
            self.reader.follow_master()
            self.is_complete = False
            self._is_tail_new = True

    def tail_came(self) -> bool:
        """Apply what the tail says. False: it belongs to what the log lacked from the start."""
        is_new, self._is_tail_new = self._is_tail_new, False
        if is_new:
            self.complete(was_master=False)
        return is_new

    def close_gate(self) -> None:
        """Before the ports open: a master that had a twin slave answers no pull yet."""
        if self._role.is_master and self._disk.exists(self._marker):
            self.offset_return.close_gate()

    def start(self, name_servers: list[str]) -> None:
        if not self._role.is_master:
            self._tasks.contained("slave-sync", self.synchronize.run)
            self._tasks.contained("find-master", self._find_master)
            self._tasks.contained("late-commits", self._late_commits.run)
            return
        if self._config.twinlog_metadata_in_log or self._disk.exists(self._marker):
            self.writer.enable()
        self._tasks.round("metadata-log", lambda: WRITE_INTERVAL_MS, self.writer.tick)
        if not self.offset_return.is_open:
            self._tasks.job("offset-return", self._fetch_offsets(name_servers))

    # In a controlled group

    def start_group(self) -> None:
        """All tasks at once: each does something in one of the roles only."""
        self._tasks.contained("slave-sync", self.synchronize.run)
        self._tasks.contained("late-commits", self._late_commits.run)
        self._tasks.round("metadata-log", lambda: WRITE_INTERVAL_MS, self.writer.tick)

    def follow_group(self, address: str) -> None:
        """This broker is a slave of the master that serves at `address`."""
        self.is_complete = False
        self.reader.rewind()
        self.synchronize.master_address = address

    def keep_commits(self) -> None:
        """This broker is the master no more: what was committed since the last record goes to the
        next one, as commits to a slave do."""
        journal = self.writer.journal
        change = None if journal is None else journal.drain()
        if change is None:
            return
        for key, queues in change.forward.items():
            topic, _, group = key.partition("@")
            for queue_id, offset in queues.items():
                self._late_commits.add(group, topic, queue_id, offset, lambda: None)

    def lead_group(self) -> None:
        """This broker becomes the master: its tables are what its log says."""
        self.synchronize.master_address = None
        self.reader.take_all()
        self.is_complete = True

    def mark(self) -> int:
        """How far the log's metadata is applied."""
        if self._role.is_master and self.is_complete:
            self.reader.follow_master()
        return self.reader.mark()

    async def save(self, place: int) -> None:
        """Keep what `mark` said; the tables themselves were saved since."""
        try:
            make_own_directory(self._disk, self._config.store_path_root_dir)
            await self.reader.save(place)
        except OSError as error:
            # A full disk: what is applied again after a crash changes nothing.
            _LOG.warning("position in the metadata not saved error=%s", error)

    def flush(self) -> None:
        """At a clean stop: what moved since the last record goes with the log."""
        if self._role.is_master:
            self.writer.tick()

    async def _fetch_offsets(self, name_servers: list[str]) -> None:
        announce = {
            **self._identity(),
            "haAddress": self._ha_address(),
            "address": join_address(self._config.broker_ip1, self._config.listen_port),
        }
        try:
            await self.offset_return.fetch(name_servers, announce)
        finally:  # Whatever became of it: those who wait for the gate are answered.
            for connection, request in self.offset_return.open_gate():
                self._redispatch(connection, request)

    # On a slave: the master

    def committed(
        self, group: str, topic: str, queue_id: int, offset: int, answer: Callable[[], None]
    ) -> None:
        """A client committed here: a twinlog master that is there knows before the answer."""
        if self._role.is_master:
            answer()
        else:
            self._late_commits.add(group, topic, queue_id, offset, answer)

    def _reachable_twin(self) -> str | None:
        is_there = self.is_master_twin and self._is_replicating()
        return self.synchronize.master_address if is_there else None

    def master_registered(self, address: str | None, ha_address: str | None) -> None:
        """What a registration answered: for the question first, then for the dial."""
        self.master_found(address, ha_address)
        self._master_is_at(ha_address)

    def master_found(self, address: str | None, ha_address: str | None) -> None:
        """What the last registration said, None while the name server knows no master."""
        if address is not None:
            address = replica_address(address, ha_address)
        self.synchronize.master_address = address
        if address is None:
            return
        is_news = address != self._master_address
        self._master_address = address
        self._question.registered(address, ha_address)
        if is_news and not self._role.is_master and not self._role.is_controlled:
            # At once: the slave may wait for this to dial.
            self._tasks.job("ask-master", self._ask_soon())

    async def _ask_soon(self) -> None:
        if ha_address := self._dialled():
            await self.ask_dialect(ha_address)

    async def _find_master(self) -> None:
        """Ask for a master that is unknown or gone, and what it is."""
        while True:
            if not self._is_replicating():
                await self._ask_soon()
            if self.synchronize.master_address is None or not self._is_replicating():
                # It may have moved: the next registration would say so half a minute later.
                self._ask_registration()
            await self._clock.sleep_ms(_NO_MASTER_MS)

    async def ask_dialect(self, ha_address: str) -> Verdict:
        """What to speak to the master whose HA port is `ha_address`."""
        if self._role.is_controlled:
            return Verdict(Dialect.TWIN)
        verdict = await self._question.ask(ha_address)
        if verdict.dialect is Dialect.TWIN and self.before_link is not None:
            await self.before_link()
        return verdict

    @property
    def is_master_twin(self) -> bool:
        return self._role.is_controlled or self._question.heard is Heard.TWIN

    @property
    def is_master_classic(self) -> bool:
        """Known not to be twinlog; not the same as not known to be."""
        return not self._role.is_controlled and self._question.heard is Heard.NOT_TWINLOG

    # Requests

    def _identity(self) -> dict[str, str]:
        config = self._config
        return {
            "clusterName": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerId": str(self._role.broker_id),
            "twinlog": __version__,
        }

    def info(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_INFO (10001): who is there. A peer of the group says who it is in doing so."""
        header = request.header(TwinlogInfoRequestHeader)
        config = self._config
        ours = (config.broker_cluster_name, config.broker_name)
        if (header.cluster_name, header.broker_name) == ours:
            self._peer_asked(header)
        body = BrokerInfo(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=str(self._role.broker_id),
            twinlog=__version__,
            broker_role=self._role.broker_role.value,
            ha_address=self._ha_address(),
            idempotent_sends=True,
        )
        self.synchronize.add_versions(body)
        connection.reply(request, header={"twinlog": __version__}, body=fastjson.dumps(body))

    def _peer_asked(self, header: TwinlogInfoRequestHeader) -> None:
        is_master_asking = header.broker_id == "0"
        if self._role.is_controlled:
            return  # Who the master is, its controller says.
        if not self._role.is_master and is_master_asking and header.ha_address:
            _LOG.info("the master is back ha=%s", header.ha_address)
            if header.address:
                # Where it registers in a moment: the dialect question goes there.
                self.master_found(header.address, header.ha_address)
            self._master_is_back(header.ha_address)

    def twin_slave_joined(self) -> None:
        """A twin slave attached: from now on metadata travels in the log, also after a restart."""
        if not self._disk.exists(self._marker):
            try:
                make_own_directory(self._disk, self._config.store_path_root_dir)
                write_atomically(self._disk, self._marker, b"")
            except OSError as error:
                _LOG.warning("marker not saved path=%s error=%s", self._marker, error)
        self.writer.enable()

    @property
    def is_open(self) -> bool:
        return self.offset_return.is_open

    def hold(self, connection: ServerConnection, request: Request) -> bool:
        return self.offset_return.hold(connection, request)

    def queues_moved(self, keys: Collection[tuple[str, int]]) -> None:
        if not self._role.is_master:
            self.reader.queues_moved(keys)

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The log of this slave was cut back to what its master has."""
        self.reader.queues_cut(ends)
        self.synchronize.queues_cut(ends)
        self._late_commits.queues_cut(ends)

    # Status

    def status(self) -> dict[str, str]:
        """Keys for the broker's runtime information: metadata besides data."""
        if self._role.is_master:
            return {
                "metadataInLog": str(self.writer.is_enabled).lower(),
                "metadataRecordsWritten": str(self.writer.record_count),
                "metadataWaitingForSlave": str(not self.is_open).lower(),
            }
        now = self._clock.now_ms()
        synchronize = self.synchronize
        table = {
            "metadataMaster": synchronize.master_address or "",
            "metadataMasterIsTwinlog": str(self.is_master_twin).lower(),
            "metadataAppliedRecords": str(self.reader.applied_count),
            "metadataBehindRecords": str(self.reader.behind_count),
        }
        if self.reader.last_store_time_ms:
            table["metadataLastRecordAgeMs"] = str(now - self.reader.last_store_time_ms)
        if synchronize.last_success_ms:
            table["metadataSyncAgeMs"] = str(now - synchronize.last_success_ms)
        for name, reason in synchronize.problems.items():
            table[f"metadataProblem {name}"] = reason
        if refusal := self._question.refusal:
            table["metadataProblem account"] = refusal
        if self._late_commits.problem:
            table["metadataProblem commits"] = self._late_commits.problem
        return table
