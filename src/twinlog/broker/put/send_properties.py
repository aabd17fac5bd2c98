"""One pass over the property string of a send: what is stored, and what the broker must know.

Corresponds to the steps of SendMessageProcessor that parse the properties, take `WAIT` out, put
`CLUSTER` in and encode again. Pure, and made for the hot path: no map unless something rare is in
the string.
"""

from __future__ import annotations

from typing import Final

from twinlog.message.hashing import jhash
from twinlog.message.once import ONCE_PROPERTY
from twinlog.message.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    PROPERTY_WAIT_STORE_MSG_OK,
)

# What a name means here. The compiled path takes the table too, and leaves a message with a kind
# that it does not know to this module.
WAIT: Final = 1
TAGS: Final = 2
UNIQUE: Final = 3
KEYS: Final = 4
CLUSTER: Final = 5
# From here on rare: what sends per message somewhere else than where it says, or did so before.
DELAY: Final = 6
HALF: Final = 7
PARKED: Final = 8
OTHER: Final = 9  # Rare in a way of its own.

KINDS: Final = {
    PROPERTY_WAIT_STORE_MSG_OK: WAIT,
    PROPERTY_TAGS: TAGS,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX: UNIQUE,
    PROPERTY_KEYS: KEYS,
    PROPERTY_CLUSTER: CLUSTER,
    PROPERTY_DELAY_TIME_LEVEL: DELAY,
    PROPERTY_TRANSACTION_PREPARED: HALF,
    PROPERTY_REAL_TOPIC: PARKED,
    ONCE_PROPERTY: OTHER,  # An idempotent send: asked for in the table of producers.
}
_kind_of = KINDS.get

# What is put behind the properties of a message that waits in a topic of the broker's own, where
# its sender said whether it waits for durability: of such a message Apache keeps it.
WAITS: Final = f"\x02{PROPERTY_WAIT_STORE_MSG_OK}\x01true".encode()
WAITS_NOT: Final = f"\x02{PROPERTY_WAIT_STORE_MSG_OK}\x01false".encode()

# (stored properties, tags code, index keys, must wait for durability, what is rare by name)
Scanned = tuple[bytes, int, tuple[str, ...], bool, dict[str, str] | None]


def scan_properties(text: str, cluster_piece: str) -> Scanned:
    """Scan `text`; `cluster_piece` is the `CLUSTER` property as it goes into the string.

    Pieces without a name or a value are dropped, as Java does when it reads them.
    """
    kept: list[str] = []
    keep = kept.append
    tags_code = 0
    unique = keys = ""
    must_wait = True
    rare: dict[str, str] | None = None
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if not value or not name:
            continue
        kind = _kind_of(name)
        if kind is None:
            keep(piece)
        elif kind == WAIT:
            must_wait = value == "true" or value.lower() == "true"
        elif kind == TAGS:
            tags_code = jhash(value)
            keep(piece)
        elif kind == UNIQUE:
            unique = value
            keep(piece)
        elif kind == KEYS:
            keys = value
            keep(piece)
        elif kind >= DELAY:
            if rare is None:
                rare = {}
            rare[name] = value
            keep(piece)
    keep(cluster_piece)
    return "\x02".join(kept).encode(), tags_code, _index_keys(unique, keys), must_wait, rare


def _index_keys(unique: str, keys: str) -> tuple[str, ...]:
    if not keys:
        return (unique,) if unique else ()
    if " " in keys:
        words = tuple(word for word in keys.split(" ") if word)
        return (unique, *words) if unique else words
    return (unique, keys) if unique else (keys,)
