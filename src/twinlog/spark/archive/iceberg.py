"""Iceberg tables by the package `pyiceberg`: query and batch are table properties of the commit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from twinlog.spark.archive.lake import Commit
from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.errors import OptionError
from twinlog.spark.places import is_local, table_uri
from twinlog.spark.plan.offsets import Offsets, from_json, to_json

ENDS = "twinlog.ends"
BATCH = "twinlog.batch."
DEFAULT_TABLE = "twinlog.messages"


class Iceberg:
    """One table of a catalog."""

    def __init__(self, place: str, settings: Mapping[str, str]) -> None:
        self.place = table_uri(place)
        self.uri = f"file://{self.place}" if is_local(place) else self.place
        self.name = settings.get("table", DEFAULT_TABLE)
        known = {name: value for name, value in settings.items() if name != "table"}
        if not known:
            if not is_local(place):
                raise OptionError(
                    "BAD_OPTION", "iceberg outside this machine needs a catalog (--catalog uri=...)"
                )
            known = {"type": "sql", "uri": f"sqlite:///{self.place}/catalog.db"}
        self.settings = {"warehouse": self.uri, **known}

    def _catalog(self) -> Catalog:
        return load_catalog("twinlog", **self.settings)

    def table(self) -> Table | None:
        """Load the table as it is now."""
        try:
            return self._catalog().load_table(self.name)
        except NoSuchTableError:
            return None

    def last_batch(self, query: str) -> int:
        """Return what the table's properties say about the query."""
        table = self.table()
        return -1 if table is None else int(table.properties.get(f"{BATCH}{query}", -1))

    def ends(self) -> Offsets:
        """Return where each queue ends."""
        table = self.table()
        if table is None or ENDS not in table.properties:
            return {}
        return from_json(json.loads(table.properties[ENDS]))[0]

    def rows(self) -> int:
        """Count the rows by the snapshot's summary."""
        table = self.table()
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary.additional_properties.get("total-records", 0))

    def commit(self, commit: Commit) -> None:
        """Add a batch: files and properties in one transaction."""
        table = self.table() or self._create()
        own = {"twinlog.query": commit.query, "twinlog.batch": str(commit.batch)}
        with table.transaction() as change:
            if set(arrow_schema().names) - {field.name for field in table.schema().fields}:
                with change.update_schema() as schema:
                    schema.union_by_name(arrow_schema())
            if commit.files:
                paths = [f"{self.uri}/{file.name}" for file in commit.files]
                change.add_files(paths, snapshot_properties=own, check_duplicate_files=False)
            change.set_properties(
                {
                    ENDS: json.dumps(to_json(commit.ends, {})),
                    f"{BATCH}{commit.query}": str(commit.batch),
                }
            )

    def _create(self) -> Table:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        table = catalog.create_table(
            self.name, arrow_schema(), location=self.uri, partition_spec=PartitionSpec()
        )
        with table.update_spec() as spec:
            spec.add_field("topic", IdentityTransform(), "topic_name")
            spec.add_field("store_ts", DayTransform(), "store_day")
        return table

    def compact(self, expire_days: float | None, grace_seconds: float) -> dict[str, Any]:
        """Delete old rows and expire old snapshots; merging files is an engine's work."""
        table = self.table()
        assert table is not None
        facts: dict[str, Any] = {"merged": 0}
        if expire_days is not None:
            limit = datetime.fromtimestamp(time.time() - expire_days * 86400, UTC)
            table.delete(f"store_ts < '{limit:%Y-%m-%dT00:00:00+00:00}'")
        older = datetime.now(UTC) - timedelta(seconds=grace_seconds)
        before = len(table.snapshots())
        table.maintenance.expire_snapshots().older_than(older).commit()
        return {**facts, "snapshots_expired": before - len(table.refresh().snapshots())}
