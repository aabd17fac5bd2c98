"""The console's lines in the audit log: who changed what, from where, and how it ended."""

from __future__ import annotations

import json
import logging
from collections import deque
from datetime import UTC, datetime

from twinlog.runtime.audit_file import LOGGER
from twinlog.runtime.clock import Clock

_TEXT_MAX = 512


class ConsoleAudit:
    """One JSON object for each change, and for each time somebody was not let in."""

    def __init__(self, clock: Clock, lines: deque[dict[str, str]]) -> None:
        self._clock = clock
        self._lines = lines
        self._log = logging.getLogger(LOGGER)

    def note(self, account: str, address: str, action: str, resource: str, outcome: str) -> None:
        moment = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "account": account,
            "address": address,
            "request": f"console {action}",
            "resource": resource,
            "outcome": outcome,
        }
        cut = {key: text[:_TEXT_MAX] for key, text in line.items()}
        self._lines.append(cut)
        self._log.info("%s", json.dumps(cut))
