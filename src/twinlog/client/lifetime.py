"""`async with` for what is started and closed: producers, consumers, the administration."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Lifetime:
    """Started when the block begins, closed when it ends."""

    async def start(self) -> Self:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
