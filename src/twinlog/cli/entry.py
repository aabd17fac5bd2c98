"""The console scripts. Whatever the moment, Ctrl-C ends a command at once and without a traceback.

Until the modules are there, and again once the command is done, the signal ends the process:
Python's own handling would print where it was interrupted. In between `run_group` answers for it.
The signal is taken by the first statements of this module, so nothing slow is imported before them.
"""

# Not `signal` and `typing`: they take longer to import than all that is done here.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIGINT,
    default_int_handler,
    getsignal,
    raise_signal,
    signal,
)

# A shell without job control starts what runs in the background with SIGINT ignored.
_is_ours = getsignal(SIGINT) is default_int_handler
if _is_ours:
    signal(SIGINT, SIG_DFL)

import sys  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def _lost(unraisable: "sys.UnraisableHookArgs") -> None:
    """A Ctrl-C within a destructor or a callback of an import: Python would print it and go on."""
    if unraisable.exc_type is KeyboardInterrupt:
        signal(SIGINT, SIG_DFL)
        raise_signal(SIGINT)
    sys.__unraisablehook__(unraisable)


def _run(module: str, name: str) -> "NoReturn":
    import gc
    import importlib

    # A command makes little garbage: what the collector looks through are modules.
    gc.set_threshold(50_000, 20, 50)
    function = getattr(importlib.import_module(module), name)
    try:
        if _is_ours:
            sys.unraisablehook = _lost
            signal(SIGINT, default_int_handler)
        function()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if _is_ours:
            signal(SIGINT, SIG_DFL)
    sys.exit(0)


def twinlog() -> "NoReturn":
    """`twinlog`."""
    _run("twinlog.cli.main", "main")


def mqadmin() -> "NoReturn":
    """`mqadmin`."""
    _run("twinlog.cli.mqadmin", "main")


def mqnamesrv() -> "NoReturn":
    """`mqnamesrv`."""
    _run("twinlog.cli.main", "mqnamesrv")


def mqcontroller() -> "NoReturn":
    """`mqcontroller`."""
    _run("twinlog.cli.main", "mqcontroller")


def mqbroker() -> "NoReturn":
    """`mqbroker`."""
    _run("twinlog.cli.main", "mqbroker")
