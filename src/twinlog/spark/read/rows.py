"""The one door to rows: choose the transport, plan a batch, read a window."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from twinlog.spark.archive.table import (
    ArchivedWindow,
    FilePart,
    archive_alone,
    read_archived,
    read_file,
)
from twinlog.spark.errors import OptionError
from twinlog.spark.options import EARLIEST, SourceOptions
from twinlog.spark.plan.offsets import Offsets
from twinlog.spark.plan.positions import (
    Bounds,
    Place,
    ranges_between,
    resolve_end,
    resolve_start,
    within,
)
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.choice import check_choice
from twinlog.spark.read.files import StoreTransport
from twinlog.spark.read.transport import LossPolicy, Skip, Transport, Window, select_queues

# What one task reads: a range of the live log, of the archive behind it, or a file of the archive.
Part = Window | ArchivedWindow | FilePart


def open_transport(options: SourceOptions, *, patience_ms: int = 0) -> Transport:
    """Open the place that the options name; a read waits so long for a cluster that is down.

    Raises:
        OptionError: only an archive is named, which has no live part.
    """
    check_choice(options)
    if options.path is not None:
        return StoreTransport(options)
    if options.name_server is not None:
        # The client is imported only where it is used: reading files needs none of it.
        from twinlog.spark.read.network import BrokerTransport

        return BrokerTransport(options, patience_ms=patience_ms)
    raise OptionError(
        "BAD_OPTION",
        "a stream needs path or nameServer in addition to archive: an archive gets no new rows",
    )


def open_stream(options: SourceOptions, *, patience_ms: int = 0) -> Transport:
    """Open the place that a stream reads: with an archive, what the log no longer has too."""
    live = open_transport(options, patience_ms=patience_ms)
    if options.archive is None:
        return live
    from twinlog.spark.archive.before import ArchiveBefore

    try:
        return ArchiveBefore(options, live)
    except BaseException:
        live.close()
        raise


def plan_batch(options: SourceOptions, pushed: Pushed) -> list[Part]:
    """Plan a batch read: windows of the log, and files of the archive before them."""
    check_choice(options)
    if options.path is None and options.name_server is None:
        return list(archive_alone(options, pushed))
    transport = open_transport(options)
    policy = LossPolicy(options.fail_on_data_loss)
    files: list[Part] = []
    try:
        if options.archive is None:
            keys = [k for k in select_queues(options, transport.queues()) if pushed.wants_queue(k)]
            bounds = transport.bounds(keys)
            start, end = _chosen(options, pushed, transport, bounds, policy)
            ranges = ranges_between(start, end, bounds, policy)
        else:
            from twinlog.spark.archive.before import ArchiveAndLog

            both = ArchiveAndLog(options, transport, pushed)
            start, end = _chosen(options, pushed, both, both.joined, policy)
            archived, ranges = both.plan(start, end, policy)
            files += archived
        for values in pushed.keys:
            ranges = transport.with_keys(ranges, values)
        return [*files, *transport.plan(ranges, transport.cuts(ranges))]
    finally:
        transport.close()


def _chosen(
    options: SourceOptions, pushed: Pushed, place: Place, bounds: Bounds, policy: LossPolicy
) -> tuple[Offsets, Offsets]:
    """Return what the options choose of the queues, less what filters leave out."""
    start = resolve_start(options, place, bounds, EARLIEST)
    if options.position("starting")[0] == "table":
        start = within(start, bounds, policy)
    return pushed.narrow(start, resolve_end(options, place, bounds))


def read_window(
    options: SourceOptions,
    part: Part,
    columns: tuple[str, ...],
    skipped: list[Skip] | None = None,
    *,
    patience_ms: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task; what the loss rule skips is added to `skipped`."""
    if isinstance(part, FilePart):
        yield from read_file(options, part, columns)
        return
    if isinstance(part, ArchivedWindow):
        yield from read_archived(options, part, columns)
        return
    transport = open_transport(options, patience_ms=patience_ms)
    try:
        yield from transport.read(part, columns)
        if skipped is not None:
            skipped += transport.policy.skipped
    finally:
        transport.close()
