"""One pass over the property string of a send: what is stored, and what the broker must know.

Answers to the steps of SendMessageProcessor that parse the properties, take `WAIT` out, put
`CLUSTER` in and encode again. Pure, and made for the hot path: no map unless something rare is in
the string.
"""

from __future__ import annotations

from twinlog.message.hashing import jhash
from twinlog.message.once import ONCE_PROPERTY

_WAIT = 1
_TAGS = 2
_UNIQUE = 3
_KEYS = 4
_CLUSTER = 5
_RARE = 6

_KINDS = {
    "WAIT": _WAIT,
    "TAGS": _TAGS,
    "UNIQ_KEY": _UNIQUE,
    "KEYS": _KEYS,
    "CLUSTER": _CLUSTER,
    # What sends a message somewhere else than where it says, or did so before.
    "DELAY": _RARE,
    "TRAN_MSG": _RARE,
    "REAL_TOPIC": _RARE,
    # An idempotent send: asked for in the table of producers.
    ONCE_PROPERTY: _RARE,
}
_kind_of = _KINDS.get

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
        elif kind == _WAIT:
            must_wait = value == "true" or value.lower() == "true"
        elif kind == _TAGS:
            tags_code = jhash(value)
            keep(piece)
        elif kind == _UNIQUE:
            unique = value
            keep(piece)
        elif kind == _KEYS:
            keys = value
            keep(piece)
        elif kind == _RARE:
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
