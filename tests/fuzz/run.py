"""Fuzzes each target for a while: with atheris where it is installed, else by plain mutation.

    python tests/fuzz/run.py SECONDS [TARGET ...]

The target `hostile` attacks servers instead of parsers, with TWINLOG_HOSTILE_SEED and
TWINLOG_HOSTILE_FIRST as it prints them. A finding of the others is written to tests/fuzz/findings/
and ends the run with exit code 1.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
HOSTILE = "hostile"
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


def attack_servers(seconds: int) -> int:
    """Generated requests against real processes: `tests/hostile/test_generated.py` for longer."""
    from support.hostile_world import attack

    seed = os.environ.get("TWINLOG_HOSTILE_SEED") or os.urandom(4).hex()
    first = int(os.environ.get("TWINLOG_HOSTILE_FIRST", "0"))
    with tempfile.TemporaryDirectory() as directory:
        report = attack(Path(directory), seconds=seconds, seed=seed, first=first)
    print(f"{HOSTILE}: {report.text()}", flush=True)
    return 1 if report.findings else 0


def main() -> int:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    names = sys.argv[2:] or [*TARGETS, HOSTILE]
    if HOSTILE in names:
        names.remove(HOSTILE)
        return max(attack_servers(seconds), fuzz_parsers(names, seconds))
    return fuzz_parsers(names, seconds)


def fuzz_parsers(names: list[str], seconds: int) -> int:
    try:
        import atheris  # noqa: F401
    except ImportError:
        for name in names:
            print(f"{name}: {fuzz_plainly(name, seconds)} inputs, no finding", flush=True)
        return 0
    return max((fuzz_with_atheris(name, seconds) for name in names), default=0)


if __name__ == "__main__":
    sys.exit(main())
