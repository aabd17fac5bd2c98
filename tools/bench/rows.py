"""Every row of `make bench`, in the order in which they are measured and shown."""

from __future__ import annotations

import broker_rows
import client_rows
import command_rows
import failover_rows
import ha_rows
import harness
import kafka_rows
import pair_rows
import sink_rows
import spark_rows
import store_rows
import whole_rows

# Rows that share a pair follow each other: to start one and warm it up takes a minute.
_PHASES = (
    ("store", "load"),
    ("send-async", "latency", "pull", "broker"),
    ("send-sync", "sync-cost"),
)


def all_rows() -> list[harness.Row]:
    """Every row there is. A module of rows is added here, a rival as a subject in its rows."""
    rows = [
        *store_rows.ROWS,
        *pair_rows.ROWS,
        *ha_rows.ROWS,
        *whole_rows.ROWS,
        *broker_rows.ROWS,
        *failover_rows.ROWS,
        *client_rows.ROWS,
        *command_rows.ROWS,
        *kafka_rows.ROWS,
        *spark_rows.ROWS,
        *sink_rows.ROWS,
    ]
    return sorted(rows, key=_phase)  # Stable.


def _phase(row: harness.Row) -> int:
    found = (number for number, names in enumerate(_PHASES) if row.name.startswith(names))
    return next(found, len(_PHASES))
