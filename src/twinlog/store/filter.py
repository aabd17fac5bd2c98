"""What the store asks before it hands a message out. Answers to RocketMQ's MessageFilter."""

from __future__ import annotations

from typing import Final, Protocol


class MessageFilter(Protocol):
    """One question: about the entry of a queue, or about the properties of the record behind it."""

    needs_properties: bool

    def matches_tags_code(self, tags_code: int) -> bool:
        """Whether the entry may be wanted. A false yes is allowed, a false no is not."""
        ...

    def matches_properties(self, properties: bytes) -> bool:
        """Whether a record with this property string is wanted; asked if they are needed."""
        ...


_HASH_MIN: Final = -(1 << 31)


class TagsCodeFilter:
    """A set of tag hash codes: low 32 bits of the tags code, signed."""

    needs_properties = False

    def __init__(self, codes: frozenset[int]) -> None:
        self._codes = codes

    def matches_tags_code(self, tags_code: int) -> bool:
        if tags_code < _HASH_MIN:
            return True  # A place in `consumequeue_ext`, from a broker that writes it: unknown.
        code = tags_code & 0xFFFFFFFF
        return (code - (1 << 32) if code & 0x80000000 else code) in self._codes

    def matches_properties(self, properties: bytes) -> bool:
        return True
