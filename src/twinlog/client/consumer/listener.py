"""Being told which queues come and go: for state that is kept by queue."""

from __future__ import annotations

from collections.abc import Sequence

from twinlog.client.queues import MessageQueue


class RebalanceListener:
    """Override what you need; pass an instance as `listener` to a consumer.

    Both are called one after the other, never at the same time. An error that one raises is logged
    and does not keep the queues from changing hands.
    """

    async def on_assigned(self, queues: Sequence[MessageQueue]) -> None:
        """These queues are read from now on; no message of them was handed out yet."""

    async def on_revoked(self, queues: Sequence[MessageQueue]) -> None:
        """These queues go to another member. Their handlers have ended.

        The last chance to commit: offsets that are committed here, or counted as done before, are
        sent before the queues are let go. There are `revoke_timeout_ms` for it.
        """
