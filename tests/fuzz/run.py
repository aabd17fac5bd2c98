"""Fuzzes each target for a while: with atheris where it is installed, else by plain mutation.

    python tests/fuzz/run.py SECONDS [TARGET ...]

A finding is written to tests/fuzz/findings/ and ends the run with exit code 1.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fuzz.mutate import mutated  # noqa: E402
from fuzz.targets import TARGETS, seeds  # noqa: E402


def fuzz_plainly(name: str, seconds: float) -> int:
    """Mutate seeds until the time is over; return how many inputs were tried."""
    numbers = random.Random(time.time_ns())
    corpus = list(seeds(name)) or [b""]
    end, tried = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutated(numbers, corpus)
        try:
            TARGETS[name](data)
        except Exception:
            traceback.print_exc()
            keep(name, data)
            sys.exit(1)
        tried += 1
    return tried


def keep(name: str, data: bytes) -> None:
    findings = HERE / "findings"
    findings.mkdir(exist_ok=True)
    path = findings / f"{name}-{hashlib.sha1(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"finding written to {path}", file=sys.stderr)


def fuzz_with_atheris(name: str, seconds: int) -> int:
    """One process per target: atheris never returns from its own."""
    with tempfile.TemporaryDirectory() as corpus:
        for index, data in enumerate(seeds(name)):
            (Path(corpus) / str(index)).write_bytes(data)
        command = [
            sys.executable, str(HERE / "atheris_target.py"), name, corpus,
            f"-max_total_time={seconds}", "-max_len=4096", "-verbosity=0", "-print_final_stats=1",
            f"-artifact_prefix={HERE / 'findings'}/{name}-",
        ]  # fmt: skip
        (HERE / "findings").mkdir(exist_ok=True)
        return subprocess.run(command, check=False).returncode


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    names = sys.argv[2:] or list(TARGETS)
    try:
        import atheris  # noqa: F401
    except ImportError:
        for name in names:
            print(f"{name}: {fuzz_plainly(name, seconds)} inputs, no finding", flush=True)
        return 0
    return max(fuzz_with_atheris(name, seconds) for name in names)


if __name__ == "__main__":
    sys.exit(main())
