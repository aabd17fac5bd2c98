"""Builds the compiled parts (`*.pyx`) in place, next to their sources.

Their constants come from the Python modules that are the home of them: `_layout.pxd` is written
first.

They are optional: without a C compiler or Python's headers one line says so, and the pure Python
does the work.
"""

from __future__ import annotations

import fcntl
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compiled"
MESSAGE = ROOT / "src" / "twinlog" / "message"
LAYOUT_PXD = MESSAGE / "_layout.pxd"
# Modules that import nothing of twinlog, and what is taken of them: everything, or these.
CONSTANTS: dict[Path, tuple[str, ...]] = {
    MESSAGE / "layout.py": (),
    MESSAGE / "sysflag.py": (),
    ROOT / "src" / "twinlog" / "runtime" / "limits.py": ("PROPERTIES_SIZE_MAX", "TOPIC_LENGTH_MAX"),
}


def layout_text() -> str:
    """`_layout.pxd`: the numbers of `CONSTANTS`, as constants of C."""
    found: dict[str, int] = {}
    for path, wanted in CONSTANTS.items():
        values = runpy.run_path(str(path))
        names = wanted or [name for name in values if name.isupper() and name[0] != "_"]
        found |= {name: values[name] for name in names if type(values[name]) is int}
    small = {name: value for name, value in found.items() if value < 1 << 31}
    large = {name: value for name, value in found.items() if name not in small}
    return "\n".join(
        (
            "# cython: language_level=3",
            '"""Made by tools/compile.py out of layout.py, sysflag.py and limits.py."""',
            "",
            "from libc.stdint cimport uint32_t",
            "",
            "cdef enum:",
            *(f"    {name} = {value}" for name, value in small.items()),
            "",
            "cdef extern from *:",
            *(f'    const uint32_t {name} "0x{value:08X}u"' for name, value in large.items()),
            "",
        )
    )


def write_layout() -> None:
    text = layout_text()
    if not LAYOUT_PXD.exists() or LAYOUT_PXD.read_text() != text:
        LAYOUT_PXD.write_text(text)


def sources() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.pyx"))


def shipped() -> list[Path]:
    """Without what is for the simulations only: no wheel has them."""
    return [path for path in sources() if "testing" not in path.parts]


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


def build(library: Path | None = None) -> None:
    """Compile everything: next to the sources, or into `library` for a wheel."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extensions = [
        Extension(
            ".".join(path.relative_to(ROOT / "src").with_suffix("").parts),
            [str(path.relative_to(ROOT))],
            extra_compile_args=["-O2", "-g0"],
        )
        for path in (sources() if library is None else shipped())
    ]
    modules = cythonize(
        extensions, build_dir=str(BUILD), include_path=["src"], quiet=True, language_level=3
    )
    command = Distribution(
        {"name": "twinlog", "ext_modules": modules, "package_dir": {"": "src"}}
    ).get_command_obj("build_ext")
    if library is None:
        command.inplace = True
    else:
        command.build_lib = str(library)
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
                write_layout()
                if not is_done():
                    build()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    if reason:
        print(f"setup: the optional compiled parts are not built: {reason}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
