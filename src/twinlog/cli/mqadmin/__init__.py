"""`mqadmin`: Apache's verbs, option letters and columns (4.9.7), without a JVM.

    mqadmin topicList -n 127.0.0.1:9876
    mqadmin help topicStatus

Corresponds to MQAdminStartup and the SubCommand classes. What differs on purpose: errors are one
line on standard error and the exit code says what happened (0 ok, 1 failed, 2 usage, 3 not found,
4 unreachable, 10 not all brokers answered), where Apache prints a stack trace and exits 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> None:
    """The console script."""
    from twinlog.cli.mqadmin.startup import run

    sys.exit(run(sys.argv[1:] if args is None else args))
