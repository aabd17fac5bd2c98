"""A loop for one command, which Ctrl-C never catches half made.

Python raises KeyboardInterrupt wherever it is. Within the making or the closing of a loop that
leaves an object without its fields, and their destructors print tracebacks. So the signal waits
while the loop is made, is asyncio's own while the command works, and ends the process afterwards.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """The result of `main` in a loop of its own, as `asyncio.run`."""
    if not _is_python_to_answer():
        return asyncio.run(_awaited(main))

    async def working() -> T:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            return await main()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return asyncio.run(working())
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _is_python_to_answer() -> bool:
    """Not a handler of somebody else, not a thread, nor a job whose shell ignores the signal."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


async def _awaited(main: Callable[[], Awaitable[T]]) -> T:
    return await main()
