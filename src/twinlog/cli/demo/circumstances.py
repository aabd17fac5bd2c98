"""Where and when a run of the demo happened: for its page."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import psutil

from twinlog import __version__
from twinlog.cli.version import surroundings


def circumstances() -> dict[str, str]:
    now = datetime.datetime.now(datetime.UTC)
    installed = {"twinlog": __version__} | surroundings()
    names = ("twinlog", "python", "uvloop", "pyspark", "pyarrow")
    versions = ", ".join(f"{name} {installed[name]}" for name in names)
    return {
        "Date": f"{now:%Y-%m-%d %H:%M} UTC",
        "Machine": machine(),
        "Versions": versions,
        "Code": installed["code"],
    }


def machine() -> str:
    memory = psutil.virtual_memory().total / 1e9
    system = f"{platform.system()} {platform.release()}"
    return f"{psutil.cpu_count()} CPUs ({cpu_name()}), {memory:.0f} GB of memory, {system}"


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """As the kernel calls it, or the architecture where it does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
