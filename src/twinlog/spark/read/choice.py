"""Which messages of a range are wanted: by tag, or by an SQL92 expression over their properties.

Over the network the broker decides, so that what is not wanted does not travel; in files and
archives the same compiled expression does. A broker compares hashes of tags only, so tags are
compared here as well.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from twinlog.broker.filter.sql92 import FilterSyntaxError, Sql92Filter
from twinlog.message.names import LMQ_PREFIX, SCHEDULE_TOPIC
from twinlog.remoting.bodies.subscription import SQL92_TYPE, SubscriptionData
from twinlog.spark.decode.records import Layout
from twinlog.spark.errors import OptionError
from twinlog.spark.options import SourceOptions, bad


@lru_cache(maxsize=64)
def compiled(expression: str) -> Sql92Filter:
    """Compile an SQL92 expression.

    Raises:
        OptionError: it is not one.
    """
    try:
        return Sql92Filter(expression)
    except FilterSyntaxError as error:
        raise bad("sql", expression, str(error)) from None


def check_choice(options: SourceOptions) -> None:
    """Refuse what no transport could apply, before anything is opened.

    Raises:
        OptionError: tags and an expression are given, or the expression is none.
    """
    if options.sql is None:
        return
    if options.tags:
        raise OptionError(
            "BAD_OPTION", "give either tags or sql, not both; in sql, the tag is the property TAGS"
        )
    compiled(options.sql)


class Choice:
    """What the options want of the messages of a topic."""

    def __init__(self, options: SourceOptions) -> None:
        self.tags = options.tags
        self.sql = compiled(options.sql) if options.sql is not None else None

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what a broker is told; None where it cannot decide.

        In the schedule topic a queue entry holds a time instead of the tag's hash, and what a
        light queue points to are records of other queues.
        """
        if self.sql is not None and not topic.startswith(LMQ_PREFIX):
            return SubscriptionData(topic, self.sql.expression, expression_type=SQL92_TYPE)
        if self.tags and topic != SCHEDULE_TOPIC and not topic.startswith(LMQ_PREFIX):
            return SubscriptionData(topic, " || ".join(self.tags), tags=self.tags)
        return None

    def needed(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns to decode for `chosen`."""
        return (*columns, "tags") if self.tags and "tags" not in columns else columns

    def matching(self, layout: Layout) -> Layout:
        """Keep the records whose properties match the expression."""
        if self.sql is None:
            return layout
        data, matches = layout.log.view, self.sql.matches_properties
        ends = layout.properties_at + layout.properties_sizes
        places = zip(layout.properties_at.tolist(), ends.tolist(), strict=True)
        keep = [matches(data[begin:end].tobytes()) for begin, end in places]
        return layout if all(keep) else layout.rows(np.array(keep, bool))

    def chosen(self, batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Keep the rows whose tag is wanted, and the wanted columns."""
        if not self.tags:
            return batch
        return batch.filter(self._tagged(batch)).select(list(columns))

    def _tagged(self, rows: Any) -> Any:
        import pyarrow.compute as pc  # only tasks need it, see source.py

        return pc.is_in(rows.column("tags"), pa.array(list(self.tags)))

    # Rows of an archive, which have columns only

    def archived_columns(self) -> tuple[str, ...]:
        """Return the columns that `archived` looks at."""
        return (*(["tags"] if self.tags else []), *(["properties"] if self.sql else []))

    def archived(self, rows: Any) -> Any:
        """Return which rows of a batch or table are wanted, as an Arrow array; None for all."""
        if self.tags:
            return self._tagged(rows)
        if self.sql is None:
            return None
        pairs = rows.column("properties").to_pylist()
        # An empty value does not count, as in a stored record.
        found = [self.sql.matches({k: v for k, v in each if v}) for each in pairs]
        return pa.array(found, pa.bool_())
