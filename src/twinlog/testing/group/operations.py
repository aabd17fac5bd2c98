"""What an operator does with a group, as `docs/PAIR.md` says, and what he finds: one at a time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from twinlog.admin.promotion import Digest, Replica, choose, digest_ranges, judge
from twinlog.runtime.broker_config import BrokerRole
from twinlog.testing.group.load import GROUP, MAX_OFFSET, QUERY_OFFSET, TOPIC
from twinlog.testing.group.node import QUEUE_PATH, GroupNode
from twinlog.testing.group.records import committed_in_log, topics_in_log
from twinlog.testing.group.rpc import Answer, OnAnswer

if TYPE_CHECKING:
    from twinlog.testing.group.sim import GroupSimulation

CREATE_TOPIC, DELETE_EXPIRED, REPLICA, PROMOTE = 17, 329, 10_003, 10_004
CHOICE_TRIES = 12


class Operations:
    """One method for each name in `world.OPERATIONS`; the caller holds the lock."""

    def __init__(self, sim: GroupSimulation) -> None:
        self._sim = sim
        self._rng = sim.rng

    # A master is lost.

    async def switch(self) -> None:
        sim = self._sim
        old = sim.master
        if not sim.copies_are_whole() or not all(slave.is_up for slave in sim.slaves):
            return
        way = self._rng.choice(("stop", "kill", "kill", "power"))
        old.is_held = True
        if way == "stop":
            await old.stop()
        if old.host.is_alive:
            if way == "power" and sim.world.is_flushed and not old.is_classic:
                sim.power_loss(old)
            else:
                old.kill()
        sim.master_was_lost()
        chosen = await self._chosen(old)
        # A classic slave does not know whose log it copies: twin slaves would not follow it.
        is_stranger = chosen is not None and chosen.is_classic and sim.world.dialect == "mixed"
        if chosen is not None and not is_stranger and await self._is_granted(chosen):
            await self._promote(chosen, old)
        else:
            old.is_held = False
            old.boot_if_down()

    async def switch_back(self) -> None:
        """Another switch as soon as everybody follows the new master: tails were cut meanwhile."""
        if self._rng.random() < 0.5:
            await self._cut_off()
        await self.switch()
        self._sim.loop.network.heal()
        await asyncio.sleep(self._rng.choice((0.0, 2.0, 6.0)))
        if await self._sim.in_sync_within(10.0):
            await self.switch()
        self._sim.are_producers_silent = False

    async def begin_apart(self) -> None:
        """Copies that are linked and empty are cut off before the first message."""
        sim = self._sim
        if await sim.in_sync_within(5.0):
            self._part()

    async def switch_apart(self) -> None:
        """A copy takes over that has never heard of the topic in which consumers have read: they
        must be sent back to its beginning, for that is where new messages are."""
        await asyncio.sleep(self._rng.uniform(0.8, 2.5))
        await self.switch()
        self._sim.loop.network.heal()

    def _part(self) -> None:
        for slave in self._sim.slaves:
            self._sim.loop.network.partition(self._sim.master.host, slave.host)

    async def _cut_off(self) -> None:
        """The master has a tail of its own when it is lost, and nobody sends that again before it
        is the master again: of what was cut from its log it must know nothing."""
        self._part()
        await asyncio.sleep(0.8)
        self._sim.are_producers_silent = True

    async def _chosen(self, old: GroupNode) -> GroupNode | None:
        """Some slave, or the one that `twinlog ha promote` takes instead; None if it takes none."""
        wanted = self._rng.choice(self._sim.slaves).address
        for _ in range(CHOICE_TRIES):
            replicas = [await self._replica(slave) for slave in self._sim.slaves]
            replicas = [await self._with_digests(r, digest_ranges(replicas)) for r in replicas]
            replicas.append(
                Replica(address=old.address, broker_id=0, error="refused", is_refusing=True)
            )
            for target in (next(r for r in replicas if r.address == wanted), choose(replicas)):
                if target is None or not target.is_reached:
                    continue
                verdict = judge(replicas, target)
                if not verdict.refusals and not verdict.losses:
                    return next(s for s in self._sim.slaves if s.address == target.address)
                self._sim.trace(f"{target.name} is not promoted: {verdict}")
            await asyncio.sleep(1.0)
        return None

    async def _is_granted(self, node: GroupNode) -> bool:
        """`twinlog ha promote` asks the slave, every second time; otherwise its role is changed by
        hand. A slave that has not heard of its master's promotion does not start by hand while one
        that has is there: only the command has compared the two."""
        told = [slave.broker.identity.promotion for slave in self._sim.slaves]
        if not len(self._sim.promoted) % 2 and node.broker.identity.promotion == max(told):
            return True
        replicas = [await self._replica(slave) for slave in self._sim.slaves]
        node.is_held = True
        ext = {
            "brokerName": "a",
            "brokerRole": self._sim.world.role.value,
            "logEnd": str(node.image().end),
            "promotion": str(max(replica.promotion for replica in replicas)),
            "comparedEnd": str(max(replica.log_end for replica in replicas)),
        }
        answer = await self._sim.operator.call(node.address, PROMOTE, ext)
        # It ends at once to start again, and may take the answer with it.
        node.is_held = node.broker.identity.is_granted
        if not node.is_held:
            self._sim.trace(f"{node.name} is not promoted: {answer.code} {answer.remark}")
        return node.is_held

    async def _replica(self, slave: GroupNode) -> Replica:
        answer = await self._sim.operator.call(slave.address, REPLICA, {})
        if answer.code != 0:  # A command dials again; this connection may lead to a dead process.
            answer = await self._sim.operator.call(slave.address, REPLICA, {})
        if answer.code != 0:
            return Replica(address=slave.address, broker_id=slave.broker_id, error="no answer")
        data = json.loads(answer.body)
        return Replica(
            address=slave.address,
            broker_id=data["brokerId"],
            role=data["brokerRole"],
            store_id=data["storeId"],
            promotion=data["promotion"],
            log_min=data["logMin"],
            log_end=data["logEnd"],
            confirmed=data["confirmed"],
            master_end=data["masterEnd"],
            is_linked=data["isLinked"],
            replica_ids=tuple(data["replicaIds"]),
            in_sync_replicas=data["inSyncReplicas"],
            master_role=data["masterRole"],
            master_address=data["masterAddress"],
        )

    async def _with_digests(
        self, replica: Replica, wanted: dict[str, set[tuple[int, int]]]
    ) -> Replica:
        """What `twinlog ha promote` asks for: the same bytes, or not?"""
        digests = []
        for start, end in sorted(wanted.get(replica.address, ())):
            ext = {"digestStart": str(start), "digestEnd": str(end)}
            answer = await self._sim.operator.call(replica.address, REPLICA, ext)
            if answer.code == 0:
                digests.append(Digest(start, end, int(json.loads(answer.body)["digest"])))
        return replace(replica, digests=tuple(digests))

    async def _promote(self, node: GroupNode, old: GroupNode) -> None:
        sim = self._sim
        sim.trace(f"{node.name} takes the place of {old.name}")
        # Whoever changes the role by hand gives a full disk room first: the copy has to know by
        # then whom it has followed.
        await sim.until(lambda: not node.is_up or node.broker.succession.is_saved, 15.0)
        node.is_held = True
        if self._rng.random() < 0.5:
            await node.stop()
        if node.host.is_alive:
            node.kill()
        sim.excuse_all_but(node)
        sim.check_has_all(node)
        image = node.image()
        sim.promoted.append((image.start, image.end))
        expected = committed_in_log(image)
        known = topics_in_log(image)
        sim.topics = [name for name in sim.topics if name in known]
        old.broker_id, node.broker_id = node.broker_id, 0
        old.role, node.role = BrokerRole.SLAVE, sim.world.role
        sim.watch.forget(node.host.address)
        node.is_held = False
        node.boot()
        await sim.until_up(node)
        await self._check_offsets(node, expected)
        await self._point_others_at(node, old)
        if old.is_classic or node.is_classic:
            old.replace_disk()  # It may have a tail of its own, which its dialect cannot find.
            self._empty_longer_ones(node, old, image.end)
        await asyncio.sleep(self._rng.choice((0.0, 1.0, 4.0)))
        old.is_held = False
        old.boot_if_down()

    def _empty_longer_ones(self, node: GroupNode, old: GroupNode, end: int) -> None:
        """So may a slave that could not be asked and has more. The new master refuses it, until its
        own log is as long."""
        for slave in self._sim.slaves:
            if slave is not old and slave is not node and slave.image().end > end:
                if slave.host.is_alive:
                    slave.kill()
                slave.replace_disk()
                slave.boot_if_down()

    async def _point_others_at(self, node: GroupNode, old: GroupNode) -> None:
        if not self._sim.world.is_fixed:
            return
        for slave in self._sim.slaves:
            if slave is not old and slave is not node:
                slave.is_held = True
                await slave.stop()
                if slave.host.is_alive:
                    slave.kill()
                slave.is_held = False
                slave.boot()

    async def _check_offsets(self, node: GroupNode, expected: dict[tuple[str, int], int]) -> None:
        """What the promoted copy's own log says of consumers, it must say too."""
        for (key, queue_id), offset in expected.items():
            if key != f"{TOPIC}@{GROUP}":
                continue
            queue = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
            rpc = self._sim.operator
            told = await rpc.call(node.address, QUERY_OFFSET, queue)
            end = await rpc.call(node.address, MAX_OFFSET, queue)
            if end.code != 0 or told.code not in (0, 22):
                continue
            least = min(offset, int(end.ext["offset"]))
            if told.code == 22 or int(told.ext["offset"]) < least:
                self._sim.fail(
                    f"{node.name} was promoted with offset {offset} of queue {queue_id} in its"
                    f" log and says {told.ext.get('offset')} (metadata not applied)"
                )

    async def wipe_master(self) -> None:
        """Somebody starts the master again with an empty disk, as master, and clients go on."""
        sim = self._sim
        old = sim.master
        if not sim.copies_are_whole() or not all(slave.is_up for slave in sim.slaves):
            return
        if not await sim.in_sync_within(5.0):
            return
        old.is_held = sim.is_wiped = True
        if old.host.is_alive:
            old.kill()
        old.replace_disk()
        sim.master_was_lost()
        old.is_held = False
        old.boot()
        await asyncio.sleep(self._rng.choice((2.0, 6.0)))
        sim.check_kept("after an empty master was started")
        old.is_held = True
        if old.host.is_alive:
            old.kill()
        sim.master_was_lost()
        old.replace_disk()
        for slave in sim.slaves:
            slave.resume_if_paused()
            slave.boot_if_down()
            await sim.until_up(slave)
        sim.consumer.restart()
        await self._promote(max(sim.slaves, key=lambda slave: slave.image().end), old)
        sim.is_wiped = False

    async def replace_master(self) -> None:
        """What a power cut took from the master only a slave has, whose full disk deleted all that
        was before it: nothing is common, and no program can compare the two. As docs/PAIR.md says,
        a person stops the master, promotes that slave by hand, and gives the master a new disk."""
        sim = self._sim
        old = sim.master
        old.is_held = True
        if old.host.is_alive:
            old.kill()
        sim.master_was_lost()
        old.replace_disk()
        await self._promote(max(sim.slaves, key=lambda slave: slave.image().end), old)

    # Everything is lost, or a part.

    async def power_all(self) -> None:
        for node in self._sim.nodes:
            if node.host.is_alive and not node.is_held:
                self._sim.power_loss(node)
        await asyncio.sleep(1.0)
        for node in self._sim.nodes:
            node.boot_if_down()

    async def replace_slave(self) -> None:
        slave = self._rng.choice(self._sim.slaves)
        if not await self._sim.in_sync_within(5.0) or not slave.host.is_alive:
            return
        slave.kill()
        slave.replace_disk()
        await asyncio.sleep(self._rng.choice((0.0, 1.0)))
        slave.boot_if_down()
        await self._sim.in_sync_within(10.0)

    async def lose_queue(self) -> None:
        node = self._rng.choice(self._sim.nodes)
        node.is_held = True
        if await node.stop():
            queue = self._rng.randrange(self._sim.world.queue_count)
            self._sim.trace(f"{node.name} has lost the directory of queue {queue}")
            node.disk.remove_tree(f"{QUEUE_PATH}/{TOPIC}/{queue}")
        node.is_held = False
        if node.host.is_alive and not node.is_up:
            return  # It was not up in the first place.
        node.boot_if_down()

    async def restart_clean(self) -> None:
        node = self._rng.choice(self._sim.nodes)
        node.is_held = True
        await node.stop()
        node.is_held = False
        node.boot_if_down()

    # Daily life.

    async def retention(self) -> None:
        await self._sim.operator.call(self._sim.master.address, DELETE_EXPIRED, {})
        await asyncio.sleep(3.0)

    async def create_topics(self) -> None:
        """One, and while it is being made known two more, in one packet of another client."""
        sim = self._sim
        number = sim.fault_counts["create_topics"]
        names = [f"made{number}{letter}" for letter in "CAB"]
        first, *others = names
        sim.loop.create_task(sim.operator.send(sim.master.address, [self._topic(first)]))
        await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.01)))
        await sim.second_operator.send(sim.master.address, [self._topic(n) for n in others])
        await asyncio.sleep(2.5)

    def _topic(self, name: str) -> tuple[int, dict[str, str], bytes, OnAnswer]:
        ext = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip

        def answered(answer: Answer) -> None:
            if answer.code == 0:
                self._sim.topics.append(name)

        return CREATE_TOPIC, ext, b"", answered


def has_route(body: bytes) -> bool:
    """Whether an answer of a name server names a broker with a master."""
    brokers = json.loads(body).get("brokerDatas") or []
    return any("0" in broker.get("brokerAddrs", {}) for broker in brokers)
