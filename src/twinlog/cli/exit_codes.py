"""Exit codes of every command (CONTRACT), and the error that carries one."""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
UNHEALTHY = 10
INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do what was asked: one line for standard error, and an exit code."""

    def __init__(self, text: str, code: int = FAILED, *, hint: str = "") -> None:
        super().__init__(text)
        self.text = " ".join(text.split())
        self.code = code
        self.hint = hint

    @property
    def line(self) -> str:
        return f"{self.text}; {self.hint}" if self.hint else self.text
