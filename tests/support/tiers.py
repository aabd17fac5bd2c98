"""The two tiers of what is compiled: the Python reference and its compiled form."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from twinlog.runtime.compiled import load

COMPILE = Path(__file__).parents[2] / "tools" / "compile.py"
# For parametrised tests and fixtures; the mark lets tests/conftest.py leave the second out.
TIERS = ["pure", pytest.param("compiled", marks=pytest.mark.compiled)]


def why_not_compiled() -> str:
    """Why there is no compiled tier to test here, or nothing.

    A build that failed, or one that is older than its source, is no reason: its tests fail.
    """
    if os.environ.get("TWINLOG_PURE", "0") not in ("", "0"):
        return "TWINLOG_PURE is set"
    if load("twinlog.store.recovery._scan") is not None:
        return ""
    spec = importlib.util.spec_from_file_location("twinlog_tools_compile", COMPILE)
    assert spec is not None
    assert spec.loader is not None
    compile_tool: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compile_tool)
    reason: str = compile_tool.missing()
    return reason
