"""Functions of yours that are called around sends and handlers: tracing, metrics, audit.

Corresponds to SendMessageHook and ConsumeMessageHook. `twinlog.client.telemetry` has hooks for
OpenTelemetry. A hook that raises is logged and does not stop the message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

# At run time too: the annotations of a public class can be resolved.
from twinlog.client.message import Message, ReceivedMessage, SendReceipt

_LOG = logging.getLogger("twinlog.client")


class ClientHooks:
    """Does nothing; override what you need. What `before_...` returns comes back in `after_...`."""

    def before_send(self, message: Message) -> Any:
        """Before a message is encoded: properties may still be added."""

    def after_send(
        self, context: Any, receipt: SendReceipt | None, error: BaseException | None
    ) -> None:
        """After the answer, or the last failed attempt."""

    def before_consume(self, message: ReceivedMessage, group: str) -> Any:
        """Before the handler is called."""

    def after_consume(self, context: Any, error: BaseException | None) -> None:
        """After the handler returned or raised."""


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook; its errors are its own."""
    try:
        return function(*arguments)
    except Exception:
        _LOG.exception("hook failed hook=%s", getattr(function, "__qualname__", function))
        return None
