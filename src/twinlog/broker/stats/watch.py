"""Looks at a broker every half second and writes what changed into its journal of events."""

from __future__ import annotations

import asyncio
import posixpath
from typing import TYPE_CHECKING, Any

import msgspec

from twinlog.broker.stats.metrics import replica_names
from twinlog.ha.status import HAStatus
from twinlog.observe.changes import Departed, Snapshot, changes
from twinlog.observe.health import DiskFacts
from twinlog.remoting.bodies.controller import Events
from twinlog.remoting.codes import ResponseCode, refused_by_reason
from twinlog.remoting.command import Request
from twinlog.remoting.headers.controller import EventsRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config_key import declarations
from twinlog.runtime.event_journal import EventJournal, RecentEvents

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_REASON_MAX = 300
_LEVEL_SLACK = 0.01


class BrokerWatch:
    """The journal `store/twinlog/events` of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        directory = posixpath.join(broker.config.store_path_root_dir, "twinlog")
        self.events = RecentEvents(EventJournal(broker.disk, directory))
        self._last = Snapshot()
        declared = declarations(type(broker.config)).values()
        self._live = [(d.key, d.name) for d in declared if d.says.is_live]

    def started(self) -> None:
        broker = self._broker
        self.events.load()
        broker.scrubber.healer.on_event = self._write
        broker.scrubber.index_check.on_event = self._write
        broker.table_check.on_event = self._write
        report = broker.recovery
        details: dict[str, Any] = {"role": broker.role.broker_role.value}
        if report is not None:
            details |= {"wasClean": report.was_clean, "logEnd": report.end_offset}
        self._write("broker-started", **details)
        if report is not None and not report.was_clean:
            self._write(
                "recovered",
                records=report.record_count,
                cutBytes=report.cut_bytes,
                notes=[note[:_REASON_MAX] for note in report.notes[:10]],
            )
        for name, problem in broker.table_check.problems.items():
            self._write("table-lost", table=name, reason=problem)
        now = self._snapshot()
        # Roles and settings of the start are no change; slaves, a master, refusals and errors are.
        self._last = Snapshot(
            role=now.role, epoch=now.epoch, settings=now.settings, log_end=now.log_end,
            cut_count=now.cut_count, is_linked=broker.ha.status().client is None,
        )  # fmt: skip
        self.tick()
        broker.role.subscribe(self._tick_soon)  # So that an election has its own time.

    def _tick_soon(self) -> None:
        """Not in the way of what follows from a change of role."""
        loop, failures = asyncio.get_running_loop(), self._broker.failures
        loop.call_soon(failures.contain, "events", self.tick)

    def tick(self) -> None:
        if self.events.is_closed:
            return
        before, self._last = self._last, self._snapshot()
        for kind, details in changes(before, self._last):
            self._write(kind, **details)

    def stopping(self) -> None:
        self.tick()
        self._write("broker-stopping")
        self.events.close()

    def answer(self, connection: ServerConnection, request: Request) -> None:
        """Request 10023."""
        header = request.header(EventsRequestHeader)
        found = self.events.select(header.broker_name, header.since, header.limit)
        connection.reply(request, ResponseCode.SUCCESS, body=msgspec.json.encode(Events(found)))

    def _write(self, kind: str, **details: Any) -> None:
        config = self._broker.config
        self.events.write(
            self._broker.clock.now_ms(),
            kind,
            group=config.broker_name,
            broker=self._broker.address,
            **details,
        )

    def _snapshot(self) -> Snapshot:
        broker = self._broker
        status = broker.ha.status()
        facts = broker.facts.server()
        client = status.client
        return Snapshot(
            role=broker.role.broker_role.value,
            epoch=broker.role.epoch,
            replicas=_replicas(status),
            departed=_departed(status),
            master=client.master_address if client is not None else "",
            is_linked=client is None or client.state == "TRANSFER",
            link_reason=client.last_disconnect_reason[:_REASON_MAX] if client is not None else "",
            damage=client.damage[:_REASON_MAX] if client is not None else "",
            refusal=facts.refusal[:_REASON_MAX],
            disks={d.path: disk_level(d, self._last.disks.get(d.path)) for d in facts.disks},
            contained={f.what: (f.count, f.last_error) for f in broker.failures.table.values()},
            refused=refused_by_reason(broker.failures.refusals),
            cut_count=broker.store.commit_log.cut_count,
            log_end=broker.store.commit_log.max_offset,
            settings={key: str(getattr(broker.config, name)) for key, name in self._live},
            unsaved={name: why[:_REASON_MAX] for name, why in broker.saves.problems.items()},
        )


def _replicas(status: HAStatus) -> dict[str, str]:
    names = replica_names([replica.address for replica in status.replicas])
    return {
        name: replica.reason[:_REASON_MAX] if not replica.is_in_sync else ""
        for name, replica in zip(names, status.replicas, strict=True)
        if replica.is_slave
    }


def _departed(status: HAStatus) -> tuple[Departed, ...]:
    names = [replica_names([departed.address])[0] for departed in status.departed]
    return tuple(
        Departed(name, departed.until_ms, departed.reason[:_REASON_MAX], departed.was_slave)
        for name, departed in zip(names, status.departed, strict=True)
    )


def disk_level(disk: DiskFacts, before: str | None) -> str:
    """A level is left only well below where it begins: one that a disk hovers at is no news."""
    full_from = disk.refuse_ratio - (_LEVEL_SLACK if before == "full" else 0.0)
    if disk.used_ratio > full_from:
        return "full"
    clean_from = disk.clean_ratio - (_LEVEL_SLACK if before in ("full", "cleaning") else 0.0)
    return "cleaning" if disk.used_ratio >= clean_from else "ok"
