"""What must hold at every step of a swarm; calls `swarm.fail` for everything that does not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from twinlog.controller.record import Election, GroupRecord
from twinlog.testing.group.node import LOG_PATH
from twinlog.testing.group.records import messages
from twinlog.testing.sim_network import SimTransport
from twinlog.testing.swarm.controllers import CONTROLLER_PORT

if TYPE_CHECKING:
    from twinlog.controller.group import Group
    from twinlog.testing.group.ledger import Sent
    from twinlog.testing.swarm.lockers import Locker
    from twinlog.testing.swarm.node import SwarmNode
    from twinlog.testing.swarm.sim import Swarm

RELAY = b'"code":10005,'
PROPOSAL = b'"code":1001,'
BEAT = b'"code":904,'
TELLING = (b'"msgId"', b'"nextBeginOffset"')
"""What answers to sends and to pulls have."""
HEAD_SIZE = 300
OFFSETS_S = 1.0
"""What consumers committed falls back by this much at most, when a process ends."""
_SIZES = struct.Struct(">II")


class Checks:
    """`truth` is every byte that any replica ever called confirmed: one value for each place."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self.record: GroupRecord | None = None
        self.truth = bytearray()
        self.leaders: dict[int, tuple[str, str]] = {}
        self._elected: dict[int, str] = {}
        self.on_beat: Callable[[SwarmNode, SimTransport, bytes], None] | None = None
        """Sees the heartbeats of brokers before they leave."""
        self.proposals: list[tuple[dict[str, str], bytes]] = []
        self.election_count = 0
        self.incomplete_count = 0
        self.early_count = 0
        self.longest_without_s = 0.0
        self.was_restored = False
        self._is_restored = False
        self._led_s = 0.0
        self._anew_since = 0
        self._committed: dict[int, int] = {}
        self._relayed: dict[bytes, SwarmNode] = {}
        self._answered: list[tuple[float, int, int]] = []
        self._kept: dict[int, int] = {}
        self._broken_s = 0.0
        self._moves: list[tuple[int, range, int]] = []

    # The controller's records.

    def written(self, after: GroupRecord) -> None:
        """In a store with several writers."""
        known = 0 if self.record is None else self.record.version
        if after.version != known + 1:
            self._swarm.fail(f"version {after.version} of the record replaces version {known}")
        self.decided(after)

    def decides(self, group: Group, after: GroupRecord) -> None:
        """R3: who is admitted is the process that was checked, not one that came after it. R8: who
        leaves because of doubt has lost something since it was admitted."""
        if after.master_epoch != group.record.master_epoch:
            return
        for node in self._swarm.nodes:
            n = self._swarm.id_of(node)
            is_removed = n in group.record.sync_state_set - after.sync_state_set
            if is_removed and node.lost_s < 0 and group.liveness.is_doubtful(group.record, n):
                self._swarm.fail(f"{node.name} lost nothing and leaves as one in doubt (R8)")
        for n in after.sync_state_set - group.record.sync_state_set:
            report = group.liveness.get(n)
            if report is None or report.heartbeat.incarnation != after.admitted.get(n):
                self._swarm.fail(f"replica {n} is admitted, another process was checked (R3)")

    def decided(self, after: GroupRecord) -> None:
        """R7, R8: numbers grow, only members are elected."""
        self._elected[after.master_epoch] = after.master_incarnation
        before = self.record
        if before is None:
            self.record = after
            return
        numbers = (after.master_epoch, after.sync_state_set_epoch)
        known = (before.master_epoch, before.sync_state_set_epoch)
        if self._is_restored:
            if numbers <= known:
                return
            self._is_restored = False
        elif after.version <= before.version:
            return
        self.record = after
        if numbers < known:
            self._swarm.fail(f"the record's numbers fall to {numbers}")
        joined = after.sync_state_set - before.sync_state_set
        if after.master_epoch == before.master_epoch:
            self._judge_admission(after, joined)
        self._admit(after, joined)
        if after.master_epoch == before.master_epoch:
            if set(after.sync_state_set) != set(before.sync_state_set):
                self._swarm.trace(f"set {sorted(after.sync_state_set)}")
            return
        self.election_count += 1
        members = sorted(after.sync_state_set)
        self._swarm.trace(f"elected {after.master_broker_id} epoch {after.master_epoch} {members}")
        is_member = after.master_broker_id in before.sync_state_set
        if after.election is not Election.CLEAN:
            self._incomplete(before)
        elif before.master_epoch and not is_member:
            old = sorted(before.sync_state_set)
            self._swarm.fail(f"{after.master_broker_id} was elected, the set was {old} (R7)")

    def _judge_admission(self, record: GroupRecord, joined: frozenset[int]) -> None:
        """R3: who joins has everything that was ever confirmed, on its disk if that counts. Who
        lost power since it was looked at is in doubt, and says so itself (R8)."""
        for node in self._swarm.nodes:
            number = self._swarm.id_of(node)
            is_same = record.admitted.get(number) == node.incarnation
            if number not in joined or (node.lost_s >= 0 and not is_same):
                continue
            size, durable = len(self.truth), self._swarm.world.is_flushed
            if node.log_bytes(0, size, durable=durable) != self.truth:
                self._swarm.fail(f"{node.name} is admitted without all of {size} bytes (R3)")

    def _admit(self, record: GroupRecord, joined: frozenset[int]) -> None:
        """What a replica lost before does not count any more: it was found to have everything,
        unless the process for which that was found is gone by now."""
        for node in self._swarm.nodes:
            number = self._swarm.id_of(node)
            if number in joined and record.admitted.get(number) == node.incarnation:
                node.lost_s = -1.0

    def restored(self) -> None:
        """The controller has older records: what it writes counts when it is newer than these."""
        self._is_restored = self.was_restored = True

    @property
    def members(self) -> frozenset[int]:
        return frozenset() if self.record is None else self.record.sync_state_set

    def _incomplete(self, before: GroupRecord) -> None:
        self.incomplete_count += 1
        whole = [
            node.name
            for node in self._swarm.nodes
            if node.lost_s < 0 and self._swarm.id_of(node) in before.sync_state_set
        ]
        # Who was chosen before and died before its log said so is chosen again.
        if whole and before.election is not Election.INCOMPLETE:
            self._swarm.fail(f"an incomplete log was elected, {whole} never lost power (R8)")

    # Answers, at the moment they leave.

    def wrote(self, transport: SimTransport, data: bytes) -> None:
        node = self._swarm.node_at(transport.host.address)
        if node is None:
            return
        if transport.remote[0] != self._swarm.client_address:
            if RELAY in data[:HEAD_SIZE]:
                self._relays(node, data)
            elif TELLING[0] in data:
                self._answers_member(node, data)
            elif transport.remote[1] == CONTROLLER_PORT:
                if PROPOSAL in data:
                    self._proposes(data)
                if self.on_beat is not None and BEAT in data:
                    self.on_beat(node, transport, data)
            return
        if TELLING[0] not in data and TELLING[1] not in data:
            return
        for header, body in _frames(data):
            ext = header.get("extFields") or {}
            if header["code"] != 0 or not header["flag"] & 1:
                continue
            if "msgId" in ext:
                # One who was not the master when it was asked has passed the send on.
                by = self._stored_by(ext["msgId"])
                if by is not None and by.is_master:
                    self._answers(by, ext["msgId"])
                if by is node:
                    self._judge_count(node, ext["msgId"])
            elif "nextBeginOffset" in ext:
                self._shows(node, body)

    def _proposes(self, data: bytes) -> None:
        """Kept for a copy that comes late."""
        self.proposals += [
            (header["extFields"], body) for header, body in _frames(data) if header["code"] == 1001
        ]

    def _shows(self, node: SwarmNode, body: bytes) -> None:
        """R10: consumers see what is confirmed."""
        confirmed = node.broker.ha.confirmed.value
        for record in messages(body):
            if record.offset + record.size > confirmed:
                text = f"{node.name} shows {record.offset}, confirmed is {confirmed} (R10)"
                self._swarm.fail(text)
                return

    def _answers_member(self, node: SwarmNode, data: bytes) -> None:
        """It passes the answer on, later: what counts is what is true now."""
        for _, body in _frames(data):
            for header, _ in _frames(body):
                if header["code"] == 0 and (ext := header.get("extFields")) and "msgId" in ext:
                    self._judge_count(node, ext["msgId"])

    def _relays(self, node: SwarmNode, data: bytes) -> None:
        """What a client asked is passed on once."""
        size, header_size = _SIZES.unpack_from(data)
        asked = data[8 + (header_size & 0xFFFFFF) : 4 + size]
        if self._relayed.setdefault(asked, node) is not node:
            self._swarm.fail(f"{node.name} relays what {self._relayed[asked].name} relayed")

    def _stored_by(self, message_id: str) -> SwarmNode | None:
        """The broker whose address is in the id of a message."""
        address = ".".join(str(part) for part in bytes.fromhex(message_id[:8]))
        return self._swarm.node_at(address)

    def _answers(self, node: SwarmNode, message_id: str) -> None:
        """R5: confirmed, or early by the only one who may."""
        swarm, record = self._swarm, self.record
        if swarm.world.has_stray and self._elected.get(node.epoch) != node.incarnation:
            swarm.fail(f"{node.name} answers in epoch {node.epoch}: its group has not elected it")
        place, end = self._place(node, message_id)
        if end > node.broker.ha.confirmed.value:
            self.early_count += 1
            newer = [n.name for n in swarm.nodes if n.is_master and n.epoch > node.epoch]
            if newer:
                text = f"{node.name} answers early in epoch {node.epoch}, {newer} lead (R5)"
                swarm.fail(text)
            if swarm.world.is_sync:
                swarm.fail(f"{node.name} answers {place} before it is confirmed (R5)")
            return
        if record is not None:
            self._judge_copies(node, record, place, end, "answers")

    def confirmed(self, node: SwarmNode) -> None:
        """R1: what a master confirms, all of the set have, at this moment."""
        if self.record is None or not node.is_master:
            return
        start, end = node.confirmed_to, node.broker.ha.confirmed.value
        node.confirmed_to = end
        if start and start < end:
            self._judge_copies(node, self.record, start, end, "confirms")

    def _judge_copies(
        self, node: SwarmNode, record: GroupRecord, start: int, end: int, verb: str
    ) -> None:
        content = node.log_bytes(start, end)
        for member in self._swarm.nodes:
            if self._swarm.id_of(member) not in record.sync_state_set or member.lost_s >= 0:
                continue
            if member.log_bytes(start, end, durable=self._swarm.world.is_flushed) != content:
                text = f"{node.name} {verb} {start}, {member.name} of the set has it not (R1)"
                self._swarm.fail(text)

    def _judge_count(self, node: SwarmNode, message_id: str) -> None:
        """What is answered as confirmed is on `minInSyncReplicas` disks, whoever is in the set.
        What a member loses with its power it had until the set hears of that."""
        swarm, least = self._swarm, self._swarm.world.least
        if least == 1 or not node.is_master:
            return
        start, end = self._place(node, message_id)
        if end > node.broker.ha.confirmed.value:
            return
        content = node.log_bytes(start, end)
        having = [
            other.name
            for other in swarm.nodes
            if other.log_bytes(start, end, durable=swarm.world.is_flushed) == content
            or (other.lost_s >= 0 and swarm.id_of(other) in self.members)
        ]
        if len(having) < least:
            swarm.fail(f"{node.name} answers {start}, which {having} have, not {least} (copies)")

    def _place(self, node: SwarmNode, message_id: str) -> tuple[int, int]:
        """Where a message begins and ends in the log of who has stored it."""
        start = int(message_id[16:], 16)
        return start, start + int.from_bytes(self._peek(node, start, 4), "big")

    def _peek(self, node: SwarmNode, place: int, size: int, *, durable: bool = False) -> bytes:
        base = place - place % self._swarm.world.segment_size
        return node.disk.peek(f"{LOG_PATH}/{base:020d}", place - base, size, durable=durable)

    # Promotions.

    def promoted(self, node: SwarmNode) -> None:
        swarm, epoch = self._swarm, node.epoch
        leader = (node.name, node.incarnation)
        if self.leaders.setdefault(epoch, leader) != leader:
            swarm.fail(f"{leader} and {self.leaders[epoch]} lead epoch {epoch} (R7)")
        is_clean = self.record is None or self.record.election is Election.CLEAN
        if not is_clean:
            self._begin_anew(node)
        elif (mine := node.log_bytes(0, len(self.truth))) != self.truth:
            pairs = zip(mine, self.truth, strict=False)
            place = next((n for n, (a, b) in enumerate(pairs) if a != b), len(mine))
            text = f"{node.name} leads {epoch} and differs at {place} of {len(self.truth)}"
            swarm.fail(f"{text} confirmed bytes (R1)")
        for sent in swarm.ledger.promised():
            if is_clean and sent.topic not in node.broker.topics.table:
                swarm.fail(f"{node.name} leads {epoch} without the topic {sent.topic}")
                return
            if node.holds_or_began_later(sent, durable=False):
                continue
            is_kept = swarm.world.is_sync or sent.offset < len(self.truth)
            if is_clean and is_kept:
                swarm.fail(f"{node.name} leads {epoch} without {sent.text()}, SEND_OK")
                return
            sent.is_excused = True

    def _begin_anew(self, node: SwarmNode) -> None:
        """All of the set lost power at once: outside of promises. From here on this log is true,
        and what others call confirmed counts when they follow it."""
        assert node.broker.ha.group is not None
        *_, began = node.broker.ha.group.history
        self._anew_since = node.epoch
        del self.truth[began.start :]
        for other in self._swarm.nodes:
            other.checked_to = min(other.checked_to, began.start)
        self._swarm.history.polls.clear()
        self._swarm.consumer.restart()

    # Now and then.

    def sample(self) -> None:
        for node in self._swarm.nodes:
            if node.is_running:
                self._compare(node)
                self._judge_departed(node)
        self._count_leaders()
        now_s = self._swarm.loop.now_s
        if any(node.is_master and not node.host.is_paused for node in self._swarm.nodes):
            self.longest_without_s = max(self.longest_without_s, now_s - self._led_s)
            self._led_s = now_s

    def _judge_departed(self, node: SwarmNode) -> None:
        """An operator hears of replicas that are refused: not when nothing is wrong."""
        if self._swarm.world.faults:
            return
        for departed in node.broker.ha.departed:
            if not departed.was_slave:
                self._swarm.fail(f"{node.name} refused a good replica: {departed.reason}")

    def _count_leaders(self) -> None:
        """Of the controllers, one at most believes that it leads, whatever the clocks' rates."""
        leading = [c.name for c in self._swarm.controllers if c.is_leading]
        if len(leading) > 1:
            self._swarm.fail(f"{leading} lead at the same time")

    def _is_of_before(self, node: SwarmNode) -> bool:
        """Whether it still has the log that an incomplete election has made untrue."""
        assert node.broker.ha.group is not None
        return node.broker.ha.group.last_epoch < self._anew_since

    @property
    def is_beginning_anew(self) -> bool:
        """What is read now may be of the log that was given up."""
        return any(node.is_running and self._is_of_before(node) for node in self._swarm.nodes)

    def _compare(self, node: SwarmNode) -> None:
        """Logs are equal below what is confirmed, and nobody cuts there."""
        broker = node.broker
        if self._is_of_before(node):
            return
        end = broker.store.commit_log.max_offset
        if end < node.checked_to:
            self._swarm.fail(f"{node.name} ends at {end}, confirmed was {node.checked_to} (R9)")
            return
        start, confirmed = node.checked_to, min(broker.ha.confirmed.value, end)
        if confirmed <= start:
            return
        mine = node.log_bytes(start, confirmed)
        if len(mine) != confirmed - start:
            self._swarm.fail(f"{node.name} has no bytes for its confirmed [{start}, {confirmed})")
            return
        is_synced = self._swarm.world.is_flushed and node.is_master
        if is_synced and node.log_bytes(start, confirmed, durable=True) != mine:
            self._swarm.fail(f"{node.name} confirms [{start}, {confirmed}) before its flush (R1)")
            return
        known = self.truth[start:confirmed]
        if mine[: len(known)] != known:
            self._swarm.fail(f"{node.name} differs below confirmed in [{start}, {confirmed})")
            return
        self.truth += mine[len(known) :]
        node.checked_to = confirmed

    # Consumers.

    def committed(self, queue_id: int, offset: int) -> None:
        """Perhaps: nobody has answered yet."""
        self._committed[queue_id] = max(offset, self._committed.get(queue_id, 0))

    def commit_answered(self, queue_id: int, offset: int) -> None:
        if self._swarm.world.is_orderly:
            self._answered.append((self._swarm.loop.now_s, queue_id, offset))

    def broken(self) -> None:
        """A process ended or a role changed: what was committed in the last second may be gone."""
        now_s = self._swarm.loop.now_s
        for asked_s, queue_id, offset in self._answered:
            if asked_s < now_s - OFFSETS_S and not self._was_broken(asked_s):
                self._kept[queue_id] = max(offset, self._kept.get(queue_id, 0))
        self._answered.clear()
        self._broken_s = now_s

    def _was_broken(self, asked_s: float) -> bool:
        """Whether the set was still changing when it was committed."""
        return asked_s < self._broken_s + OFFSETS_S

    def resumed(self, queue_id: int, position: int) -> None:
        if position > self._committed.get(queue_id, position):
            self._swarm.fail(f"queue {queue_id} goes on at {position}, nobody committed that")
        if position < self._kept.get(queue_id, 0) and not self.incomplete_count:
            text = f"queue {queue_id} goes on at {position}, {self._kept[queue_id]} was committed"
            self._swarm.fail(f"{text} more than {OFFSETS_S} s before anything broke")

    def moved(self, address: str, queue_id: int, position: int, following: int) -> None:
        """A consumer goes on behind what retention has taken at the broker that it reads from."""
        expired_to = max(n.expired_to for n in self._swarm.nodes if n.address == address)
        self._moves.append((queue_id, range(position, following), expired_to))

    def was_expired(self, sent: Sent) -> bool:
        """Whether a consumer was sent past it because it was expired there. Another replica may
        keep it for longer, and lead in the end."""
        place = self._swarm.places.get(sent.number, -1)
        return any(
            sent.queue_id == queue_id and place in places and sent.offset < expired_to
            for queue_id, places, expired_to in self._moves
        )

    def locked(self, owner: Locker, name: str, queue_id: int) -> None:
        """Two owners of a queue never, unless all of the set lost power at once."""
        now_s = self._swarm.loop.now_s
        self._swarm.trace(f"{name} has locked queue {queue_id}")
        others = [other for other in self._swarm.lockers if other is not owner]
        is_shared = any(other.until_s.get(queue_id, 0.0) > now_s for other in others)
        if is_shared and not self.incomplete_count:
            self._swarm.fail(f"queue {queue_id} has two owners, one is {name}")


def _frames(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The headers and bodies of the frames in one write, if it begins with one."""
    found: list[tuple[dict[str, Any], bytes]] = []
    at = 0
    while at + 8 <= len(data):
        size, header_size = _SIZES.unpack_from(data, at)
        header_end = at + 8 + (header_size & 0xFFFFFF)
        if header_size >> 24 or header_end > len(data):
            return found
        try:
            header = msgspec.json.decode(data[at + 8 : header_end])
        except msgspec.DecodeError:
            return found
        found.append((header, data[header_end : at + 4 + size]))
        at += 4 + size
    return found
