"""Delta Lake tables by the package `deltalake`: exactly once by Delta's own transaction ids."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, create_table_with_add_actions

from twinlog.spark.archive.lake import Commit
from twinlog.spark.archive.manifest import ArchivedFile
from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.errors import OptionError
from twinlog.spark.places import table_uri
from twinlog.spark.plan.offsets import Offsets, from_json, to_json

ENDS = "twinlog.ends"
PARTITIONS = ["topic", "date"]
HISTORY_STEP = 50


def table_schema() -> pa.Schema:
    """Return the columns of the table: those of a message, and the day that it was stored."""
    return arrow_schema().append(pa.field("date", pa.string()))


class Delta:
    """One table, as it was at the first question: a commit is refused when that has changed."""

    def __init__(self, place: str) -> None:
        self.uri = table_uri(place)

    @cached_property
    def seen(self) -> DeltaTable | None:
        """The table; None where there is none yet."""
        return DeltaTable(self.uri) if DeltaTable.is_deltatable(self.uri) else None

    def last_batch(self, query: str) -> int:
        """Ask the table's log for the query's last transaction."""
        found = None if self.seen is None else self.seen.transaction_version(query)
        return -1 if found is None else int(found)

    def ends(self) -> Offsets:
        """Return where the newest commit of ours says that each queue ends."""
        table = self.seen
        if table is None:
            return {}
        seen, step = 0, HISTORY_STEP
        while True:
            history = table.history(step)
            for entry in history[seen:]:
                if ENDS in entry:
                    return from_json(json.loads(entry[ENDS]))[0]
            if len(history) < step:
                return self._ends_of_rows(table)
            seen, step = len(history), step * 2

    @staticmethod
    def _ends_of_rows(table: DeltaTable) -> Offsets:
        """Find them in the rows: Delta forgets old commits, and the others may be of engines."""
        names = ["topic", "broker", "queue_id"]
        rows = table.to_pyarrow_dataset().to_table(columns=[*names, "queue_offset"])
        last = rows.group_by(names).aggregate([("queue_offset", "max")]).to_pylist()
        return {tuple(row[name] for name in names): row["queue_offset_max"] + 1 for row in last}

    def rows(self) -> int:
        """Count the rows by the table's log."""
        return 0 if self.seen is None else int(self.seen.count())

    def commit(self, commit: Commit) -> None:
        """Add a batch."""
        self.append(
            table_schema(), [_action(file) for file in commit.files],
            transaction=(commit.query, commit.batch), partitions=PARTITIONS,
            facts={ENDS: json.dumps(to_json(commit.ends, {}))},
        )  # fmt: skip

    def append(
        self,
        shape: pa.Schema,
        actions: Sequence[AddAction],
        *,
        transaction: tuple[str, int],
        partitions: Sequence[str] = (),
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Add files in one commit; make the table, or columns that it has not, first.

        Delta refuses the commit when the same transaction was committed after the table was seen.
        """
        properties = CommitProperties(
            custom_metadata=dict(facts or {}), app_transactions=[Transaction(*transaction)]
        )
        schema = Schema.from_arrow(shape)
        table = self.seen
        if table is None:
            create_table_with_add_actions(
                self.uri, schema, list(actions), mode="error", partition_by=list(partitions),
                commit_properties=properties,
            )  # fmt: skip
            return
        known = {field.name for field in table.schema().fields}
        _check_fit(self.uri, table, schema, partitions)
        missing = [field for field in schema.fields if field.name not in known]
        if missing:
            table.alter.add_columns(missing)  # the object goes on with the version that it made
        table.create_write_transaction(
            list(actions), "append", table.schema(), list(partitions), commit_properties=properties
        )

    def compact(self, expire_days: float | None, grace_seconds: float) -> dict[str, Any]:
        """Delete old days, merge small files, vacuum: all by Delta itself."""
        table = DeltaTable(self.uri)
        facts: dict[str, Any] = {}
        if expire_days is not None:
            limit = datetime.fromtimestamp(time.time() - expire_days * 86400, UTC)
            found = table.delete(f"date < '{limit:%Y-%m-%d}'")
            facts["deleted_files"] = found.get("num_removed_files", 0)
        merged = table.optimize.compact()
        facts |= {"files_before": merged["numFilesRemoved"], "files_after": merged["numFilesAdded"]}
        hours = max(0, int(grace_seconds // 3600))
        removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        return {**facts, "removed": len(removed)}


def _check_fit(uri: str, table: DeltaTable, schema: Schema, partitions: Sequence[str]) -> None:
    """Demand that files of this schema belong into the table: Delta takes them unseen.

    Raises:
        OptionError: a column has another type there, or the table has other partitions.
    """
    known = {field.name: field.type for field in table.schema().fields}
    for field in schema.fields:
        there = known.get(field.name, field.type)
        if there != field.type:
            raise OptionError(
                "BAD_COLUMN",
                f"column {field.name} is {_type_text(there)} in the table {uri} and "
                f"{_type_text(field.type)} in these rows: cast it in the query, or write another "
                "column or to another table",
            )
    found = table.metadata().partition_columns
    if found != list(partitions):
        raise OptionError(
            "BAD_OPTION",
            f"the table {uri} is partitioned by {', '.join(found) or 'nothing'} and these rows by "
            f"{', '.join(partitions) or 'nothing'}: write them to another table",
        )


def _type_text(kind: Any) -> str:
    return str(kind.to_json()).strip('"')


def add_action(
    name: str, size: int, stats: Mapping[str, Any], values: Mapping[str, str] | None = None
) -> AddAction:
    """Describe a file that a commit adds."""
    now_ms = int(time.time() * 1000)
    path = urllib.parse.quote(name, safe="/=")
    return AddAction(path, size, dict(values or {}), now_ms, True, json.dumps(stats))


def _action(file: ArchivedFile) -> AddAction:
    lows, highs = _extremes(file)
    stats = {"numRecords": file.rows, "minValues": lows, "maxValues": highs, "nullCount": {}}
    return add_action(file.name, file.size, stats, {"topic": file.topic, "date": file.date})


def _extremes(file: ArchivedFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the least and the greatest values that engines leave files out by."""
    found: list[dict[str, Any]] = []
    for side, choose in ((0, min), (1, max)):
        moment = datetime.fromtimestamp((file.store_ms[side] + side) / 1000, UTC)
        found.append(
            {
                "queue_id": choose(entry[1] for entry in file.queues),
                "queue_offset": choose(entry[2 + side] for entry in file.queues),
                "store_ts": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            }
        )
    return found[0], found[1]
