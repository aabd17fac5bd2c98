"""Records in etcd, for several controllers of which one leads at a time.

    /twinlog/GROUP/leader       who leads, bound to a lease of 5 s
    /twinlog/GROUP/groups/NAME  the record of a group

Every write is one transaction that compares the create revision of the leader's key, so that who
was deposed writes nothing any more, and the modification revision of the record, so that a late
copy of a write finds another one. A leader believes in its lease by its own clock, counted from the
moment it asked, less a twentieth: it stops before anybody else can begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from twinlog.controller.etcd_client import (
    EtcdClient,
    EtcdError,
    EtcdNotReachedError,
    bytes64,
    entries_of,
    number,
    revision_of,
    text64,
)
from twinlog.controller.record import GroupRecord
from twinlog.controller.store import Leader, RecordStoreError, StoreOutcome
from twinlog.runtime.clock import Clock

_LOG = logging.getLogger("twinlog.controller")
LEASE_S = 5
LEASE_MS = LEASE_S * 1000 - LEASE_S * 50 - 200  # By our clock: rates differ by less than 5 %.
KEEP_ALIVE_MS = 1_000
RETRY_MS = 500
WATCH_S = 5.0  # Looked at again so often, should a watch have been forgotten.


class EtcdRecordStore:
    """Campaigns, keeps its lease, reads and writes records while it leads."""

    def __init__(self, addresses: Sequence[str], group: str, clock: Clock) -> None:
        self._client = EtcdClient(addresses)
        self._prefix = f"/twinlog/{group}/"
        self._leader_key = text64(self._prefix + "leader")
        self._clock = clock
        self.me = Leader("", "")
        self._leader: Leader | None = None
        self.problem = ""
        self._lease_id = 0
        self._create_revision = 0
        self._until_ms = 0
        self._revisions: dict[str, int] = {}

    # Leading

    @property
    def is_leading(self) -> bool:
        """By our own clock, read now: a process that was stopped finds its time gone."""
        return self._create_revision > 0 and self._clock.boot_ms() < self._until_ms

    @property
    def leader(self) -> Leader | None:
        return None if self._leader == self.me and not self.is_leading else self._leader

    async def lead(self) -> list[GroupRecord]:
        """Wait until this controller leads; the records it begins with."""
        while True:
            try:
                found = await self._leader_now()
                if found is None and await self._take_lead():
                    return await self._load_all()
                if found is not None:
                    await self._until_leader_goes(found)
            except EtcdError as error:
                self._say(str(error))
                self._leader = None
                await self._give_up()
                await self._clock.sleep_ms(RETRY_MS)

    async def _leader_now(self) -> int | None:
        """The revision at which somebody else's key was read; None when nobody leads."""
        answer = await self._client.call("/v3/kv/range", {"key": self._leader_key})
        self._say("")
        values = entries_of(answer)
        self._leader = _leader(values[0]) if values else None
        return revision_of(answer) if values else None

    async def _take_lead(self) -> bool:
        asked_ms = self._clock.boot_ms()
        lease = await self._client.call("/v3/lease/grant", {"TTL": LEASE_S})
        self._lease_id = number(lease.get("ID"))
        value = msgspec.json.encode(self.me)
        put = {"key": self._leader_key, "value": text64(value), "lease": str(self._lease_id)}
        answer = await self._client.call(
            "/v3/kv/txn",
            {
                "compare": [_equal(self._leader_key, "CREATE", "create_revision", 0)],
                "success": [{"request_put": put}],
            },
        )
        if not answer.get("succeeded"):
            await self._give_up()
            return False
        self._create_revision = revision_of(answer)
        self._until_ms = asked_ms + LEASE_MS
        self._leader = self.me
        return True

    async def _until_leader_goes(self, revision: int) -> None:
        """Watch the key; what comes is only a reason to look again."""
        request = {"key": self._leader_key, "start_revision": str(revision + 1)}
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCH_S):
                async with aclosing(
                    self._client.stream("/v3/watch", {"create_request": request})
                ) as answers:
                    async for answer in answers:
                        if answer.get("events") or answer.get("canceled"):
                            return

    async def led(self) -> str:
        """Keep the lease; returns with the reason when this controller leads no more."""
        reason = ""
        while not reason:
            await self._clock.sleep_ms(KEEP_ALIVE_MS)
            reason = await self._keep_alive()
        await self._give_up()
        return reason

    async def _keep_alive(self) -> str:
        asked_ms = self._clock.boot_ms()
        if not self.is_leading:
            return f"the lease of {LEASE_S} s ended while etcd did not answer: {self.problem}"
        try:
            answer = await self._client.call("/v3/lease/keepalive", {"ID": str(self._lease_id)})
            left_s = number(answer.get("TTL"))
        except EtcdError as error:
            self._say(str(error))
            return ""
        self._say("")
        if left_s <= 0:
            return "etcd has ended the lease"
        self._until_ms = max(self._until_ms, asked_ms + LEASE_MS)
        return ""

    async def _give_up(self) -> None:
        """The key goes with its lease, so that another one can lead at once."""
        self._create_revision = 0
        lease, self._lease_id = self._lease_id, 0
        if lease:
            with suppress(EtcdError):
                await self._client.call("/v3/lease/revoke", {"ID": str(lease)})

    def _say(self, problem: str) -> None:
        """Once for each change."""
        if problem and not self.problem:
            _LOG.warning("etcd does not answer, so this controller can decide nothing: %s", problem)
        elif self.problem and not problem:
            _LOG.info("etcd answers again")
        self.problem = problem

    # Records

    async def _load_all(self) -> list[GroupRecord]:
        """One that cannot be read is left out: nobody decides about its group until it can."""
        first = self._prefix + "groups/"
        answer = await self._client.call(
            "/v3/kv/range", {"key": text64(first), "range_end": text64(first[:-1] + "0")}
        )
        found = []
        for entry in entries_of(answer):
            try:
                found.append(self._taken(entry))
            except RecordStoreError as error:
                _LOG.error("record left out: %s", error)
        self._revisions = {record.group: revision for record, revision in found}
        return [record for record, _ in found]

    async def load(self, group: str) -> GroupRecord | None:
        """
        Raises:
            OSError: etcd does not answer.
            RecordStoreError: the record cannot be read.
        """
        try:
            answer = await self._client.call("/v3/kv/range", {"key": self._key(group)})
            entries = entries_of(answer)
        except EtcdError as error:
            self._say(str(error))
            raise OSError(str(error)) from error
        if not entries:
            self._revisions.pop(group, None)
            return None
        record, self._revisions[group] = self._taken(entries[0])
        return record

    async def commit(self, record: GroupRecord) -> StoreOutcome:
        if not self.is_leading:
            return StoreOutcome.STALE
        known = self._revisions.get(record.group, 0)
        key = self._key(record.group)
        value = text64(msgspec.json.encode(record))
        leads = _equal(self._leader_key, "CREATE", "create_revision", self._create_revision)
        request = {
            "compare": [leads, _equal(key, "MOD", "mod_revision", known)],
            "success": [{"request_put": {"key": key, "value": value}}],
            "failure": [{"request_range": {"key": self._leader_key}}],
        }
        try:
            answer = await self._client.call("/v3/kv/txn", request)
        except EtcdNotReachedError as error:
            self._say(str(error))
            return StoreOutcome.STALE
        except EtcdError as error:
            self._say(str(error))
            return StoreOutcome.UNKNOWN
        return self._outcome(record, answer)

    def _outcome(self, record: GroupRecord, answer: dict[str, Any]) -> StoreOutcome:
        try:
            if not answer.get("succeeded"):
                self._check_leader(answer)
                return StoreOutcome.STALE
            self._revisions[record.group] = revision_of(answer)
        except EtcdError as error:
            self._say(str(error))
            return StoreOutcome.UNKNOWN
        return StoreOutcome.DONE

    def _check_leader(self, answer: dict[str, Any]) -> None:
        """A transaction failed: if another one leads, this one does not from now on."""
        for part in answer.get("responses") or []:
            found = part.get("response_range") if isinstance(part, dict) else None
            for entry in entries_of(found or {}):
                if number(entry.get("create_revision")) == self._create_revision:
                    return
        self._until_ms = 0

    def _key(self, group: str) -> str:
        return text64(f"{self._prefix}groups/{group}")

    def _taken(self, entry: dict[str, Any]) -> tuple[GroupRecord, int]:
        """
        Raises:
            RecordStoreError: somebody else wrote this key.
        """
        key = "of a group"
        try:
            key = bytes64(entry.get("key", "")).decode("utf-8", "replace")
            record = msgspec.json.decode(bytes64(entry.get("value", "")), type=GroupRecord)
            record.check()
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, AssertionError) as error:
            text = f"the record {key} in etcd cannot be read: {error}"
            raise RecordStoreError(text) from error
        return record, number(entry.get("mod_revision"))

    async def close(self) -> None:
        await self._give_up()


def _equal(key: str, target: str, field: str, revision: int) -> dict[str, Any]:
    return {"key": key, "target": target, "result": "EQUAL", field: str(revision)}


def _leader(entry: dict[str, Any]) -> Leader:
    try:
        return msgspec.json.decode(bytes64(entry.get("value", "")), type=Leader)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise EtcdError(f"the leader's key has an unexpected value: {error}") from error
