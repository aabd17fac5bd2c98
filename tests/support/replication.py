"""A broker without replication, for tests of what stands around it."""

from __future__ import annotations

from twinlog.runtime.watermark import Watermark
from twinlog.store.status import PutMessageStatus


class NoReplication:
    """No slave, and none that is ever confirmed."""

    def __init__(self) -> None:
        self.confirmed = Watermark("confirmed")

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        return PutMessageStatus.SLAVE_NOT_AVAILABLE, "no slave is connected"

    def timeout_reason(self, end_offset: int) -> str:
        return "no slave is connected"
