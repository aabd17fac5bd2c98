"""The places that are known to be damaged: named, counted, and what a reader does about them.

A reader that meets one waits while a replica may still give a good copy, and goes on behind it when
none can or the time is over. The place stays here, and is never served, until it is healed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from twinlog.runtime.clock import Clock

_LOG = logging.getLogger("twinlog.store")
PLACES_MAX = 10_000  # Beyond, a place is counted and healed by the scrub, but not kept by name.


class Damage(msgspec.Struct, rename="camel"):
    """One damaged record, by its queue and number or, without one, by its place in the log."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    reason: str
    found_ms: int = 0  # By the monotonic clock: nobody waits longer because a clock was set.
    is_lost: bool = False  # No replica had a good copy when it was last asked.
    is_range: bool = False  # Found by a digest: somewhere in these bytes.
    may_be_entry: bool = False  # Of a queue, which is healed without a replica.
    is_tried: bool = False

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.topic, self.queue_id, self.queue_offset)

    @property
    def text(self) -> str:
        """A sentence for an answer, the log and the status."""
        where = f"{self.size} bytes at offset {self.physical_offset} of the log"
        if self.topic:
            where = f"message {self.queue_offset} of {self.topic}-{self.queue_id}, {where},"
        return f"{where} is damaged: {self.reason}"


def place_of(physical_offset: int, size: int, reason: str) -> Damage:
    """Damage that no queue is known of."""
    return Damage("", -1, physical_offset, physical_offset, size, reason)


class DamageLog:
    """What was found and is not healed yet."""

    def __init__(self, clock: Clock, wait_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._wait_ms = wait_ms
        self.places: dict[tuple[str, int, int], Damage] = {}
        self.found_count = 0
        self.healed_count = 0
        # Set by who heals: whether a replica may have a good copy, and who wants to know at once.
        self.may_heal: Callable[[], bool] = lambda: False
        self.on_found: Callable[[Damage], None] = lambda damage: None
        self.heals_entries = False  # Somebody does, of what is found; no replica is needed.

    def found(self, damage: Damage) -> bool:
        """Remember it; whether it is worth waiting for a good copy."""
        known = self.places.get(damage.key)
        if known is None:
            known = damage
            known.found_ms = self._clock.monotonic_ms()
            self.found_count += 1
            if len(self.places) < PLACES_MAX:
                self.places[known.key] = known
            else:
                known.is_lost = True  # Nobody heals it for this reader.
            _LOG.error("damage found: %s", known.text)
            self.on_found(known)
        return self.is_waited_for(known)

    def is_waited_for(self, damage: Damage) -> bool:
        waited = self._clock.monotonic_ms() - damage.found_ms
        if damage.is_lost or waited >= self._wait_ms():
            return False
        is_entry_tried = not self.heals_entries or damage.is_tried
        return self.may_heal() or (damage.may_be_entry and not is_entry_tried)

    def healed(self, damage: Damage) -> None:
        if self.places.pop(damage.key, None) is not None:
            self.healed_count += 1
            _LOG.warning("damage healed: %s", damage.text)

    def gone(self, damage: Damage) -> None:
        """Expired, cut off or deleted with its topic: nobody can read it any more."""
        if self.places.pop(damage.key, None) is not None:
            _LOG.info("damage is gone: %s", damage.text)

    def count_healed(self) -> None:
        """Found by the scrub and healed at once: it never had a name."""
        self.found_count += 1
        self.healed_count += 1

    @property
    def lost_count(self) -> int:
        return sum(1 for damage in self.places.values() if damage.is_lost)

    def status(self) -> dict[str, str]:
        """Keys for a broker's runtime information; none while nothing was found."""
        if not self.found_count:
            return {}
        shown = {
            "damageFound": str(self.found_count),
            "damageHealed": str(self.healed_count),
            "damageOpen": str(len(self.places)),
        }
        for number, damage in enumerate(list(self.places.values())[:8]):
            shown[f"damage {number}"] = damage.text + (", no good copy" if damage.is_lost else "")
        return shown
