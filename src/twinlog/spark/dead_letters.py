"""Rows that are set aside with the reason: Parquet files under `deadLetterPath`.

The name of a file follows from what is in it, so that a task that is done again overwrites its own.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from twinlog.spark.places import open_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def bury(place: str, rows: pa.Table, reasons: Sequence[str], identity: str) -> None:
    """Write rows and, in a column `reason`, why they are here.

    Args:
        place: a directory, or what `places` knows.
        rows: the rows as they came.
        reasons: one for each row.
        identity: what names these rows and no others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = rows.append_column("reason", pa.array(reasons, pa.string()))
    name = hashlib.sha256(identity.encode()).hexdigest()[:24]
    system, root = open_place(place)
    system.create_dir(root, recursive=True)
    temporary = f"{root}/.{name}.{os.getpid()}"
    pq.write_table(table, temporary, compression="zstd", filesystem=system)
    system.move(temporary, f"{root}/{name}.parquet")
