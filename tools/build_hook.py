"""Wheels with the compiled parts in them, where they can be built.

Hatch calls this for every wheel. `TWINLOG_BUILD=pure` asks for a wheel that fits every machine,
`TWINLOG_BUILD=compiled` fails where nothing can be compiled; without either the build compiles if
it can. One line says which it was: a broker without its compiled parts takes three times the CPU
for a send, and nobody should find that out by measuring.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHOICES = ("", "pure", "compiled")


class CompiledParts(BuildHookInterface[Any]):
    """Compiles `*.pyx` into a folder of its own and adds the results to the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # `make setup` compiles next to the sources.
            return
        wanted = os.environ.get("TWINLOG_BUILD", "")
        if wanted not in CHOICES:
            raise SystemExit(f"twinlog: TWINLOG_BUILD={wanted} is not known; use pure or compiled")
        reason = "asked for by TWINLOG_BUILD=pure" if wanted == "pure" else self._compile()
        if not reason:
            self._add(build_data)
            return
        if wanted == "compiled":
            raise SystemExit(f"twinlog: the compiled parts cannot be built: {reason}")
        print(f"twinlog: this wheel is pure Python ({reason})", file=sys.stderr)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable" and self._library is not None:
            self._library.cleanup()

    _library: tempfile.TemporaryDirectory[str] | None = None

    def _compile(self) -> str:
        """Build into a temporary folder; returns why not, or nothing."""
        tools = runpy.run_path(str(Path(self.root) / "tools" / "compile.py"))
        reason = str(tools["missing"]())
        if reason:
            return reason
        self._library = tempfile.TemporaryDirectory(prefix="twinlog-build-")
        before = Path.cwd()
        os.chdir(self.root)
        try:
            tools["BUILD"].mkdir(parents=True, exist_ok=True)
            tools["write_layout"]()
            tools["build"](Path(self._library.name))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            os.chdir(before)
        return ""

    def _add(self, build_data: dict[str, Any]) -> None:
        assert self._library is not None
        library = Path(self._library.name)
        built = sorted(library.rglob("*.so")) + sorted(library.rglob("*.pyd"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"] |= {
            str(path): path.relative_to(library).as_posix() for path in built
        }
        print(f"twinlog: this wheel has {len(built)} compiled parts", file=sys.stderr)
