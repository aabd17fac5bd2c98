"""Power cuts: after every single change of a script, and at random in a state machine.

What was flushed is there, nothing is served that was never put, and recovering twice gives what
recovering once gave, also when the power goes again while recovering.
"""

import asyncio
import logging
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.store_model import StoreModel
from twinlog.testing.simdisk import SimCrash


@pytest.fixture(autouse=True)
def _quiet():
    """A power cut is reported by everything that it interrupts."""
    logging.getLogger("twinlog").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("twinlog").setLevel(logging.NOTSET)


async def _script(model):
    """Appends, rolls, flushes, rounds, cleans, a clean stop, metadata; nothing is left out."""
    await model.open()
    model.save_metadata()
    model.put(50)
    model.write()
    await model.flush()
    model.put(300, topic=1)
    model.put(200, queue_id=1, keyed=False)
    model.write()
    await model.prepare()
    model.put(700)  # Rolls over.
    model.write()
    model.tick()
    await model.save_round()
    for number in range(6):
        model.put(100 + 40 * number, topic=number % 2, queue_id=number % 2)
        if number % 2:
            model.write()
    await model.flush()
    model.save_metadata()
    model.put(500)
    model.put(500)  # Two rolls in one turn.
    model.put(500)
    model.write()
    await model.save_round()
    await model.clean()
    model.put(120, topic=1)
    model.write()
    await model.stop()
    model.put(60)
    model.write()
    model.tick()
    model.save_metadata()
    await model.clean()
    await model.save_round()
    model.put(30, queue_id=1)
    model.write()
    await model.flush()


async def _run(script, model):
    """True when the script came to its end."""
    try:
        await script(model)
    except SimCrash:
        return False
    return not model.disk.is_off


def _in_loop(coroutine):
    loop = asyncio.new_event_loop()
    # Callbacks of a store whose power is off end in SimCrash: that is what happened.
    loop.set_exception_handler(lambda _, context: None)
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


async def _crash_at(change, rng, *, is_kill=False):
    model = StoreModel()
    model.disk.crash_after = model.disk.change_count + change
    await _run(_script, model)
    flushed = model.flushed
    if is_kill:
        model.disk.is_off = False
        flushed = max(flushed, model.store.appended.value if model.store else 0)
        model.kill()
    else:
        model.cut_power(rng)
    await model.recover()
    model.check_after_crash(flushed)
    return model


def _points():
    async def count():
        model = StoreModel()
        before = model.disk.change_count
        assert await _run(_script, model)
        model.check()
        return model.disk.change_count - before

    return _in_loop(count())


def test_script_holds_without_a_crash():
    assert _points() > 150


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_power_cut_after_every_change(seed):
    for change in range(1, _points() + 1):
        rng = None if seed is None else random.Random(f"{seed}-{change}")
        try:
            _in_loop(_crash_at(change, rng))
        except Exception as error:
            raise AssertionError(f"power cut after change {change}, seed {seed}") from error


def test_kill_after_every_change():
    for change in range(1, _points() + 1):
        try:
            _in_loop(_crash_at(change, None, is_kill=True))
        except Exception as error:
            raise AssertionError(f"kill after change {change}") from error


def _state(model):
    log = model.live.commit_log
    return log.min_offset, log.max_offset, dict(model.records)


async def _recover_again(change, seed):
    """Recover twice; then cut the power while recovering, after each change that it makes."""
    model = await _crash_at(change, random.Random(f"{seed}-{change}"))
    flushed, records = model.flushed, dict(model.records)
    first = _state(model)
    model.kill()
    await model.recover()
    assert _state(model) == first
    model.check_after_crash(flushed)
    inner = 1
    while True:
        model.cut_power(random.Random(f"{seed}-{change}-{inner}"))
        model.disk.crash_after = model.disk.change_count + inner
        model.records, model.flushed = dict(records), flushed
        if await _run(StoreModel.recover, model):
            break
        inner += 1
    model.check_after_crash(flushed)


@pytest.mark.parametrize("seed", [1])
def test_recovery_is_idempotent_and_may_be_interrupted(seed):
    for change in range(1, _points() + 1, 3):
        try:
            _in_loop(_recover_again(change, seed))
        except Exception as error:
            raise AssertionError(f"power cut after change {change}, seed {seed}") from error


