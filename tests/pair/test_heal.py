"""A master and a slave whose files decay while they run: healed from each other, or named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.damage import Flip, flip_bit, log_place, queue_place
from support.healing import CONFIG, bodies_served, fill, running_pair, scrubbed
from support.local_brokers import Brokers, pull, until
from twinlog.admin.integrity import found_by
from twinlog.broker.server import Broker
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.disk import Disk
from twinlog.store.integrity.damage import place_of
from twinlog.store.integrity.digests import digest_of

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


def queue_ends(broker: Broker) -> dict[tuple[str, int], int]:
    return {queue.key: queue.next_offset for queue in broker.store.queue_table}


def flips_of(broker: Broker, ranges: list[int], rng: random.Random, count: int) -> list[Flip]:
    """Anywhere in these ranges of the log, and in the queues."""
    root, size = Path(broker.store.root), broker.store.commit_log.segment_size
    end = broker.store.commit_log.max_offset
    flips = []
    for _ in range(count):
        if rng.random() < 0.7:
            start = rng.choice(ranges)
            place = log_place(root, start, min(start + size, end), size, rng)
        else:
            ends = queue_ends(broker)
            place = queue_place(root, ends, broker.store.queue_table.file_size, rng)
        if all(flip.path != place[0] or flip.position != place[1] for flip in flips):
            flips.append(flip_bit(*place, rng))
    return flips


@pytest.mark.parametrize("seed", range(3))
async def test_what_decays_on_either_side_is_healed_by_one_scrub(
    brokers: Brokers, seed: int
) -> None:
    rng = random.Random(seed)
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, rng)
    await scrubbed(master, slave)
    size = master.store.commit_log.segment_size
    starts = [segment.start for segment in master.store.commit_log.segments.segments]
    # Not the last one, whose ranges are not full: only bodies have a CRC there.
    sealed = [start for start in starts if start + size <= master.store.flushed.value]
    assert len(sealed) >= 2
    rng.shuffle(sealed)
    half = max(1, len(sealed) // 2)
    flips = flips_of(master, sealed[:half], rng, 12) + flips_of(slave, sealed[half:], rng, 12)
    assert not any(flip.is_healed for flip in flips)
    served = await bodies_served(brokers, master)
    assert served <= set(bodies)
    await scrubbed(master, slave)
    await scrubbed(master, slave)  # What readers met and waits for its next try.
    assert [str(flip) for flip in flips if not flip.is_healed] == []
    assert await bodies_served(brokers, master) == set(bodies)
    healed = [broker.scrubber.healer for broker in (master, slave)]
    assert sum(healer.healed_bytes for healer in healed) > 0
    assert list((Path(master.store.root) / "twinlog").glob("damaged-*"))
    assert not master.store.damage.places
    assert not slave.store.damage.places


async def test_both_copies_of_a_range_decay_and_are_whole_after_one_scrub_of_either(
    brokers: Brokers,
) -> None:
    """Keys have no CRC: neither copy is right as a whole, and both together are. The slave hears of
    its damage when the master compares."""
    rng = random.Random(4)
    master, slave = await running_pair(brokers)
    await fill(brokers, master, slave, rng)
    await scrubbed(master, slave)
    flips = []
    for broker, key in ((master, b"k7"), (slave, b"k12"), (master, b"k21"), (slave, b"k30")):
        path = Path(broker.store.commit_log.segments.segments[0].path)
        at = path.read_bytes().index(b"KEYS\x01" + key + b"\x02")
        flips.append(flip_bit(path, at + 6, rng))
    await scrubbed(master)
    await until(lambda: all(flip.is_healed for flip in flips))
    await until(lambda: not slave.store.damage.places)
    assert not master.store.damage.places
    assert master.scrubber.differing_ranges == 0


async def test_ranges_that_differ_and_are_sound_by_themselves_are_named(brokers: Brokers) -> None:
    """A key has no CRC, and the digest is that of the damage: nobody knows who is right."""
    rng = random.Random(6)
    master, slave = await running_pair(brokers)
    await fill(brokers, master, slave, rng)
    await scrubbed(master, slave)
    path = Path(master.store.commit_log.segments.segments[0].path)
    right = path.read_bytes()
    flip_bit(path, right.index(b"KEYS\x01k7\x02") + 6, rng)
    master.scrubber.digests.add(0, digest_of(path.read_bytes()))
    await scrubbed(master)
    status = master.scrubber.status()
    assert (status["places"], status["differingRanges"]) == ([], 1)
    (text,) = found_by(status)
    assert "the range at offset 0 of the log differs from that of 127.0.0.1:" in text
    path.write_bytes(right)
    master.scrubber.digests.add(0, digest_of(right))
    await scrubbed(master)
    assert found_by(master.scrubber.status()) == []


@pytest.mark.parametrize("who", ["reader", "scrub"])
async def test_a_digest_that_was_made_of_damaged_bytes_proves_nothing(
    brokers: Brokers, who: str
) -> None:
    """A bit may flip between the write and the digest of its range."""
    rng = random.Random(5)
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, rng)
    await scrubbed(master, slave)
    path = Path(master.store.commit_log.segments.segments[0].path)
    right = path.read_bytes()
    flip_bit(path, right.index(bodies[20]) + 3, rng)
    master.scrubber.digests.add(0, digest_of(path.read_bytes()))
    if who == "reader":
        await met(brokers, master)
        await until(lambda: path.read_bytes() == right)
    await scrubbed(master)
    await scrubbed(master)
    assert path.read_bytes() == right
    assert not master.store.damage.places
    assert master.scrubber.digests.find(0) == digest_of(right)
    assert await bodies_served(brokers, master) == set(bodies)


async def test_without_a_good_copy_the_place_is_named_and_the_rest_is_served(
    brokers: Brokers,
) -> None:
    rng = random.Random(7)
    master, slave = await running_pair(brokers, twinlog_damage_wait_millis=0)
    bodies = await fill(brokers, master, slave, rng)
    await scrubbed(master)
    await brokers.end(slave)
    path = Path(master.store.commit_log.segments.segments[0].path)
    flip = flip_bit(path, path.read_bytes().index(bodies[20]) + 3, rng)
    await scrubbed(master)
    assert not flip.is_healed
    answer = await brokers.call(master, RequestCode.TWINLOG_SCRUB)
    status = fastjson.loads(bytes(answer.body))
    assert status["damageLost"] >= 1
    assert any("is damaged" in text or "digest" in text for text in status["places"])
    assert await bodies_served(brokers, master) == set(bodies) - {bodies[20]}
    slave = await brokers.slave(master, **CONFIG)
    copies = master.scrubber.healer.replicas
    await until(lambda: [copy.name for copy in copies()] == [slave.address])
    await scrubbed(master)
    assert flip.is_healed
    assert await bodies_served(brokers, master) == set(bodies)


async def test_a_damaged_record_spoils_neither_its_entry_nor_the_index(brokers: Brokers) -> None:
    """Tags and keys have no CRC. While nobody can say what they were, what was made from them when
    they were right stays."""
    rng = random.Random(8)
    master, slave = await running_pair(brokers, twinlog_damage_wait_millis=0)
    await fill(brokers, master, slave, rng)
    await scrubbed(master)
    await brokers.end(slave)
    path, before = Path(master.store.commit_log.segments.segments[0].path), derived(master)
    for name, value in ((b"KEYS", b"k30"), (b"TAGS", b"a")):
        at = path.read_bytes().index(name + b"\x01" + value + b"\x02", 30_000)
        flip_bit(path, at + len(name) + 1, rng)
    await scrubbed(master)
    assert derived(master) == before
    status = fastjson.loads(bytes((await brokers.call(master, RequestCode.TWINLOG_SCRUB)).body))
    assert status["indexUnchecked"]
    slave = await brokers.slave(master, **CONFIG)
    copies = master.scrubber.healer.replicas
    await until(lambda: [copy.name for copy in copies()] == [slave.address])
    await scrubbed(master)
    await scrubbed(master)
    assert not master.store.damage.places
    assert derived(master) == before
    assert master.scrubber.index_check.unchecked == []


def derived(broker: Broker) -> dict[str, bytes]:
    """The files that follow from the log."""
    root = Path(broker.store.root)
    files = [*root.glob("consumequeue/t/*/*"), *root.glob("index/*")]
    return {str(file): file.read_bytes() for file in sorted(files)}


async def test_a_broker_without_replicas_goes_on_behind_damage_at_once(brokers: Brokers) -> None:
    """Nobody has a good copy, so that waiting for one in the first seconds would help nobody."""
    rng = random.Random(11)
    master = await brokers.master(**{**CONFIG, "namesrv_addr": None})
    bodies = [b"%06d " % number + rng.randbytes(50) for number in range(20)]
    for body in bodies:
        assert (await brokers.send(master, body, topic="t", queue_id=0)).code == 11  # No slave.
    await until(lambda: master.store.flushed.value >= master.store.commit_log.max_offset)
    path = Path(master.store.commit_log.segments.segments[0].path)
    flip_bit(path, path.read_bytes().index(bodies[5]) + 3, rng)
    answer = await pull(brokers, master, 5, topic="t", queueId=0, maxMsgNums=32)
    assert (answer.code, answer.ext()["nextBeginOffset"]) == (20, "6")
    assert "is damaged" in answer.remark
    assert await bodies_served(brokers, master) == set(bodies) - {bodies[5]}


async def test_a_scrub_that_is_turned_off_walks_once_when_it_is_asked(brokers: Brokers) -> None:
    """`twinlog store verify --online` waits for the end of that pass."""
    master = await brokers.master(**{**CONFIG, "namesrv_addr": None}, twinlog_scrub_enable=False)
    assert (await brokers.send(master, topic="t")).code == 11  # No slave.
    await scrubbed(master)
    assert not master.scrubber.is_hurried


async def test_a_reader_waits_until_its_message_is_healed(brokers: Brokers) -> None:
    rng = random.Random(9)
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, rng)
    path = Path(master.store.commit_log.segments.segments[0].path)
    flip = flip_bit(path, path.read_bytes().index(bodies[33]) + 1, rng)
    queue = await met(brokers, master)
    await until(lambda: flip.is_healed)
    await until(lambda: not master.store.damage.places)
    assert await bodies_served(brokers, master) == set(bodies)
    assert queue


async def met(brokers: Brokers, broker: Broker) -> str:
    """Read all queues until one is answered with an error that asks to come again."""
    for topic, queue_id in broker.store.queues:
        offset = 0
        while topic == "t" and offset < broker.store.max_offset_in_queue(topic, queue_id):
            answer = await pull(
                brokers, broker, offset, topic=topic, queueId=queue_id, maxMsgNums=32
            )
            if answer.code == 1:
                assert "is damaged: body CRC" in answer.remark
                return f"{topic}-{queue_id}"
            offset = int(answer.ext()["nextBeginOffset"])
    raise AssertionError("no damage was met")


async def test_a_file_that_expires_while_it_is_digested_ends_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = await brokers.master(
        **{**CONFIG, "namesrv_addr": None}, mapped_file_size_commit_log=4096
    )
    scrubber, log = master.scrubber, master.store.commit_log
    for number in range(20):
        await brokers.send(master, b"%02d" % number + b"." * 500, topic="t")
    await until(lambda: master.store.flushed.value > 4096 < master.store.dispatched.value)
    real = scrubber._digest

    async def digest(begin: int, size: int) -> bytes:
        if log.min_offset == begin:
            log.remove_first()
        return await real(begin, size)

    monkeypatch.setattr(scrubber, "_digest", digest)
    damage = place_of(log.min_offset, 4096, "a test")
    damage.is_range = True
    scrubber._seal_at = log.min_offset
    await scrubber._seal()
    assert log.min_offset == 4096
    assert await scrubber._heal(damage), "what is gone is not damaged any more"


class ExpiringDisk:
    """A disk on which the first segment expires before a thread reads it."""

    def __init__(self, master: Broker) -> None:
        self._master = master

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._master.store.commit_log.remove_first()
        return await self._master.disk.run(function, *arguments)


async def test_a_replica_that_asks_for_what_expires_is_told_so(brokers: Brokers) -> None:
    master = await brokers.master(
        **{**CONFIG, "namesrv_addr": None}, mapped_file_size_commit_log=4096
    )
    for number in range(40):
        await brokers.send(master, b"%02d" % number + b"." * 500, topic="t")
    await until(lambda: master.store.flushed.value > 3 * 4096)
    master.replica_ranges._disk = ExpiringDisk(master)  # type: ignore[assignment]
    for code in (RequestCode.TWINLOG_LOG_RANGE, RequestCode.TWINLOG_LOG_DIGESTS):
        offset = master.store.commit_log.min_offset
        header = {"storeId": master.identity.store_id, "offset": offset, "size": 4096}
        answer = await brokers.call(master, code, header)
        assert (answer.code, "is not in the log" in answer.remark) == (1, True)
    assert master.failures.count == 0


class Gate:
    """Stops whoever comes through once, until it is opened."""

    def __init__(self) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


class GatedDisk:
    """A disk that lets the walk behind some offset wait at a gate."""

    def __init__(self, disk: Disk, gate: Gate, behind: int) -> None:
        self._disk, self._gate, self._behind = disk, gate, behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ == "read_to_check" and arguments[0] > self._behind:
            await self._gate.pass_through()
        return await self._disk.run(function, *arguments)


@pytest.mark.parametrize("moment", ["in the middle", "at the end"])
async def test_a_scrub_that_is_asked_for_during_another_looks_at_everything(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Who asks wants to know how the store is now, not how it was when the other one was there."""
    master, slave = await running_pair(brokers)
    await fill(brokers, master, slave, random.Random(5))
    await scrubbed(master, slave)
    scrubber, gate = master.scrubber, Gate()
    if moment == "at the end":
        scrubber.at_end.append(gate.pass_through)
    else:
        second = master.store.commit_log.segment_size
        monkeypatch.setattr(scrubber, "_disk", GatedDisk(scrubber._disk, gate, second))
    scrubber.hurry()
    await asyncio.wait_for(gate.reached.wait(), 60)
    first = Path(master.store.commit_log.segments.segments[0].path)
    flip = flip_bit(first, 5000, random.Random(6))
    passes = scrubber.state.passes
    scrubber.hurry()
    gate.open()
    await until(lambda: scrubber.state.passes > passes, 120)
    assert flip.is_healed


