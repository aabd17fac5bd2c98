"""Lists by pages, and what several servers answered, in one form for all views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from twinlog.admin.client import Gathered

T = TypeVar("T")
PAGE_SIZE = 100


def cut(rows: Sequence[T], page: int, size: int) -> tuple[list[T], int, int]:
    """One page of a list, its number, and how many there are; beyond the last is the last."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, page), pages)
    return list(rows[(page - 1) * size : page * size]), page, pages


def missing_of(found: Gathered[Any]) -> list[str]:
    """Who did not answer."""
    return [f"{address}: {error}" for address, error in found.failures.items()]
