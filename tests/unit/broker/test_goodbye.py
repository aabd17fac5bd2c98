"""Who says goodbye to the name server, and whose place it gives up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.local_brokers import until
from support.runtime_stage import Stage
from twinlog.remoting.codes import RequestCode


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    await stage.stop()


async def test_a_broker_that_could_not_start_says_no_goodbye_for_the_one_that_runs(
    stage: Stage,
) -> None:
    recorder = await stage.recorder()
    running = await stage.start(namesrv_addr=recorder.address)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER))
    port = running.config.listen_port
    with pytest.raises(OSError, match="in use"):
        await stage.brokers.start("two", namesrv_addr=recorder.address, listen_port=port)
    assert recorder.count(RequestCode.UNREGISTER_BROKER) == 0
    await stage.brokers.end(running)
    assert recorder.count(RequestCode.UNREGISTER_BROKER) == 1


async def test_a_master_that_was_replaced_leaves_the_route_of_the_new_one_alone(
    stage: Stage,
) -> None:
    recorder = await stage.recorder()
    broker = await stage.start(namesrv_addr=recorder.address)
    await until(lambda: recorder.count(RequestCode.REGISTER_BROKER))
    reasons: list[str] = []
    broker.on_end = reasons.append
    broker.succession.superseded("replaced", ())
    await stage.brokers.end(broker)
    assert reasons == ["replaced"]
    assert recorder.count(RequestCode.UNREGISTER_BROKER) == 0


async def test_a_goodbye_is_for_the_place_that_the_broker_has_itself(stage: Stage) -> None:
    server = await stage.brokers.name_server()
    address = f"127.0.0.1:{server.port}"
    first = await stage.brokers.start("one", namesrv_addr=address, broker_name="a")
    await until(lambda: _holder(server) == first.address)
    second = await stage.brokers.start("two", namesrv_addr=address, broker_name="a")
    await until(lambda: _holder(server) is not None)
    holder = _holder(server)
    other = second if holder == first.address else first
    await stage.brokers.end(other)
    assert _holder(server) == holder


def _holder(server: object) -> str | None:
    info = server.routes.cluster_info()  # type: ignore[attr-defined]
    data = info.broker_addr_table.get("a")
    return None if data is None else data.broker_addrs.get(0)
