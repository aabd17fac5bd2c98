"""The commit that a run was made on, for files of results."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit() -> str:
    """Short, and marked if the tree differs from it; empty outside of a repository."""
    result = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()
