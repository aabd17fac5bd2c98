"""The rules of a controlled group on a drawing board: the real cores, everything else abstract.

`Controller`, `Authority`, `InSync` and `GroupView` are the production ones. A log is a list of
(epoch, value), the comparison of two logs is one step, and the network loses, delays and reorders
messages. A seed draws kills, power losses, pauses, cuts, restarts of the controller, commits whose
outcome is not known, clock rates and planned switches. A thousand seeds take a minute: this finds
holes in rules. The swarm of whole brokers finds holes in how they are carried out.

The judge (`Truth`) is told what was answered, seen and promoted, and trusts nobody.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from twinlog.controller import events
from twinlog.controller.core import Controller
from twinlog.controller.membership import Proposal
from twinlog.controller.record import GroupRecord, Policy, Replica
from twinlog.ha.authority import Authority, SetProposal
from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole, Step, StepKind
from twinlog.ha.in_sync import InSync

GROUP = "g"
TICK_MS = 100
CONTROLLER = 0
NETWORK_MAX = 60
Entry = tuple[int, int]  # epoch, value; the record that opens epoch e has the value -e


class Violation(Exception):
    """A promise was broken."""


@dataclass
class Link:
    """A slave's connection to its master."""

    connection: int
    master: int
    dialled_ms: int
    is_live: bool = False
    heard_ms: int = 0


@dataclass
class Host:
    """A replica: its disk, its machine, and its process while there is one."""

    id: int
    rate: float
    # Disk.
    log: list[Entry] = field(default_factory=list)
    flushed: int = 0
    state: GroupState = field(default_factory=GroupState)
    known_epoch: int = 0
    is_in_doubt: bool = False
    known_confirmed: int = 0
    # Machine.
    is_up: bool = False
    is_paused: bool = False
    boots: int = 0
    # Process.
    view: GroupView | None = None
    authority: Authority | None = None
    in_sync: InSync = field(default_factory=InSync)
    link: Link | None = None
    heartbeat_connection: int = 0
    beats: dict[int, int] = field(default_factory=dict)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    is_holding: bool = False
    joining_since_ms: int | None = None
    last_acks: dict[int, int] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"{self.id}.{self.boots}"

    @property
    def is_master(self) -> bool:
        return self.view is not None and self.view.role is ReplicaRole.MASTER

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else 0


class Truth:
    """What the world was told, and whether it stays true."""

    def __init__(self) -> None:
        self.answered: dict[int, tuple[int, int, bool]] = {}  # value: place, epoch, early?
        self.visible: list[Entry] = []
        self.promoted: list[tuple[int, int, frozenset[int]]] = []
        self.lost_early = 0
        self.epochs: dict[int, int] = {}

    def answer(self, host: Host, place: int, value: int, epoch: int, is_early: bool) -> None:
        if value in self.answered:
            return
        self.answered[value] = (place, epoch, is_early)
        for later, who, values in self.promoted:
            if later <= epoch:
                continue
            if is_early:
                raise Violation(f"{host.id} answers early in {epoch}, {who} leads {later}")
            if value not in values:
                raise Violation(f"{host.id} answers {value} in {epoch}; {who} leads {later}")

    def see(self, host: Host, end: int) -> None:
        """A consumer reads up to `end`: one value for each place, for ever."""
        common = min(end, len(self.visible))
        if host.log[:common] != self.visible[:common]:
            raise Violation(f"a visible place has changed at {host.id}")
        self.visible += host.log[len(self.visible) : end]

    def promote(self, host: Host, epoch: int) -> None:
        if self.epochs.setdefault(epoch, host.id) != host.id:
            raise Violation(f"{host.id} and {self.epochs[epoch]} lead epoch {epoch}")
        if host.log[: len(self.visible)] != self.visible:
            raise Violation(f"{host.id} leads {epoch} without a record that was visible")
        places = {value: place for place, (_, value) in enumerate(host.log)}
        for value, (place, answered_in, is_early) in self.answered.items():
            if answered_in < epoch and places.get(value) != place:
                if not is_early:
                    raise Violation(f"{host.id} leads {epoch} without {value} of {answered_in}")
                self.lost_early += 1
        self.promoted.append((epoch, host.id, frozenset(places)))

    def forget_beyond(self, host: Host) -> None:
        """All members lost power within a flush interval: outside of the promise, said loudly."""
        del self.visible[len(host.log) :]
        values = {value for _, value in host.log}
        self.answered = {v: told for v, told in self.answered.items() if v in values}


