"""A server under attack, as the hostile peer suite sees it."""

from __future__ import annotations

import psutil

from support.processes import Process, wait_until
from support.raw_peer import RawPeer

GROWTH_MB_MAX = 64


class Target:
    """A server under attack: its port, its memory, its log, and whether others are served."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self._memory = psutil.Process(process.pid)
        self.base_mb = self.first_mb = self.memory_mb()

    def memory_mb(self) -> float:
        """Memory that belongs to the process alone; mapped files are not counted."""
        return self._memory.memory_full_info().uss / 1e6

    def lines_about(self, peer: str) -> list[str]:
        return [line for line in self.process.output().splitlines() if f"peer={peer} " in line]

    def check_others_are_served(self) -> None:
        with RawPeer(self.port) as other:
            assert other.ask().code == 3

    def check_growth(self) -> None:
        grown = self.memory_mb() - self.base_mb
        assert grown < GROWTH_MB_MAX, f"grew by {grown:.0f} MB"

    def check_memory_comes_back(self) -> None:
        """Half of the bound at most stays: Python's arenas, which the next burst uses again."""
        seen: list[float] = []

        def is_back() -> bool:
            seen.append(self.memory_mb())
            return seen[-1] - self.base_mb < GROWTH_MB_MAX / 2

        try:
            wait_until(is_back, "memory comes back", interval_s=0.25)
        except AssertionError:
            raise AssertionError(
                f"from {self.base_mb:.0f} MB to {seen[0]:.0f}, {seen[-1]:.0f}"
            ) from None

    def check_all_attacks_together(self) -> None:
        """What stays does not add up: the whole suite is one attack."""
        grown = self.memory_mb() - self.first_mb
        assert grown < GROWTH_MB_MAX, f"{grown:.0f} MB more than before the first attack"

    def check_log(self) -> None:
        output = self.process.output()
        assert "Traceback" not in output, output[-4000:]
        assert self.process.is_alive
