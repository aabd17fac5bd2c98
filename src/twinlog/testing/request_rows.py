"""The request tables of servers that are put together and not started."""

from __future__ import annotations

import random
from typing import Any, cast

from twinlog.broker.server import build_broker
from twinlog.controller.processor import ControllerProcessor
from twinlog.namesrv.server import build_namesrv
from twinlog.remoting.request_table import Row
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.namesrv_config import NamesrvConfig
from twinlog.testing.simdisk import SimDisk


async def broker_rows(**config: Any) -> list[Row[Any]]:
    """Of a broker with this configuration."""
    broker = build_broker(
        BrokerConfig(store_path_root_dir="/store", **config),
        rng=random.Random(1),
        disk=SimDisk(),
    )
    await broker.client.close()
    return list(broker.requests.table)


def namesrv_rows() -> list[Row[Any]]:
    config = NamesrvConfig(listen_port=0, kv_config_path="/kv", config_store_path="/properties")
    return list(build_namesrv(config, disk=SimDisk()).processor.table)


def controller_rows() -> list[Row[Any]]:
    return list(ControllerProcessor(cast(Any, None)).table)
