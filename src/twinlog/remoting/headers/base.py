"""What all headers share: wire names in camel case, numbers in Java's ranges."""

from __future__ import annotations

from typing import Annotated

import msgspec

Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Header(msgspec.Struct, gc=False, rename="camel"):
    """A header. The extra fields of a subclass are its wire fields and nothing else."""


class TopicHeader(Header):
    """One topic."""

    topic: str


class QueueHeader(Header):
    """One queue of a topic."""

    topic: str
    queue_id: Int
    broker_name: str | None = msgspec.field(default=None, name="bname")


class GroupHeader(Header):
    """One consumer group."""

    consumer_group: str
