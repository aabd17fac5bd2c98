"""RocketMQ's own Java client as the demo's producer and consumers, in a JVM of its own.

The JVM says what happens, one line each; the ledger is kept here:

    ready                          producer and consumers are started
    sent NUMBER                    a send is open from now on
    ack NUMBER MICROSECONDS        it was answered with SEND_OK
    unknown OUTCOME                it was answered in any other way, or failed
    got NUMBER BROKER QUEUE OFFSET one delivery to a consumer
    stopped-writing                no send is open any more

and is told `write`, `hurry`, `stop-writing` and `stop`. The end of its input stops it too, so that
it never outlives the demo. Times are those of reading a line: an acknowledgement that is in the
books before the kill was certainly given before the kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path

from twinlog.cli.demo.java_tools import JavaClientError
from twinlog.cli.demo.ledger import Ledger
from twinlog.cli.demo.traffic import GROUP, TOPIC, Load, Stopwatch

START_SECONDS_MAX = 60.0
STOP_WRITING_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
CHUNK = 1 << 16


class JavaTraffic:
    """What `Traffic` is for our client; see there."""

    def __init__(
        self, name_server: str, load: Load, ledger: Ledger, now: Stopwatch, directory: Path,
        command: list[str],
    ) -> None:  # fmt: skip
        self._command = [*command, name_server, TOPIC, GROUP, str(load.size), str(load.rate)]
        self._ledger = ledger
        self._now = now
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()
        self._has_stopped_writing = asyncio.Event()
        self._is_stopping = False

    @property
    def log_path(self) -> Path:
        return self._directory / "java-client.log"

    def check(self) -> None:
        """Raise when the JVM ended by itself, or said something that means nothing."""
        if self._reader is None or not self._reader.done() or self._reader.cancelled():
            return
        error = self._reader.exception()
        if error is not None or not self._is_stopping:
            raise JavaClientError(f"the Java client ended: {error or self._last_words()}")

    async def start(self) -> None:
        with self.log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                # Ctrl-C is ours to handle: the clients are closed in order.
                start_new_session=True,
            )  # fmt: skip
        self._reader = asyncio.ensure_future(self._read(self._process.stdout))
        await self._wait(self._is_ready, START_SECONDS_MAX, "start")
        # A JVM takes seconds to start; they are no part of the run.
        self._now.restart()
        self._tell("write")

    def rush(self, *, is_on: bool) -> None:
        self._tell("rush" if is_on else "calm")

    def hurry(self) -> None:
        self._tell("hurry")

    async def stop_writing(self) -> None:
        self._tell("stop-writing")
        await self._wait(self._has_stopped_writing, STOP_WRITING_SECONDS_MAX, "end its sends")

    async def stop(self) -> None:
        """Close the clients and end the JVM, by force if it must be. Never raises: see `check`."""
        process, reader = self._process, self._reader
        self._process, self._is_stopping = None, True
        if process is None or reader is None:
            return
        assert process.stdin is not None
        process.stdin.write(b"stop\n")
        process.stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
        finally:
            # Only one that runs: the signal to one that just ended would take its exit code away.
            if process.returncode is None:
                process.kill()
                await process.wait()
            await asyncio.gather(reader, return_exceptions=True)

    async def _wait(self, event: asyncio.Event, seconds: float, what: str) -> None:
        assert self._reader is not None
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.wait(
            [waiting, self._reader], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if not event.is_set():
            self.check()
            raise JavaClientError(f"the Java client did not {what} within {seconds:.0f} s")

    def _tell(self, command: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(command.encode() + b"\n")

    async def _read(self, stdout: asyncio.StreamReader | None) -> None:
        assert stdout is not None
        rest = b""
        while chunk := await stdout.read(CHUNK):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            now = self._now()
            for line in lines:
                self._enter(line.decode(), now)

    def _enter(self, line: str, now: float) -> None:
        ledger = self._ledger
        match line.split():
            case ["sent", _]:
                ledger.in_flight += 1
            case ["ack", number, microseconds]:
                ledger.in_flight -= 1
                ledger.acknowledge(int(number), now, int(microseconds) / 1000)
            case ["unknown", outcome]:
                ledger.in_flight -= 1
                ledger.leave_unknown(outcome)
            case ["got", number, broker, queue, offset]:
                ledger.consume(int(number), (broker, int(queue)), int(offset), now)
            case ["ready"]:
                self._is_ready.set()
            case ["stopped-writing"]:
                self._has_stopped_writing.set()
            case _:
                raise JavaClientError(f"a line that cannot be understood: {line[:200]!r}")

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
