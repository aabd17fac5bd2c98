"""Iceberg tables by the package `pyiceberg`: query and batch are table properties of the commit."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform, IdentityTransform

from twinlog.spark.archive.lake import Commit
from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.errors import OptionError
from twinlog.spark.places import is_local, table_uri
from twinlog.spark.plan.offsets import Offsets, from_json, to_json

ENDS = "twinlog.ends"
BATCH = "twinlog.batch."
DEFAULT_TABLE = "twinlog.messages"
COMPACT_TRIES = 10


class Iceberg:
    """One table of a catalog, as it was at the first question: see `commit`."""

    def __init__(self, place: str, settings: Mapping[str, str]) -> None:
        self.place = table_uri(place)
        self.uri = f"file://{self.place}" if is_local(place) else self.place
        self.name = settings.get("table", DEFAULT_TABLE)
        known = {name: value for name, value in settings.items() if name != "table"}
        if not known:
            if not is_local(place):
                raise OptionError(
                    "BAD_OPTION",
                    "an Iceberg table outside this machine needs a catalog: give --catalog uri=...",
                )
            known = {"type": "sql", "uri": f"sqlite:///{self.place}/catalog.db"}
        self.settings = {"warehouse": self.uri, **known}

    def _catalog(self) -> Catalog:
        return load_catalog("twinlog", **self.settings)

    @cached_property
    def seen(self) -> Table | None:
        """The table; None where there is none yet."""
        try:
            return self._catalog().load_table(self.name)
        except NoSuchTableError:
            return None

    def last_batch(self, query: str) -> int:
        """Return what the table's properties say about the query."""
        table = self.seen
        return -1 if table is None else int(table.properties.get(f"{BATCH}{query}", -1))

    def ends(self) -> Offsets:
        """Return where each queue ends."""
        table = self.seen
        if table is None or ENDS not in table.properties:
            return {}
        return from_json(json.loads(table.properties[ENDS]))[0]

    def rows(self) -> int:
        """Count the rows by the snapshot's summary."""
        table = self.seen
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        return int(snapshot.summary.additional_properties.get("total-records", 0))

    def commit(self, commit: Commit) -> None:
        """Add a batch: files and properties in one transaction.

        It is refused when the table has changed since it was seen, for that may have been the same
        batch by a driver that was thought dead. Left alone, pyiceberg would add the files again on
        top of the change.
        """
        table = self.seen or self._create()
        known = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": known})  # here only
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
        made = catalog.create_table_transaction(self.name, arrow_schema(), location=self.uri)
        with made.update_spec() as spec:
            spec.add_field("topic", IdentityTransform(), "topic_name")
            spec.add_field("store_ts", DayTransform(), "store_day")
        made.commit_transaction()
        return catalog.load_table(self.name)

    def compact(self, expire_days: float | None, grace_seconds: float) -> dict[str, Any]:
        """Delete old rows and expire old snapshots; merging files is an engine's work."""
        for _ in range(COMPACT_TRIES):
            with contextlib.suppress(CommitFailedException):  # an archive job was faster
                return self._compact(expire_days, grace_seconds)
        return self._compact(expire_days, grace_seconds)

    def _compact(self, expire_days: float | None, grace_seconds: float) -> dict[str, Any]:
        table = self._catalog().load_table(self.name)
        facts: dict[str, Any] = {"merged": 0}
        if expire_days is not None:
            limit = datetime.fromtimestamp(time.time() - expire_days * 86400, UTC)
            table.delete(f"store_ts < '{limit:%Y-%m-%dT00:00:00+00:00}'")
        older = datetime.now(UTC) - timedelta(seconds=grace_seconds)
        before = len(table.snapshots())
        table.maintenance.expire_snapshots().older_than(older).commit()
        return {**facts, "snapshots_expired": before - len(table.refresh().snapshots())}
