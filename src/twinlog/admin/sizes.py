"""Sizes as people read them, in commands and console."""

from __future__ import annotations


def size_text(value: float) -> str:
    """Bytes for people: `12 B`, `77.8 GiB`."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
