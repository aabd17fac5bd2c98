"""The rules of a controlled group on a drawing board: the real cores, everything else abstract.

`Controller`, `Authority`, `InSync` and `GroupView` are the production ones. A log is a list of
(epoch, value), the comparison of two logs is one step, and the network loses, delays and reorders
messages, though not those of one connection. A seed draws a scenario (`scenario.py`). A thousand
seeds take two minutes: this finds holes in rules. The swarm of whole brokers finds holes in how
they are carried out.

The judge (`Truth`) is told what was answered, seen and promoted, and trusts nobody.
"""

from __future__ import annotations

import random
from typing import Any

from twinlog.controller import events
from twinlog.controller.membership import Proposal
from twinlog.controller.record import GroupRecord
from twinlog.ha.authority import Authority, SetProposal
from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole, Step, StepKind
from twinlog.ha.in_sync import InSync
from twinlog.testing.model import scenario
from twinlog.testing.model.controller_side import GROUP, ControllerSide
from twinlog.testing.model.host import Host, Link
from twinlog.testing.model.scenario import Scenario
from twinlog.testing.model.truth import Truth, Violation

TICK_MS = 100
CONTROLLER = 0
NETWORK_MAX = 60


class GroupModel:
    """One seed. `run` returns when the healed group is whole again, or raises Violation."""

    def __init__(self, seed: int, drawn: Scenario | None = None) -> None:
        rng = self.rng = random.Random(seed)
        self.scenario = drawn or scenario.draw(rng, seed)
        self.count = self.scenario.replicas
        self.policy = self.scenario.policy
        self.tick = 0
        self.truth = Truth()
        self.network: list[tuple[int, int, dict[str, Any]]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.hosts = {n: Host(n, 1 + rng.uniform(-0.024, 0.024)) for n in range(1, self.count + 1)}
        self.stats = dict.fromkeys(
            ("elections", "confirmed", "early", "kills", "power", "cuts", "switches", "backups"), 0
        )
        self.is_healing = False
        self._due: list[tuple[int, str, int]] = []
        self._connections = 0
        self._values = 0
        self.controller = ControllerSide(self, rng)

    # Clocks, network

    def time_ms(self, rate: float) -> int:
        return int(self.tick * TICK_MS * rate)

    def now(self, host: Host) -> int:
        return self.time_ms(host.rate)

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def send(self, source: int, target: int, **message: Any) -> None:
        self.network.append((source, target, message))

    # What the controller does

    def decided(self, before: GroupRecord, after: GroupRecord) -> None:
        self.truth.decide(before, after, self.hosts)
        if after.master_epoch > before.master_epoch:
            self.stats["elections"] += 1
        self.moment(before.master_broker_id)

    def controller_replies(self, reply: events.Reply) -> None:
        source, message = reply.token
        self.send(CONTROLLER, source, kind="record", reply=reply, **message)

    def moment(self, host_id: int | None) -> None:
        """Something that matters happened at this replica: a good time for the next fault."""
        rng, kinds = self.rng, [kind for kind in self.scenario.kinds if kind != "loss"]
        if kinds and not self.is_healing and rng.random() < self.scenario.moment:
            target = host_id if host_id and rng.random() < 0.7 else rng.randint(1, self.count)
            self._due.append((self.tick + rng.randint(0, 8), rng.choice(kinds), target))

    # Life of a replica

    def boot(self, host: Host) -> None:
        host.is_up, host.is_paused = True, False
        host.boots += 1
        self.truth.boot(host)
        host.view = GroupView(host.id, host.incarnation, host.state, host.known_epoch)
        host.authority, host.link = None, None
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
            self.close_heartbeats(host)

    def close_heartbeats(self, host: Host) -> None:
        """The connection's end is seen by the controller, unless a cut swallows it."""
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
        self.moment(host.id)
        host.log.append((state.epoch, -state.epoch))
        host.in_sync = InSync(admission_ms=self.scenario.admission_ms)
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
        self.moment(next(iter(proposal.incarnations), None))
        may_cut = "oneway" in self.scenario.kinds and not self.is_healing
        if may_cut and self.rng.random() < self.scenario.moment:
            self.cuts.add((host.id, CONTROLLER))  # It asks again and again.
        self.send(
            host.id, CONTROLLER, kind="alter", incarnation=host.incarnation, proposal=proposal
        )
        is_corner = "late_words" in self.scenario.kinds and not self.is_healing
        if is_corner and proposal.incarnations and self.rng.random() < 0.3:
            self._late_words(host, next(iter(proposal.incarnations)))

    # Every replica

    def turn(self, host: Host) -> None:
        if not host.is_up or host.is_paused:
            return
        if self.is_healing or self.rng.random() < self.scenario.flush_rate:
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
            drained_end=drained, stored=host.stored,
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
        self.truth.act(host, host.link.epoch)
        self.send(host.id, host.link.master, kind="ack", connection=host.link.connection, end=end)

    # Messages

    def deliver(self, source: int, target: int, message: dict[str, Any]) -> None:
        if target == CONTROLLER:
            getattr(self, "controller_" + message["kind"])(source, message)
        else:
            getattr(self, "on_" + message["kind"])(self.hosts[target], source, message)

    def controller_closed(self, source: int, message: dict[str, Any]) -> None:
        self.controller.tell(events.ConnectionClosed(message["connection"]))

    def controller_beat(self, source: int, message: dict[str, Any]) -> None:
        fields = {k: v for k, v in message.items() if k not in ("kind", "number")}
        kept = ("number", "incarnation", "connection")
        token = (source, {key: message[key] for key in kept})
        boots = int(message["incarnation"].partition(".")[2])
        if self.controller.core is not None:
            self.truth.hear(self.hosts[source], boots, is_complete=message["is_complete"])
        self.controller.tell(events.Heartbeat(group=GROUP, broker_id=source, token=token, **fields))

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
        self.controller.tell(events.AlterSyncStateSet(GROUP, proposal, (source, fields)))

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
        self.keep_record(host, reply.record)
        self.carry_out(host, host.view.learn(self.state_of(reply.record)))
        if "proposal" in message and reply.error and host.authority is authority is not None:
            authority.rejected(message["proposal"].set_epoch)

    def keep_record(self, host: Host, record: GroupRecord) -> None:
        numbers = (record.master_epoch, record.sync_state_set_epoch)
        known = host.stored
        if known is None or numbers > (known.master_epoch, known.sync_state_set_epoch):
            host.stored = record

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
        if steps := host.view.met(message["epoch"]):
            host.link = None  # Of an epoch that is over.
            self.carry_out(host, steps)
        peer, authority = self.hosts[source], host.authority
        if authority is None or not peer.is_up or peer.link is None:
            return
        if peer.link.connection != message["connection"]:
            return
        self.moment(source)
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
        link.is_live, link.heard_ms, link.epoch = True, self.now(host), message["epoch"]
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
        authority = host.authority
        if authority is None:
            return
        before = authority.acked_by(source)
        authority.acknowledged(source, message["connection"], message["end"])
        is_stale = host.last_acks.get(source) != message["connection"]
        if is_stale and authority.acked_by(source) != before:
            raise Violation(f"{host.id} counts a connection of {source} that was replaced")
        self.confirm(host)

    # The run

    def run(self) -> None:
        for host in self.hosts.values():
            self.boot(host)
        for _ in range(self.scenario.steps):
            self.step()
        self.heal()
        for number in range(4_000):
            self.step()
            if number > 300 and number % 50 == 0 and self.is_whole():
                return
        raise Violation(f"not whole again: {self.describe()}")

    def heal(self) -> None:
        self.is_healing = True
        self._due.clear()
        self.cuts.clear()
        for host in self.hosts.values():
            host.is_paused = False
            if not host.is_up:
                self.boot(host)
        if self.controller.core is None:
            self.controller.restart()

    def is_whole(self) -> bool:
        record = self.controller.stored
        master = self.hosts.get(record.master_broker_id or 0)
        if master is None or not master.is_master or len(record.sync_state_set) != self.count:
            return False
        return all(host.log == master.log for host in self.hosts.values())

    def describe(self) -> str:
        record = self.controller.stored
        hosts = {
            n: (h.view and h.view.role.value, h.last_epoch, len(h.log), h.is_in_doubt)
            for n, h in self.hosts.items()
        }
        return f"{record.master_epoch} {sorted(record.sync_state_set)} {hosts}"

    def step(self) -> None:
        rng, drawn = self.rng, self.scenario
        self.tick += 1
        if rng.random() < (0.05 if self.is_healing else drawn.put_rate):
            self.put(self.hosts[rng.randint(1, self.count)])
        turns = list(self.hosts) if self.is_healing else [rng.randint(1, self.count)]
        for n in turns:
            self.turn(self.hosts[n])
        for _ in range(6 * len(turns)):
            self.deliver_one()
        del self.network[:-NETWORK_MAX]
        self.controller.tick()
        if not self.is_healing:
            self.misfortune()
        if self.controller.is_frozen:
            self.adopt()
        self.recover()

    def misfortune(self) -> None:
        rng, drawn = self.rng, self.scenario
        due = [fault for fault in self._due if fault[0] <= self.tick]
        self._due = [fault for fault in self._due if fault[0] > self.tick]
        for _, kind, host_id in due:
            self.fault(kind, self.hosts[host_id])
        if rng.random() < drawn.fault_rate:
            self.fault(rng.choice(drawn.kinds), self.hosts[rng.randint(1, self.count)])

    def deliver_one(self) -> None:
        rng = self.rng
        if not self.network:
            return
        place = rng.randrange(min(len(self.network), self.scenario.window))
        place = self._first_of_its_connection(place)
        source, target, message = self.network[place]
        if (source, target) in self.cuts and rng.random() < 0.5:
            return
        if target != CONTROLLER and self.hosts[target].is_paused:
            return  # It waits in a buffer.
        del self.network[place]
        if (source, target) in self.cuts:
            return
        if target != CONTROLLER and not self.hosts[target].is_up:
            return
        may_lose = not self.is_healing and "loss" in self.scenario.kinds
        if may_lose and rng.random() < 0.1:
            return
        self.deliver(source, target, message)

    def _first_of_its_connection(self, place: int) -> int:
        source, target, message = self.network[place]
        connection = message.get("connection")
        if connection is None:
            return place
        for earlier in range(place):
            a, b, other = self.network[earlier]
            if (a, b, other.get("connection")) == (source, target, connection):
                return earlier
        return place

    def recover(self) -> None:
        rng, drawn = self.rng, self.scenario
        for host in self.hosts.values():
            if not host.is_up and rng.random() < drawn.boot_rate:
                self.boot(host)
            if host.is_paused and rng.random() < drawn.resume_rate:
                host.is_paused = False
        if self.controller.core is None and rng.random() < 0.1:
            self.controller.restart()
            if "switch" in drawn.kinds and rng.random() < 0.5:
                self._due.append((self.tick + rng.randint(1, 10), "switch", 1))
        if self.cuts and rng.random() < drawn.heal_rate:
            self.cuts.clear()

    # Misfortunes

    def fault(self, kind: str, host: Host) -> None:
        match kind:
            case "kill" | "power" if host.is_up:
                self.kill(host, is_power_loss=kind == "power")
            case "pause" if host.is_up:
                host.is_paused = True
            case "cut":
                self._cut_off()
            case "oneway":
                self._cut_some(host)
            case "isolate" if host.is_up:
                self._isolate(host)
            case "reset" if host.is_up:
                self.close_heartbeats(host)
                host.heartbeat_connection = self.next_connection()
            case "controller" if not self.controller.is_frozen:
                self.controller.stop()
            case "backup":
                self._restore_backup()
            case "switch":
                self.stats["switches"] += 1
                wanted = self.rng.randint(1, self.count)
                self.controller.tell(events.ElectMaster(GROUP, designate=wanted))

    def _late_words(self, master: Host, replica_id: int) -> None:
        """Who is to be admitted loses power and says so when it is back. Then its last words before
        that arrive, then the proposal, and nothing more of it, while the master dies (R3, R8)."""
        host = self.hosts[replica_id]
        if not host.is_up or host.is_paused:
            return
        proposal = self.network.pop()
        self.beat(host)
        late = self.network.pop()
        self.kill(host, is_power_loss=True)
        self.boot(host)
        self.beat(host)
        self.deliver(*self.network.pop())
        self.deliver(*late)
        self.deliver(*proposal)
        self.cuts.add((replica_id, CONTROLLER))
        self.kill(master, is_power_loss=False)
        self.controller.tell(events.ConnectionClosed(master.heartbeat_connection))

    def _cut_off(self) -> None:
        """Some replicas, perhaps with the controller, from the others; here and there it leaks."""
        rng, nodes = self.rng, range(self.count + 1)
        side = set(rng.sample(nodes, rng.randint(1, self.count)))
        self.cuts |= {
            (a, b)
            for a in nodes
            for b in nodes
            if (a in side) != (b in side) and rng.random() < 0.9
        }

    def _cut_some(self, host: Host) -> None:
        """Links of this replica, each in one direction."""
        ends = [n for n in range(self.count + 1) if n != host.id]
        links = [(host.id, n) for n in ends] + [(n, host.id) for n in ends]
        self.cuts |= set(self.rng.sample(links, self.rng.randint(1, 3)))

    def _isolate(self, host: Host) -> None:
        """From everybody at once, and the controller sees its connection end."""
        ends = [n for n in range(self.count + 1) if n != host.id]
        self.cuts |= {(host.id, n) for n in ends} | {(n, host.id) for n in ends}
        self.controller.tell(events.ConnectionClosed(host.heartbeat_connection))
        host.heartbeat_connection = self.next_connection()

    def _restore_backup(self) -> None:
        """A promise only while somebody who knows better is heard before anything is decided."""
        self.stats["backups"] += 1
        self.cuts.clear()
        self._due.clear()
        self.network.clear()
        for host in self.hosts.values():
            host.is_paused = False
            if not host.is_up or self.rng.random() < 0.5:
                self.boot(host)
        self.controller.restore()
        for host in sorted(self.hosts.values(), key=_knowledge, reverse=True):
            self.beat(host)
        while self.network:
            self.deliver(*self.network.pop(0))

    def adopt(self) -> None:
        """The operator, who waits until all replicas are there."""
        group = self.controller.core and self.controller.core.groups[GROUP]
        if group and len(group.living(self.controller.now_ms())) == self.count:
            self.controller.tell(events.Adopt(GROUP, GROUP))


def _knowledge(host: Host) -> tuple[int, int, int]:
    known = host.stored
    if known is None:
        return host.known_epoch, 0, 0
    return host.known_epoch, known.master_epoch, known.sync_state_set_epoch
