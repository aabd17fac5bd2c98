"""When a table is written: at once with every change, or once for several. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Saver:
    """Calls `save` after every change; for those inside `together` once, at its end."""

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._is_together = False
        self._is_due = False

    def changed(self) -> None:
        if self._is_together:
            self._is_due = True
        else:
            self._save()

    @contextmanager
    def together(self) -> Iterator[None]:
        """A save writes the whole table and syncs: thousands in one request stop a broker."""
        self._is_together = True
        try:
            yield
        finally:
            self._is_together = False
            if self._is_due:
                self._is_due = False
                self._save()
