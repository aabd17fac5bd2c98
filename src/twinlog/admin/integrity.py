"""What a broker knows about the health of its files, and to look at all of them now."""

from __future__ import annotations

from typing import Any, Final

from twinlog.admin.client import Admin
from twinlog.client.errors import NameServerUnreachableError, UsageError
from twinlog.client.net.answers import json_object
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.twinlog import TwinlogScrubRequestHeader
from twinlog.runtime.numbers import is_number, number_of

_PORT_MIN: Final = 1024  # No broker has such an id.
FINDINGS: Final = ("places", "differing")  # Of a scrub's status; an older release has the first.


def found_by(status: dict[str, Any]) -> list[str]:
    """What is wrong with the files of a broker, one sentence each."""
    return [text for key in FINDINGS for text in status.get(key, [])]


async def find_broker(admin: Admin, place: str) -> str:
    """The address of a broker that is named by its address, `NAME` (the master) or `NAME:ID`.

    An address is one also while no name server answers."""
    name, _, number = place.partition(":")
    try:
        brokers = (await admin.cluster()).brokers
    except NameServerUnreachableError:
        if is_number(number) and number_of(number) >= _PORT_MIN:
            return place
        raise
    if name in brokers:
        addresses = brokers[name].broker_addrs
        wanted = number_of(number) if is_number(number) else min(addresses)
        if wanted in addresses:
            return addresses[wanted]
        raise UsageError(f"{name} has no broker with id {wanted}; there are {sorted(addresses)}")
    if number:
        return place
    raise UsageError(f"no broker {place!r}; there is: {', '.join(sorted(brokers)) or 'none'}")


async def scrub(admin: Admin, address: str, *, begin: bool = False) -> dict[str, Any]:
    """How far a broker's walk over its store is; with `begin` it starts from the first byte."""
    answer = await admin.ask(
        address,
        RequestCode.TWINLOG_SCRUB,
        TwinlogScrubRequestHeader(begin=begin),
        action=f"scrub of {address}",
    )
    return json_object(answer)
