"""Configuration files in the form RocketMQ reads: one key=value a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_properties(path: Path, values: Mapping[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={text_of(value)}\n" for key, value in values.items()))
    return path


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