class StoreMachine(RuleBasedStateMachine):
    """Any order of the same steps, with power cuts and kills in between."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: None)
        self.model = StoreModel()

    def _do(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def start(self):
        self._do(self.model.open())

    @rule(
        sizes=st.lists(st.integers(0, 800), min_size=1, max_size=5),
        topic=st.integers(0, 1),
        queue_id=st.integers(0, 1),
        keyed=st.booleans(),
    )
    def put(self, sizes, topic, queue_id, keyed):
        async def turn():
            for size in sizes:
                self.model.put(size, topic=topic, queue_id=queue_id, keyed=keyed)
            self.model.write()

        self._do(turn())

    @rule()
    def flush(self):
        self._do(self.model.flush())

    @rule()
    def save_round(self):
        self._do(self.model.save_round())

    @rule()
    def tick(self):
        async def tick():
            self.model.tick()

        self._do(tick())

    @rule()
    def prepare(self):
        self._do(self.model.prepare())

    @precondition(lambda self: len(self.model.records) > 4)
    @rule()
    def clean(self):
        self._do(self.model.clean())

    @rule()
    def save_metadata(self):
        self.model.save_metadata()

    @rule()
    def stop(self):
        self._do(self.model.stop())

    @rule(seed=st.one_of(st.none(), st.integers(0, 10_000)))
    def cut_power(self, seed):
        flushed = self.model.flushed
        self.model.cut_power(None if seed is None else random.Random(seed))
        self._do(self.model.recover())
        self.model.check_after_crash(flushed)

    @rule(
        seed=st.integers(0, 10_000),
        change=st.integers(1, 12),
        step=st.sampled_from(["turn", "flush", "save_round", "clean", "stop"]),
    )
    def cut_power_in_the_middle(self, seed, change, step):
        """The power goes while one of the other steps runs."""
        self.model.disk.crash_after = self.model.disk.change_count + change
        steps = {
            "turn": self._turn,
            "flush": StoreModel.flush,
            "save_round": StoreModel.save_round,
            "clean": StoreModel.clean,
            "stop": StoreModel.stop,
        }
        self._do(_run(steps[step], self.model))
        self.cut_power(seed)

    @staticmethod
    async def _turn(model):
        for size in (100, 600, 300, 700):
            model.put(size)
        model.write()

    @rule()
    def kill(self):
        end = self.model.live.commit_log.max_offset
        self.model.kill()
        self._do(self.model.recover())
        self.model.check_after_crash(end)

    @invariant()
    def everything_is_served(self):
        if self.model.store is not None:
            self.model.check()

    def teardown(self):
        self.loop.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _replay(*steps):
    machine = StoreMachine()
    machine.start()
    try:
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
            machine.everything_is_served()
    finally:
        machine.teardown()


def _put(sizes, topic=0, queue_id=0, keyed=True):
    return "put", {"sizes": sizes, "topic": topic, "queue_id": queue_id, "keyed": keyed}


def _cut(change, seed, step):
    return "cut_power_in_the_middle", {"change": change, "seed": seed, "step": step}


_KILL, _TICK, _CLEAN, _PREPARE = ("kill", {}), ("tick", {}), ("clean", {}), ("prepare", {})


def test_queue_file_that_was_made_and_never_written():
    _replay(
        _put([55, 378, 453], topic=1, keyed=False),
        _KILL,
        _cut(1, 1, "turn"),
        _put([0, 259], keyed=False),
        _CLEAN,
        _TICK,
        _cut(1, 4769, "turn"),
    )


def test_keys_are_indexed_once_when_recovery_starts_over():
    _replay(
        _put([55, 378, 453], topic=1, keyed=False),
        _KILL,
        _cut(1, 1009, "turn"),
        _TICK,
        _cut(11, 3940, "clean"),
        _KILL,
        _PREPARE,
        _cut(3, 40, "save_round"),
        _PREPARE,
        _TICK,
        _cut(10, 157, "stop"),
        _PREPARE,
        _TICK,
        _put([270, 114, 402, 488, 315]),
        _PREPARE,
        _KILL,
        _CLEAN,
        _put([288], queue_id=1),
        _put([331], topic=1, keyed=False),
        _KILL,
    )
