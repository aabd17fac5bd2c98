"""Builds the compiled parts (`*.pyx`) in place, beside their sources.

They are optional: without a C compiler or Python's headers one line says so, and the pure Python
does the work.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compiled"


def sources() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.pyx"))


def is_done() -> bool:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shared = max((path.stat().st_mtime for path in (ROOT / "src").rglob("*.pxd")), default=0.0)
    built = [path.with_suffix(suffix) for path in sources()]
    return all(
        target.exists() and target.stat().st_mtime > max(shared, source.stat().st_mtime)
        for source, target in zip(sources(), built, strict=True)
    )


def missing() -> str:
    """What is missing for building, or nothing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("cc") is None:
        return f"no C compiler ({compiler})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "no headers of Python (Python.h)"
    return ""


def build() -> None:
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extensions = [
        Extension(
            ".".join(path.relative_to(ROOT / "src").with_suffix("").parts),
            [str(path.relative_to(ROOT))],
            extra_compile_args=["-O2", "-g0"],
        )
        for path in sources()
    ]
    modules = cythonize(
        extensions, build_dir=str(BUILD), include_path=["src"], quiet=True, language_level=3
    )
    command = Distribution(
        {"name": "twinlog", "ext_modules": modules, "package_dir": {"": "src"}}
    ).get_command_obj("build_ext")
    command.inplace = True
    command.build_temp = str(BUILD)
    command.ensure_finalized()
    command.run()


def main() -> int:
    reason = missing()
    if not reason:
        try:
            BUILD.mkdir(parents=True, exist_ok=True)
            with (BUILD / ".lock").open("w") as lock:  # Two targets side by side build once.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not is_done():
                    build()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    if reason:
        print(f"setup: the optional compiled parts are not built: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
