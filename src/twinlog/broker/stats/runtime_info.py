"""The table that `brokerStatus` and `clusterList` print: 28 (prepareRuntimeInfo of Apache)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog import __version__
from twinlog.ha.status import runtime_table as ha_table
from twinlog.remoting.codes import OWN_VERSION, version_description
from twinlog.runtime.compiled import code_tier

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_NO_POOL = 2_147_483_647  # What Apache says when there is no transient store pool.


class RuntimeInfo:
    """Collects the table when it is asked for."""

    def __init__(
        self,
        broker: Broker,
        *,
        metadata: Callable[[], dict[str, str]],
        unsaved: Callable[[], dict[str, str]],
    ) -> None:
        self._config = broker.config
        self._store = broker.store
        self._disk = broker.disk
        self._clock = broker.clock
        self._stats = broker.stats
        self._store_stats = broker.store_stats
        self._schedule = broker.schedule
        self._replies = broker.replies
        self._ha = broker.ha
        self._metadata = metadata
        self._unsaved = unsaved

    def table(self) -> dict[str, str]:
        # Sampled once a second otherwise; who asks behind a send wants to see it.
        self._store_stats.put_times, self._store_stats.put_size = self._stats.put_totals()
        return {
            **self._store_stats.table(self._clock.now_ms()),
            **self._identity(),
            **self._queues(),
            **self._files(),
            **self._delays(),
            **ha_table(self._ha.status()),
            **self._store.damage.status(),
            **self._metadata(),
            **{f"notSaved {table}": reason for table, reason in self._unsaved().items()},
        }

    def _identity(self) -> dict[str, str]:
        return {
            "brokerVersionDesc": version_description(OWN_VERSION),
            "brokerVersion": str(OWN_VERSION),
            "twinlogVersion": __version__,
            "twinlogCode": code_tier(),
            "startAcceptSendRequestTimeStamp": str(
                self._config.start_accept_send_request_time_stamp
            ),
        }

    def _queues(self) -> dict[str, str]:
        """There are no thread pools; what waits for its durability is the nearest to a queue."""
        config = self._config
        return {
            "sendThreadPoolQueueSize": str(self._replies.waiting_count),
            "sendThreadPoolQueueCapacity": str(config.send_thread_pool_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": str(config.pull_thread_pool_queue_capacity),
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": str(config.query_thread_pool_queue_capacity),
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": str(
                config.end_transaction_pool_queue_capacity
            ),
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": str(_NO_POOL),
        }

    def _files(self) -> dict[str, str]:
        store = self._store
        log = store.commit_log
        ratios = {path: self._disk.space(path).ratio for path in self._config.commit_log_paths}
        space = self._disk.space(self._config.store_path_root_dir)
        total = human_bytes(space.used + space.usable)
        table = {
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.max_offset),
            "commitLogDiskRatio": str(min(ratios.values())),
            "consumeQueueDiskRatio": str(space.ratio),
            "commitLogDirCapacity": f"Total : {total}, Free : {human_bytes(space.usable)}.",
            "dispatchBehindBytes": str(log.max_offset - store.dispatched.value),
            "earliestMessageTimeStamp": str(store.earliest_message_time()),
            "remainHowManyDataToFlush": human_bytes(log.max_offset - store.flushed.value),
        }
        for path, ratio in ratios.items():
            table[f"commitLogDiskRatio_{path}"] = str(ratio)
        return table

    def _delays(self) -> dict[str, str]:
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._schedule.max_offset(level)}"
            for level, offset in sorted(self._schedule.offsets.items())
        }


def human_bytes(size: int) -> str:
    """`12 B`, `77.8 GiB`: Apache's humanReadableByteCount with binary units."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
