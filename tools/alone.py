"""Does a test run alone, and in the background of a script? A sample of them, each in a process.

`python tools/alone.py --count 40 --seed 7` picks 40 of the tests that `make test` runs. Each gets a
pytest of its own under a parent that ignores SIGINT. Orders are tried with `--shuffle SEED` of
pytest itself.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support.orders import spread  # noqa: E402

APART = "not (interop or chaos or dist or browser or services)"


def all_tests(where: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", APART, *where]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if "::" in line]


def run_alone(test: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", test]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", nargs="*", default=["tests"])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tests = spread(all_tests(options.where), options.seed)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # What is started inherits it.
    failed = 0
    for test in tests[: options.count]:
        result = run_alone(test)
        if result.returncode:
            failed += 1
            print(result.stdout[-3000:])
        print("failed" if result.returncode else "passed", test, flush=True)
    print(f"alone: {min(options.count, len(tests))} of {len(tests)} tests, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
