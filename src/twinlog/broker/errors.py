"""What a handler raises when the answer is an error.

    CommandError        (remoting) answered by the server with a code and a remark
      BrokerError         the same, code first: the code is what a reader looks for

It is for cold paths: the send and pull paths answer without raising.
"""

from __future__ import annotations

from twinlog.remoting.errors import CommandError

_FAQ = "http://rocketmq.apache.org/docs/faq/"


def see_faq() -> str:
    """The tail that Apache puts behind the remarks people look up (FAQUrl.suggestTodo)."""
    return f"\nSee {_FAQ} for further details."


class BrokerError(CommandError):
    """Answer the request with `code` and `remark`; the connection stays."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark, code)
