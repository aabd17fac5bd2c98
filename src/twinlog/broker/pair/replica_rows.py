"""The rows of the request table by which replicas compare and heal their logs: 10020 to 10022."""

from __future__ import annotations

from typing import Any

from twinlog.broker.pair.replica_ranges import ReplicaRanges
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.twinlog import TwinlogLogRangeRequestHeader, TwinlogScrubRequestHeader
from twinlog.remoting.request_table import ADMIN, UNUSED_BODY, Row


def replica_rows(ranges: ReplicaRanges) -> list[Row[Any]]:
    """All for administrators: they read the log past the rules of its topics."""
    code, header = RequestCode, TwinlogLogRangeRequestHeader
    return [
        Row(code.TWINLOG_LOG_DIGESTS, header, ranges.log_digests, ADMIN, UNUSED_BODY),
        Row(code.TWINLOG_LOG_RANGE, header, ranges.log_range, ADMIN, UNUSED_BODY),
        Row(code.TWINLOG_SCRUB, TwinlogScrubRequestHeader, ranges.scrub, ADMIN, UNUSED_BODY),
    ]