class GroupModel:
    """One seed. `run` returns when the healed group is whole again, or raises Violation."""

    def __init__(self, seed: int, *, replicas: int | None = None) -> None:
        rng = self.rng = random.Random(seed)
        self.count = replicas or rng.choice([2, 2, 3, 3, 4])
        self.policy = Policy(
            broker_role=rng.choice(["SYNC_MASTER", "ASYNC_MASTER"]),
            flush_disk_type=rng.choice(["SYNC_FLUSH", "ASYNC_FLUSH"]),
            total_replicas=self.count,
        )
        self.tick = 0
        self.truth = Truth()
        self.network: list[tuple[int, int, dict[str, Any]]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.hosts = {n: Host(n, 1 + rng.uniform(-0.024, 0.024)) for n in range(1, self.count + 1)}
        self.window = rng.choice([1, 4, 12, 40])
        self.stats = dict.fromkeys(
            ("elections", "confirmed", "early", "kills", "power", "cuts", "switches"), 0
        )
        self.is_healing = False
        self._connections = 0
        self._values = 0
        self._setup_controller()

    # Clocks, network

    def now(self, host: Host) -> int:
        return int(self.tick * TICK_MS * host.rate)

    def controller_now(self) -> int:
        return int(self.tick * TICK_MS * self.controller_rate)

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def send(self, source: int, target: int, **message: Any) -> None:
        self.network.append((source, target, message))

    # Controller: the production core over a record that is written with unknown outcomes

    def _setup_controller(self) -> None:
        replicas = {n: Replica(broker_id=n) for n in self.hosts}
        self.stored = GroupRecord(
            cluster="c", group=GROUP, version=1, policy=self.policy, replicas=replicas
        )
        self.controller_rate = 1 + self.rng.uniform(-0.024, 0.024)
        self.late_commits: list[GroupRecord] = []
        self.controller: Controller | None = Controller([self.stored], 0)

    def tell_controller(self, event: Any) -> None:
        if self.controller is None:
            return
        queue: list[Any] = [event]
        while queue:
            for effect in self.controller.handle(self.controller_now(), queue.pop(0)):
                match effect:
                    case events.Commit():
                        queue.append(self._commit(effect.record))
                    case events.Reload():
                        queue.append(events.Loaded(GROUP, self.stored))
                    case events.Reply() if effect.token is not None:
                        self._reply(effect)

    def _commit(self, record: GroupRecord) -> Any:
        """Compare and set, sometimes without an answer, and sometimes later than one thinks."""
        is_unknown = not self.is_healing and self.rng.random() < 0.05
        if is_unknown and self.rng.random() < 0.5:
            self.late_commits.append(record)
            return events.CommitUnknown(GROUP, record.version)
        if not self._write(record) or is_unknown:
            return events.CommitUnknown(GROUP, record.version)
        return events.CommitDone(GROUP, record.version)

    def _write(self, record: GroupRecord) -> bool:
        if record.version != self.stored.version + 1:
            return False  # Stale: the store refuses it.
        if record.master_epoch > self.stored.master_epoch:
            self.stats["elections"] += 1
            if record.election == "incomplete":
                assert record.master_broker_id is not None
                self.truth.forget_beyond(self.hosts[record.master_broker_id])
        self.stored = record
        return True

    def _reply(self, reply: events.Reply) -> None:
        source, message = reply.token
        self.send(CONTROLLER, source, kind="record", reply=reply, **message)

    def restart_controller(self) -> None:
        self.controller = Controller([self.stored], self.controller_now())

    # Life of a replica

    def boot(self, host: Host) -> None:
        host.is_up, host.is_paused = True, False
        host.boots += 1
        host.view = GroupView(host.id, host.incarnation, host.state, host.known_epoch)
        host.authority, host.link = None, None
        host.in_sync = InSync()
        host.heartbeat_connection = self.next_connection()
        host.beats, host.waiting, host.last_acks = {}, [], {}
        host.is_holding, host.joining_since_ms = False, None

    def kill(self, host: Host, *, is_power_loss: bool) -> None:
        host.is_up = False
        self.stats["power" if is_power_loss else "kills"] += 1
        if is_power_loss:
            del host.log[self.rng.randint(host.flushed, len(host.log)) :]
            host.known_confirmed = min(host.known_confirmed, len(host.log))
            if not self.policy.is_durable:
                self.mark_doubt(host)
        elif self.rng.random() < 0.7:
            # The connection's end is seen by the controller, unless a cut swallows it.
            self.send(host.id, CONTROLLER, kind="closed", connection=host.heartbeat_connection)

    def mark_doubt(self, host: Host) -> None:
        host.is_in_doubt = True

    def carry_out(self, host: Host, steps: list[Step]) -> None:
        assert host.view is not None
        for step in steps:
            match step.kind:
                case StepKind.STORE:
                    host.state, host.known_epoch = host.view.state, host.view.known_epoch
                case StepKind.PROMOTE:
                    self.promote(host, step.state)
                case StepKind.FOLLOW | StepKind.FENCE:
                    self.demote(host)
                case StepKind.SET_CHANGED:
                    assert host.authority is not None
                    before = host.authority.members
                    host.authority.committed(step.state.set_epoch, step.state.members)
                    for gone in before - step.state.members:
                        host.in_sync.fell(self.now(host), gone)
                    self.confirm(host)

    def promote(self, host: Host, state: GroupState) -> None:
        host.link = None
        host.waiting, host.is_holding, host.joining_since_ms = [], False, None
        self.truth.promote(host, state.epoch)
        host.log.append((state.epoch, -state.epoch))
        host.in_sync = InSync()
        host.authority = Authority(
            own_id=host.id,
            incarnation=host.incarnation,
            epoch=state.epoch,
            epoch_start=len(host.log),
            members=state.members,
            set_epoch=state.set_epoch,
        )
        self.confirm(host)

    def demote(self, host: Host) -> None:
        host.authority, host.link = None, None
        host.waiting, host.is_holding = [], False

    # The master

    def own_end(self, host: Host) -> int:
        return host.flushed if self.policy.is_durable else len(host.log)

    def confirm(self, host: Host) -> None:
        authority = host.authority
        if authority is None:
            return
        authority.own_end(self.own_end(host))
        confirmed = authority.confirmed
        self.truth.see(host, confirmed)
        host.known_confirmed = max(host.known_confirmed, confirmed)
        due = [put for put in host.waiting if put[0] < confirmed]
        host.waiting = [put for put in host.waiting if put[0] >= confirmed]
        for place, value in due:
            self.stats["confirmed"] += 1
            self.truth.answer(host, place, value, authority.epoch, is_early=False)

    def put(self, host: Host) -> None:
        authority = host.authority
        if not host.is_up or host.is_paused or authority is None or host.is_holding:
            return
        self._values += 1
        host.log.append((authority.epoch, self._values))
        place = len(host.log) - 1
        if self.policy.answers_early and authority.may_answer_early(self.now(host)):
            self.stats["early"] += 1
            self.truth.answer(host, place, self._values, authority.epoch, is_early=True)
        host.waiting.append((place, self._values))
        self.confirm(host)

    def lead(self, host: Host) -> None:
        """A master's turn: send, watch the set, ask for changes."""
        authority, now_ms = host.authority, self.now(host)
        assert authority is not None
        for n in self.hosts:
            if n == host.id:
                continue
            acked = authority.acked_by(n)
            connection = host.last_acks.get(n)
            if acked is not None and connection is not None:
                peer = self.hosts[n]
                if (not peer.is_up or peer.link is None) and self.rng.random() < 0.7:
                    authority.disconnected(n, connection)
                    acked = None
                else:
                    entries = list(host.log[acked : acked + 40])
                    self.send(
                        host.id, n, kind="data", connection=connection, start=acked,
                        entries=entries, epoch=authority.epoch, confirmed=authority.confirmed,
                    )  # fmt: skip
            host.in_sync.observe(now_ms, n, acked, len(host.log))
        self.change_set(host, authority, now_ms)

    def change_set(self, host: Host, authority: Authority, now_ms: int) -> None:
        if host.joining_since_ms is not None and now_ms - host.joining_since_ms > 1_500:
            authority.give_up_joining()
            host.joining_since_ms = None
        proposal = authority.proposal()
        if proposal is not None:
            host.joining_since_ms = None
            self.propose(host, proposal)
        elif not authority.is_changing:
            wish = host.in_sync.wish(now_ms, authority.members, host.id, frozenset())
            if wish is not None and wish.is_admission:
                authority.join(wish.replica_id)
                host.joining_since_ms = now_ms
            elif wish is not None:
                self.propose(host, authority.shrink(wish.replica_id))

    def propose(self, host: Host, proposal: SetProposal) -> None:
        self.send(
            host.id, CONTROLLER, kind="alter", incarnation=host.incarnation, proposal=proposal
        )

    # Every replica

    def turn(self, host: Host) -> None:
        if not host.is_up or host.is_paused:
            return
        if self.rng.random() < 0.5:
            self.flush(host)
        self.beat(host)
        if host.authority is not None:
            self.lead(host)
        else:
            self.keep_link(host)

    def flush(self, host: Host) -> None:
        if host.flushed == len(host.log):
            return
        host.flushed = len(host.log)
        if host.link is not None and host.link.is_live:
            self.acknowledge(host)
        self.confirm(host)

    def beat(self, host: Host) -> None:
        assert host.view is not None
        number = len(host.beats)
        host.beats[number] = self.now(host)
        drained = None
        authority = host.authority
        if host.is_holding and authority is not None and authority.confirmed == len(host.log):
            drained = len(host.log)
            authority.surrender()
        link_ms = None
        if host.link is not None and host.link.is_live:
            link_ms = self.now(host) - host.link.heard_ms
        self.send(
            host.id, CONTROLLER, kind="beat", number=number, connection=host.heartbeat_connection,
            incarnation=host.incarnation, known_epoch=host.view.known_epoch,
            last_epoch=host.last_epoch, end=len(host.log),
            is_complete=self.policy.is_durable or not host.is_in_doubt, link_ms=link_ms,
            drained_end=drained,
        )  # fmt: skip

    def keep_link(self, host: Host) -> None:
        assert host.view is not None
        link, master = host.link, host.view.state.master_id
        if link is not None and link.is_live:
            peer = self.hosts[link.master]
            is_gone = not peer.is_up or peer.last_acks.get(host.id) != link.connection
            is_silent = self.now(host) - link.heard_ms > 3_000
            if is_silent or (is_gone and self.rng.random() < 0.5):
                host.link = link = None
        elif link is not None and self.now(host) - link.dialled_ms > 500:
            host.link = link = None
        if link is None and host.view.role is ReplicaRole.SLAVE and master is not None:
            host.link = Link(self.next_connection(), master, self.now(host))
            self.send(
                host.id, master, kind="hello", connection=host.link.connection,
                epoch=host.view.known_epoch, incarnation=host.incarnation,
            )  # fmt: skip

    def acknowledge(self, host: Host) -> None:
        assert host.link is not None
        end = host.flushed if self.policy.is_durable else len(host.log)
        self.send(host.id, host.link.master, kind="ack", connection=host.link.connection, end=end)

    # Messages

    def deliver(self, source: int, target: int, message: dict[str, Any]) -> None:
        if target == CONTROLLER:
            getattr(self, "controller_" + message["kind"])(source, message)
        else:
            getattr(self, "on_" + message["kind"])(self.hosts[target], source, message)

    def controller_closed(self, source: int, message: dict[str, Any]) -> None:
        self.tell_controller(events.ConnectionClosed(message["connection"]))

    def controller_beat(self, source: int, message: dict[str, Any]) -> None:
        fields = {k: v for k, v in message.items() if k not in ("kind", "number")}
        token = (source, {"number": message["number"], "incarnation": message["incarnation"]})
        self.tell_controller(events.Heartbeat(group=GROUP, broker_id=source, token=token, **fields))

    def controller_alter(self, source: int, message: dict[str, Any]) -> None:
        asked: SetProposal = message["proposal"]
        proposal = Proposal(
            broker_id=source,
            incarnation=message["incarnation"],
            master_epoch=asked.epoch,
            set_epoch=asked.set_epoch,
            members=asked.members,
            incarnations=asked.incarnations,
        )
        fields = {"incarnation": message["incarnation"], "proposal": asked}
        self.tell_controller(events.AlterSyncStateSet(GROUP, proposal, (source, fields)))

    def on_record(self, host: Host, source: int, message: dict[str, Any]) -> None:
        reply: events.Reply = message["reply"]
        if message["incarnation"] != host.incarnation or reply.record is None:
            return  # The connection of an earlier process.
        assert host.view is not None
        authority = host.authority
        if "number" in message and not reply.error:
            if authority is not None and reply.lease_ms:
                sent_ms = host.beats[message["number"]]
                epoch, incarnation = reply.record.master_epoch, reply.record.master_incarnation
                self.take_lease(host, authority, sent_ms, reply.lease_ms, epoch, incarnation)
            if reply.is_admitted:
                host.is_in_doubt = False
            host.is_holding = authority is not None and reply.hand_over_to is not None
        self.carry_out(host, host.view.learn(self.state_of(reply.record)))
        if "proposal" in message and reply.error and host.authority is authority is not None:
            authority.rejected(message["proposal"].set_epoch)

    def take_lease(
        self, host: Host, authority: Authority, sent_ms: int, lease_ms: int, epoch: int, who: str
    ) -> None:
        authority.granted(sent_ms, lease_ms, epoch, who)

    def state_of(self, record: GroupRecord) -> GroupState:
        return GroupState(
            epoch=record.master_epoch,
            set_epoch=record.sync_state_set_epoch,
            master_id=record.master_broker_id,
            master_incarnation=record.master_incarnation,
            master_ha_address=str(record.master_broker_id),
            members=record.sync_state_set,
            is_clean=record.election == "clean",
        )

    def on_hello(self, host: Host, source: int, message: dict[str, Any]) -> None:
        assert host.view is not None
        self.carry_out(host, host.view.met(message["epoch"]))
        peer, authority = self.hosts[source], host.authority
        if authority is None or not peer.is_up or peer.link is None:
            return
        if peer.link.connection != message["connection"]:
            return
        common = self.common_end(host, peer)
        host.last_acks[source] = message["connection"]
        authority.connected(source, message["connection"], message["incarnation"], 0)
        self.send(
            host.id, source, kind="start", connection=message["connection"], at=common,
            epoch=authority.epoch,
        )  # fmt: skip

    def common_end(self, host: Host, peer: Host) -> int:
        pairs = zip(host.log, peer.log, strict=False)
        length = min(len(host.log), len(peer.log))
        return next((n for n, (mine, yours) in enumerate(pairs) if mine != yours), length)

    def on_start(self, host: Host, source: int, message: dict[str, Any]) -> None:
        assert host.view is not None
        link = host.link
        if link is None or link.connection != message["connection"]:
            return
        if self.refuses(host, message["epoch"]):
            host.link = None
            return
        self.carry_out(host, host.view.met(message["epoch"]))
        if message["at"] < len(host.log):
            self.cut(host, message["at"])
        link.is_live, link.heard_ms = True, self.now(host)
        self.acknowledge(host)

    def refuses(self, host: Host, epoch: int) -> bool:
        assert host.view is not None
        return host.view.is_stale(epoch)

    def cut(self, host: Host, at: int) -> None:
        """R9: what was confirmed is not cut, unless all of the set lost power together."""
        self.stats["cuts"] += 1
        if at < host.known_confirmed:
            if at < len(self.truth.visible) and host.log[at] == self.truth.visible[at]:
                raise Violation(f"{host.id} cuts at {at} below confirmed {host.known_confirmed}")
            host.known_confirmed = at
        del host.log[at:]
        host.flushed = min(host.flushed, at)

    def on_data(self, host: Host, source: int, message: dict[str, Any]) -> None:
        link = host.link
        if link is None or link.connection != message["connection"] or not link.is_live:
            return
        if self.refuses(host, message["epoch"]):
            host.link = None
            return
        link.heard_ms = self.now(host)
        if message["start"] <= len(host.log):
            host.log += message["entries"][len(host.log) - message["start"] :]
            known = min(message["confirmed"], len(host.log))
            host.known_confirmed = max(host.known_confirmed, known)
        self.acknowledge(host)

    def on_ack(self, host: Host, source: int, message: dict[str, Any]) -> None:
        if host.authority is not None:
            host.authority.acknowledged(source, message["connection"], message["end"])
            self.confirm(host)

    # The run

    def run(self, steps: int = 2_500) -> None:
        for host in self.hosts.values():
            self.boot(host)
        rng = self.rng
        kinds = ["kill", "power", "pause", "cut", "controller", "loss", "switch"]
        kinds = rng.sample(kinds, rng.randint(2, len(kinds)))
        rate = rng.choice([0.005, 0.01, 0.02]) if rng.random() < 0.85 else 0
        for _ in range(steps):
            self.step(rate, kinds)
        self.heal()
        for number in range(4_000):
            self.step(0, [])
            if number > 300 and number % 50 == 0 and self.is_whole():
                return
        raise Violation(f"not whole again: {self.describe()}")

    def heal(self) -> None:
        self.is_healing = True
        self.cuts.clear()
        for host in self.hosts.values():
            host.is_paused = False
            if not host.is_up:
                self.boot(host)
        if self.controller is None:
            self.restart_controller()

    def is_whole(self) -> bool:
        record = self.stored
        master = self.hosts.get(record.master_broker_id or 0)
        if master is None or not master.is_master or len(record.sync_state_set) != self.count:
            return False
        return all(host.log == master.log for host in self.hosts.values())

    def describe(self) -> str:
        hosts = {
            n: (h.view and h.view.role.value, h.last_epoch, len(h.log), h.is_in_doubt)
            for n, h in self.hosts.items()
        }
        return f"{self.stored.master_epoch} {sorted(self.stored.sync_state_set)} {hosts}"

    def step(self, fault_rate: float, kinds: list[str]) -> None:
        rng = self.rng
        self.tick += 1
        if rng.random() < (0.05 if self.is_healing else 0.3):
            self.put(self.hosts[rng.randint(1, self.count)])
        turns = list(self.hosts) if self.is_healing else [rng.randint(1, self.count)]
        for n in turns:
            self.turn(self.hosts[n])
        for _ in range(6 * len(turns)):
            self.deliver_one("loss" in kinds)
        del self.network[:-NETWORK_MAX]
        if self.late_commits and rng.random() < 0.05:
            self._write(self.late_commits.pop())
        self.tell_controller(events.Tick())
        if kinds and rng.random() < fault_rate:
            self.fault(rng.choice(kinds))
        self.recover()

    def deliver_one(self, may_lose: bool) -> None:
        rng = self.rng
        if not self.network:
            return
        place = rng.randrange(min(len(self.network), self.window))
        source, target, message = self.network.pop(place)
        if (source, target) in self.cuts:
            if rng.random() < 0.5:
                self.network.append((source, target, message))
            return
        if target != CONTROLLER:
            host = self.hosts[target]
            if not host.is_up:
                return
            if host.is_paused:
                self.network.append((source, target, message))  # It waits in a buffer.
                return
        if may_lose and rng.random() < 0.1:
            return
        self.deliver(source, target, message)

    def recover(self) -> None:
        rng = self.rng
        for host in self.hosts.values():
            if not host.is_up and rng.random() < 0.03:
                self.boot(host)
            if host.is_paused and rng.random() < 0.02:
                host.is_paused = False
        if self.controller is None and rng.random() < 0.03:
            self.restart_controller()
        if self.cuts and rng.random() < 0.02:
            self.cuts.clear()

    def fault(self, kind: str) -> None:
        rng = self.rng
        host = self.hosts[rng.randint(1, self.count)]
        match kind:
            case "kill" | "power" if host.is_up:
                self.kill(host, is_power_loss=kind == "power")
            case "pause" if host.is_up:
                host.is_paused = True
            case "cut":
                nodes = range(self.count + 1)
                side = set(rng.sample(nodes, rng.randint(1, self.count)))
                self.cuts |= {
                    (a, b)
                    for a in nodes
                    for b in nodes
                    if (a in side) != (b in side) and rng.random() < 0.9
                }
            case "controller":
                self.controller = None
            case "switch":
                self.stats["switches"] += 1
                self.tell_controller(events.ElectMaster(GROUP, designate=host.id))
