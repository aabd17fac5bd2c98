"""What the store asks before it hands a message out. Corresponds to RocketMQ's MessageFilter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol


class PropertyPairs(NamedTuple):
    """Of the properties only these matter: the verdict follows from their pairs alone.

    Pairs are `\\x02name\\x01value` one behind the other, as and in the order they are stored.
    """

    names: tuple[bytes, ...]
    verdicts: dict[bytes, bool]  # As far as they are known.
    judge: Callable[[bytes], bool]


class MessageFilter(Protocol):
    """One question: about the entry of a queue, or about the properties of the record behind it."""

    needs_properties: bool

    @property
    def pairs(self) -> PropertyPairs | None:
        """What it looks at, when that can be said beforehand."""
        ...

    def matches_tags_code(self, tags_code: int) -> bool:
        """Whether the entry may be wanted. A false yes is allowed, a false no is not."""
        ...

    def matches_properties(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted; asked if they are needed."""
        ...


# Below it a tags code is no hash but a place in `consumequeue_ext`, from an Apache broker that
# writes such files; we do not read them.
TAGS_HASH_MIN: Final = -(1 << 31)


class TagsCodeFilter:
    """A set of tag hash codes: low 32 bits of the tags code, signed."""

    needs_properties = False
    pairs = None

    def __init__(self, codes: frozenset[int]) -> None:
        self.codes = codes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagsCodeFilter) and other.codes == self.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    def matches_tags_code(self, tags_code: int) -> bool:
        if tags_code < TAGS_HASH_MIN:
            return True  # Unknown: the consumer looks at the tag itself.
        code = tags_code & 0xFFFFFFFF
        return (code - (1 << 32) if code & 0x80000000 else code) in self.codes

    def matches_properties(self, properties: bytes) -> bool:
        return True
