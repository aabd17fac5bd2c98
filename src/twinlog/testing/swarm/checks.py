"""What must hold at every step of a swarm; calls `swarm.fail` for everything that does not."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from twinlog.controller.record import Election, GroupRecord
from twinlog.testing.group.node import LOG_PATH
from twinlog.testing.sim_network import SimTransport

if TYPE_CHECKING:
    from twinlog.testing.swarm.lockers import Locker
    from twinlog.testing.swarm.node import SwarmNode
    from twinlog.testing.swarm.sim import Swarm

RELAY = b'"code":10005,'
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
        self.leaders: dict[int, str] = {}
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

    # The controller's records.

    def decided(self, after: GroupRecord) -> None:
        """R7, R8: numbers grow, only members are elected."""
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
        self._admit(after.sync_state_set - before.sync_state_set)
        if after.master_epoch == before.master_epoch:
            if set(after.sync_state_set) != set(before.sync_state_set):
                self._swarm.trace(f"set {sorted(after.sync_state_set)}")
            return
        self.election_count += 1
        members = sorted(after.sync_state_set)
        self._swarm.trace(f"elected {after.master_broker_id} epoch {after.master_epoch} {members}")
        if before.master_epoch and after.master_broker_id not in before.sync_state_set:
            old = sorted(before.sync_state_set)
            self._swarm.fail(f"{after.master_broker_id} was elected, the set was {old} (R7)")
        if after.election is not Election.CLEAN:
            self._incomplete(before)

    def _admit(self, joined: frozenset[int]) -> None:
        """What a replica lost before does not count any more: it was found to have everything."""
        for node in self._swarm.nodes:
            if self._swarm.id_of(node) in joined:
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
        if whole:
            self._swarm.fail(f"an incomplete log was elected, {whole} never lost power (R8)")

    # Answers, at the moment they leave.

    def wrote(self, transport: SimTransport, data: bytes) -> None:
        node = self._swarm.node_at(transport.host.address)
        if node is None:
            return
        peer = transport.get_extra_info("peername")[0]
        if peer != self._swarm.client_address:
            if RELAY in data[:HEAD_SIZE]:
                self._relays(node, data)
            return
        for header in _headers(data):
            ext = header.get("extFields") or {}
            if header["code"] == 0 and header["flag"] & 1 and "msgId" in ext:
                # Who is not the master has passed the send on.
                self._answers(node if node.is_master else self._swarm.master, ext["msgId"])

    def _relays(self, node: SwarmNode, data: bytes) -> None:
        """What a client asked is passed on once."""
        size, header_size = _SIZES.unpack_from(data)
        asked = data[8 + (header_size & 0xFFFFFF) : 4 + size]
        if self._relayed.setdefault(asked, node) is not node:
            self._swarm.fail(f"{node.name} relays what {self._relayed[asked].name} relayed")

    def _answers(self, node: SwarmNode | None, message_id: str) -> None:
        """R5: confirmed, or early by the only one who may."""
        swarm, record = self._swarm, self.record
        if node is None:
            return
        place = int(message_id[16:], 16)
        size = int.from_bytes(self._peek(node, place, 4), "big")
        if place + size > node.broker.ha.confirmed.value:
            self.early_count += 1
            newer = [n.name for n in swarm.nodes if n.is_master and n.epoch > node.epoch]
            if newer:
                text = f"{node.name} answers early in epoch {node.epoch}, {newer} lead (R5)"
                swarm.fail(text)
            if swarm.world.is_sync:
                swarm.fail(f"{node.name} answers {place} before it is confirmed (R5)")
            return
        if record is None:
            return
        content = self._peek(node, place, size)
        for member in swarm.nodes:
            if swarm.id_of(member) not in record.sync_state_set or member.lost_s >= 0:
                continue
            if self._peek(member, place, size, durable=swarm.world.is_flushed) != content:
                text = f"{node.name} answers {place}, {member.name} of the set has it not (R1)"
                swarm.fail(text)

    def _peek(self, node: SwarmNode, place: int, size: int, *, durable: bool = False) -> bytes:
        base = place - place % self._swarm.world.segment_size
        return node.disk.peek(f"{LOG_PATH}/{base:020d}", place - base, size, durable=durable)

    # Promotions.

    def promoted(self, node: SwarmNode) -> None:
        swarm, epoch = self._swarm, node.epoch
        if self.leaders.setdefault(epoch, node.name) != node.name:
            swarm.fail(f"{node.name} and {self.leaders[epoch]} lead epoch {epoch}")
        is_clean = self.record is None or self.record.election is Election.CLEAN
        if not is_clean:
            self._begin_anew(node)
        elif (mine := node.log_bytes(0, len(self.truth))) != self.truth:
            pairs = zip(mine, self.truth, strict=False)
            place = next((n for n, (a, b) in enumerate(pairs) if a != b), len(mine))
            text = f"{node.name} leads {epoch} and differs at {place} of {len(self.truth)}"
            swarm.fail(f"{text} confirmed bytes (R1)")
        for sent in swarm.ledger.promised():
            if node.holds(sent):
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
        now_s = self._swarm.loop.now_s
        if any(node.is_master and not node.host.is_paused for node in self._swarm.nodes):
            self.longest_without_s = max(self.longest_without_s, now_s - self._led_s)
            self._led_s = now_s

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

    def locked(self, owner: Locker, name: str, queue_id: int) -> None:
        """Two owners of a queue never, unless all of the set lost power at once."""
        now_s = self._swarm.loop.now_s
        self._swarm.trace(f"{name} has locked queue {queue_id}")
        others = [other for other in self._swarm.lockers if other is not owner]
        is_shared = any(other.until_s.get(queue_id, 0.0) > now_s for other in others)
        if is_shared and not self.incomplete_count:
            self._swarm.fail(f"queue {queue_id} has two owners, one is {name}")


def _headers(data: bytes) -> list[dict[str, Any]]:
    """The headers of the frames in one write, if it begins with one."""
    found: list[dict[str, Any]] = []
    at = 0
    while at + 8 <= len(data):
        size, header_size = _SIZES.unpack_from(data, at)
        header_end = at + 8 + (header_size & 0xFFFFFF)
        if header_size >> 24 or header_end > len(data):
            return found
        try:
            found.append(json.loads(data[at + 8 : header_end]))
        except ValueError:
            return found
        at += 4 + size
    return found
