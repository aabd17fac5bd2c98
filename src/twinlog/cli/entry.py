"""The console scripts. Whatever the moment, Ctrl-C ends a command at once and without a traceback.

Until the modules are there, and again once the command is done, the signal ends the process:
Python's own handling would print where it was interrupted. In between `run_group` answers for it.
"""

from __future__ import annotations

import sys

# Not `signal` and `typing`: they take longer to import than all that is done here.
from _signal import SIG_DFL, SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def _run(module: str, name: str) -> NoReturn:
    # A shell without job control starts what runs in the background with SIGINT ignored.
    is_ours = getsignal(SIGINT) is default_int_handler
    if is_ours:
        signal(SIGINT, SIG_DFL)
    import gc
    import importlib

    # A command makes little garbage: what the collector looks through are modules.
    gc.set_threshold(50_000, 20, 50)
    function = getattr(importlib.import_module(module), name)
    try:
        if is_ours:
            signal(SIGINT, default_int_handler)
        function()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if is_ours:
            signal(SIGINT, SIG_DFL)
    sys.exit(0)


def twinlog() -> NoReturn:
    """`twinlog`."""
    _run("twinlog.cli.main", "main")


def mqadmin() -> NoReturn:
    """`mqadmin`."""
    _run("twinlog.cli.mqadmin", "main")


def mqnamesrv() -> NoReturn:
    """`mqnamesrv`."""
    _run("twinlog.cli.main", "mqnamesrv")


def mqcontroller() -> NoReturn:
    """`mqcontroller`."""
    _run("twinlog.cli.main", "mqcontroller")


def mqbroker() -> NoReturn:
    """`mqbroker`."""
    _run("twinlog.cli.main", "mqbroker")
