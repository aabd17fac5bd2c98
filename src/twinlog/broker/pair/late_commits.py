"""Commits that reach a slave while its master is there, or back: the master is told at once.

A client learns of the master's return when it refreshes its route, a Java client half a minute
later. What it commits to the slave until then the slave passes on. A commit that waits for its
answer is answered when the master has it: the next member of the group, which asks the master,
begins where this one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from twinlog.broker.pair.metadata_log import OffsetTable
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import Clock

_LOG = logging.getLogger("twinlog.broker")

_GATHER_MS = 10  # A client commits its queues one by one: they go on together.
_AGAIN_MS = 500
_TIMEOUT_MS = 1_000


class LateCommits:
    """The furthest commit of each queue that the master has not been told yet. Pure."""

    def __init__(self) -> None:
        self._table: OffsetTable = {}

    def __bool__(self) -> bool:
        return bool(self._table)

    def add(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def take(self) -> OffsetTable:
        table, self._table = self._table, {}
        return table

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """These queues are shorter now: so is what was consumed of them."""
        for key, queues in self._table.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                queues[queue_id] = min(offset, ends.get((topic, queue_id), offset))

    def put_back(self, table: OffsetTable) -> None:
        """The master did not take them: next time, unless there is news by then."""
        for key, queues in table.items():
            self._table[key] = {**queues, **self._table.get(key, {})}


class CommitRelay:
    """Passes a slave's late commits on to its master."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        clock: Clock,
        identity: Callable[[], dict[str, str]],
        master_address: Callable[[], str | None],
        takes_none: Callable[[], bool],
        not_taken: Callable[[], None],
    ) -> None:
        """
        Args:
            identity: Who we are; goes along with the offsets.
            master_address: Where to send them; None while the master is away.
            takes_none: Whether the master is known not to be twinlog.
            not_taken: Called when the master did not answer.
        """
        self._client = client
        self._clock = clock
        self._identity = identity
        self._master_address = master_address
        self._takes_none = takes_none
        self._not_taken = not_taken
        self._commits = LateCommits()
        self._answers: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self.problem = ""
        """Why the master does not take what clients commit here."""

    def add(
        self, group: str, topic: str, queue_id: int, offset: int, answer: Callable[[], None]
    ) -> None:
        """A client committed here. `answer` is called when the master knows, or is not there."""
        self._commits.add(group, topic, queue_id, offset)
        self._news.set()
        if self._master_address() is None:
            answer()
        else:
            self._answers.append(answer)

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        self._commits.queues_cut(ends)

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await self._clock.sleep_ms(_GATHER_MS)
            self._news.clear()
            try:
                address = self._master_address()
                if self._takes_none():
                    self._commits.take()
                elif address is not None:
                    await self._pass_on(address)
            finally:  # The clients do not wait for what became of it.
                self._answer_all()
            if self._commits:
                # The master is away, or a new one: the commits wait for it, their clients do not.
                await self._clock.sleep_ms(_AGAIN_MS)
                self._news.set()

    def _answer_all(self) -> None:
        answers, self._answers = self._answers, []
        for answer in answers:
            answer()

    async def _pass_on(self, address: str) -> None:
        table = self._commits.take()
        body = fastjson.dumps({"offsetTable": table})
        command = RemotingCommand.request(RequestCode.TWINLOG_OFFSETS, self._identity(), body)
        try:
            reply = await self._client.invoke(address, command, _TIMEOUT_MS)
        except (RemotingError, OSError) as error:
            _LOG.debug("commits not passed on yet master=%s reason=%s", address, error)
            self._commits.put_back(table)
            self._not_taken()
            return
        if reply.code == ResponseCode.SUCCESS:
            self.problem = ""
            return
        # Their clients were told that they are kept: they are, until the master takes them.
        self._commits.put_back(table)
        problem = f"the master refuses commits ({reply.code}): {reply.remark}"
        if problem != self.problem:
            _LOG.warning("commits are kept here, master=%s: %s", address, problem)
        self.problem = problem