@pytest.mark.parametrize("is_mark_there", [True, False])
async def test_a_master_does_not_give_up_its_log_for_what_has_decayed_on_its_slave(
    brokers: Brokers, is_mark_there: bool
) -> None:
    """It comes back, and the logs differ in a record that the slave knows as confirmed: by a bit
    that has flipped there. Without its mark the master does not know more itself."""
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, random.Random(5))
    path = Path(slave.store.commit_log.segments.segments[-1].path)
    flip = flip_bit(path, path.read_bytes().index(bodies[-9]) + 5, random.Random(1))
    await brokers.end(master)
    if not is_mark_there:
        (Path(master.store.root) / "twinlog" / "confirmed.mark").unlink()
    port = master.config.listen_port
    again = await brokers.start("master", broker_role="SYNC_MASTER", listen_port=port, **CONFIG)
    await until(lambda: again.ha.status().departed)  # The slave came, and was refused.
    await scrubbed(slave)
    await until(lambda: flip.is_healed and slave.ha.is_linked)
    for broker in (again, slave):
        assert not list((Path(broker.store.root) / "twinlog").glob("cut-*"))
        assert await bodies_served(brokers, broker) == set(bodies)


@pytest.mark.parametrize("who", ["master", "slave"])
@pytest.mark.parametrize("back", [9, 4, 1])
async def test_damage_at_the_end_of_the_log_does_not_keep_a_pair_apart_until_the_next_pass(
    brokers: Brokers, who: str, back: int
) -> None:
    """No digest covers the end yet. The logs differ there, so the slave is refused. The log of the
    master goes on at its start; behind the last record that both have nothing can be compared."""
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, random.Random(5))
    await scrubbed(master, slave)  # The next pass comes in a week.
    passes = [broker.scrubber.state.passes for broker in (master, slave)]
    damaged = master if who == "master" else slave
    path = Path(damaged.store.commit_log.segments.segments[-1].path)
    data = path.read_bytes()
    position = sorted(data.find(body) for body in bodies)[-back]
    flip = flip_bit(path, position + 5, random.Random(1))
    port = master.config.listen_port
    await brokers.end(slave)
    await brokers.end(master)
    master = await brokers.start("master", broker_role="SYNC_MASTER", listen_port=port, **CONFIG)
    slave = await brokers.start(
        "slave", broker_role="SLAVE", broker_id=1, **CONFIG,
        ha_master_address=f"127.0.0.1:{master.ha.listen_port}",
    )  # fmt: skip
    await until(lambda: flip.is_healed and slave.ha.is_linked, 60)
    assert [broker.scrubber.state.passes for broker in (master, slave)] == passes
    for broker in (master, slave):
        assert await bodies_served(brokers, broker) == set(bodies)
