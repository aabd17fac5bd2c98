"""Damage done on purpose, to show that the demo finds it: `--sabotage drop` and `corrupt`."""

from __future__ import annotations

from pathlib import Path

from twinlog.cli.demo.look_up import Found, messages_in_store
from twinlog.message.layout import BODY_CRC_AT, HEAD_SIZE, QUEUE_ID_AT

KINDS = ("drop", "corrupt")


def sabotage_slave(store: Path, topic: str, kind: str) -> str:
    """Damage one record in the middle of the slave's log; returns what was done, in words."""
    found = list(messages_in_store(store, topic))
    if not found:
        return "the slave's store holds no message of this topic, nothing to damage"
    victim = found[len(found) // 2]
    if kind == "drop":
        _overwrite_with_next(store, victim, found[len(found) // 2 + 1])
        return f"message {victim.number} dropped at offset {victim.physical_offset} of the slave"
    _flip(store, victim)
    return f"one bit flipped in message {victim.number} at offset {victim.physical_offset}"


def _segment(store: Path, offset: int) -> tuple[Path, int]:
    """The file that holds `offset`, and the position in it."""
    paths = sorted((store / "commitlog").iterdir())
    path = [path for path in paths if int(path.name) <= offset][-1]
    return path, offset - int(path.name)


def _flip(store: Path, victim: Found) -> None:
    path, position = _segment(store, victim.physical_offset)
    with path.open("r+b") as file:
        # Inside the body of a record with IPv4 hosts.
        file.seek(position + HEAD_SIZE + 5)
        byte = file.read(1)[0]
        file.seek(position + HEAD_SIZE + 5)
        file.write(bytes([byte ^ 1]))


def _overwrite_with_next(store: Path, victim: Found, other: Found) -> None:
    """Put a neighbour's body in the place of this one: the log stays well formed, one is gone."""
    source, source_position = _segment(store, other.physical_offset)
    target, target_position = _segment(store, victim.physical_offset)
    with source.open("rb") as file:
        file.seek(source_position)
        neighbour = file.read(other.size)
    if other.size != victim.size:
        _flip(store, victim)
        return
    with target.open("r+b") as file:
        file.seek(target_position)
        own = file.read(victim.size)
        # Size, magic, then the neighbour's CRC, then the place of this record, then the body.
        file.seek(target_position)
        file.write(
            own[:BODY_CRC_AT]
            + neighbour[BODY_CRC_AT:QUEUE_ID_AT]
            + own[QUEUE_ID_AT:HEAD_SIZE]
            + neighbour[HEAD_SIZE:]
        )
