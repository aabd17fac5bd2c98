"""Rules for every suite: a test that is skipped without being on tests/skips.txt has failed.

Tests of the compiled parts are not skipped where there is no C compiler, or with TWINLOG_PURE=1:
they are left out, and the first lines of the report say so.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.orders import shuffled
from support.tiers import why_not_compiled

# A loaded machine is slow, not wrong: no example has a deadline.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# What runs in the background of a script has SIGINT ignored and passes that on to all it starts;
# what a test interrupts must begin as on a terminal. Handlers are not inherited: what is started
# from here gets the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Only `make browser` installs what drives a browser.
collect_ignore = [] if find_spec("playwright") else ["browser"]

SKIPS = Path(__file__).parent / "skips.txt"


def allowed_skips() -> list[str]:
    """The patterns of skips.txt; a line without a reason is an error."""
    patterns = []
    for number, line in enumerate(SKIPS.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise pytest.UsageError(f"{SKIPS.name}:{number}: {pattern} has no reason")
        patterns.append(pattern)
    return patterns


def refuse_unlisted_skip(report: Any) -> None:
    is_expected_failure = hasattr(report, "wasxfail")
    if not report.skipped or is_expected_failure:
        return
    if any(fnmatchcase(report.nodeid, pattern) for pattern in allowed_skips()):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid} was skipped and is not on {SKIPS.name}: {reason}"


def pytest_report_header() -> str:
    reason = why_not_compiled()
    return f"compiled parts: not tested, {reason}" if reason else "compiled parts: tested"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED",
        help="files, and the tests of each file, in an order that the seed gives",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("shuffle")
    if seed is not None:
        items[:] = shuffled(items, seed, lambda item: item.path)
    if not why_not_compiled():
        return
    left_out = [item for item in items if item.get_closest_marker("compiled")]
    items[:] = [item for item in items if not item.get_closest_marker("compiled")]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    refuse_unlisted_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    outcome = yield
    refuse_unlisted_skip(outcome.get_result())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests have to tell next to passing, also from the processes of xdist."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "say":
                terminalreporter.write_line(f"{report.nodeid}: {text}")
