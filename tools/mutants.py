"""Hand-made faults in the code of replication, one line each: the simulation must find them all.

Each mutant is applied to a copy of the source; seeds run on it until one fails. A mutant that
survives all seeds means that the simulation is not good enough.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutant:
    """`old` occurs once in `file` (under src/twinlog) and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    dialect: str = "classic"


MUTANTS = (
    Mutant(
        "a failed write is acknowledged",
        "ha/client.py",
        "            return False\n        self.core.appended(end_offset)",
        "            pass\n        self.core.appended(end_offset)",
    ),
    Mutant(
        "the log is sent from one byte too far",
        "ha/sender.py",
        "self.next_offset = report if report else",
        "self.next_offset = report + 1 if report else",
    ),
    Mutant(
        "a first report beyond the end is believed",
        "ha/sender.py",
        "if report == 0 or self.log_min <= report <= self.log_end:",
        "if report == 0 or self.log_min <= report:",
    ),
    Mutant(
        "a later report beyond what was sent is believed",
        "ha/sender.py",
        "if report > self.next_offset:",
        "if report > 1 << 62:",
    ),
    Mutant(
        "the rest of a split report is forgotten",
        "ha/sender.py",
        "self._partial = data[complete:]",
        'self._partial = b""',
    ),
    Mutant(
        "a frame crosses the end of a file",
        "ha/sender.py",
        "available = min(self.log_end, file_end) - self.next_offset",
        "available = self.log_end - self.next_offset",
    ),
    Mutant(
        "the ack of a slave that is gone still counts",
        "ha/service.py",
        "        self.acks.leave(connection.address)\n",
        "",
    ),
    Mutant(
        "any one slave confirms for all",
        "ha/group_transfer.py",
        "acked = self._acks.acked_by(self.ack_count)",
        "acked = self._acks.acked_by(1)",
    ),
    Mutant(
        "the best ack instead of the k-th",
        "ha/acks.py",
        "return offsets[count - 1]\n\n    def nearest",
        "return offsets[0]\n\n    def nearest",
    ),
    Mutant(
        "a half-open connection counts beside the new one",
        "ha/acks.py",
        "replica.doubted_offset = max(replica.doubted_offset, sent_offset)",
        "replica.doubted_offset = -1",
    ),
    Mutant(
        "the first report claims one byte more",
        "ha/receiver.py",
        "self._outgoing: list[bytes] = [encode_report(log_end)]",
        "self._outgoing: list[bytes] = [encode_report(log_end + 1)]",
    ),
    Mutant(
        "bodies of two files go into one append",
        "ha/receiver.py",
        "if run and offset % self._settings.segment_size == 0:",
        "if False:",
    ),
    Mutant(
        "an empty slave is sent the whole log from one file too early",
        "ha/sender.py",
        "return self.log_end - self.log_end % self._settings.segment_size",
        "return self.log_end - self.log_end % self._settings.segment_size - 1",
    ),
    Mutant(
        "a filler that the master may have forgotten is kept",
        "ha/resume.py",
        "return start if is_filler and start else end",
        "return end",
    ),
    Mutant(
        "what the master has in place of a filler is not stored",
        "ha/resume.py",
        "    if body[: len(known)] == known:",
        "    if True:",
    ),
)

TWIN_MUTANTS = (
    Mutant(
        "twin: received is acknowledged as durable",
        "ha/twin/receiver.py",
        "ack = (self.log_end, min(self.flushed_offset, self.log_end))",
        "ack = (self.log_end, self.log_end)",
        "twin",
    ),
    Mutant(
        "twin: the master counts received for durable",
        "ha/twin/sender.py",
        "return self.durable_offset if self.is_durable else self.received_offset",
        "return self.received_offset",
        "twin",
    ),
    Mutant(
        "twin: a frame is stored whatever its checksum",
        "ha/twin/wire.py",
        "yield Frame(frame_type, payload, crc32(payload, 0) == checksum, round_number)",
        "yield Frame(frame_type, payload, True, round_number)",
        "twin",
    ),
    Mutant(
        "twin: a different tail is taken for common",
        "ha/twin/common.py",
        "            if is_equal:\n                self._finish(self.high)",
        "            if True:\n                self._finish(self.high)",
        "twin",
    ),
    Mutant(
        "twin: a longer slave is not cut",
        "ha/twin/sender.py",
        "elif search.common < hello.log_end:",
        "elif search.common < self.log_end:",
        "twin",
    ),
    Mutant(
        "twin: the record behind the last common one is kept",
        "ha/twin/common.py",
        "            self._finish(start)",
        "            self._finish(min([e for e in self._ends if e > start], default=start))",
        "twin",
    ),
    Mutant(
        "twin: a failed write is acknowledged",
        "ha/twin/link.py",
        'self.core.append_failed(f"the log did not take bytes up to {end_offset}: {error}")\n'
        "            return",
        "pass",
        "twin",
    ),
    Mutant(
        "twin: the log is sent from one byte too far",
        "ha/twin/sender.py",
        "self.request_offset = self.next_offset = self.received_offset = offset",
        "self.request_offset = self.next_offset = self.received_offset = offset + 1",
        "twin",
    ),
    Mutant(
        "twin: a frame damaged on the way is skipped",
        "ha/twin/receiver.py",
        "            self._outgoing.append(wire.encode_resend(self._expected))\n",
        "",
        "twin",
    ),
)

_RUN = """
import sys
from twinlog.testing.ha_sim import SimFailure, run_seed
for seed in range(int(sys.argv[1])):
    try:
        run_seed(seed, dialect=sys.argv[2])
    except SimFailure as failure:
        print(seed, failure)
        sys.exit(1)
"""


def mutated_source(mutant: Mutant, directory: Path) -> Path:
    """A copy of the source with the mutant in it."""
    shutil.copytree(ROOT / "src" / "twinlog", directory / "twinlog")
    path = directory / "twinlog" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"mutant {mutant.name!r}: its line occurs {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new))
    return directory


def run_mutant(mutant: Mutant, seed_count: int) -> tuple[int | None, str]:
    """(seed that caught it or None, what was said)"""
    with tempfile.TemporaryDirectory() as name:
        source = mutated_source(mutant, Path(name))
        result = subprocess.run(
            [sys.executable, "-c", _RUN, str(seed_count), mutant.dialect],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
        )
    if result.returncode == 0:
        return None, ""
    words = (result.stdout or result.stderr).strip().splitlines()[-1]
    seed, _, text = words.partition(" ")
    return (int(seed), text) if seed.isdigit() else (0, words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--dialect", choices=("classic", "twin", "both"), default="both")
    options = parser.parse_args()
    survivors = 0
    mutants = [m for m in MUTANTS + TWIN_MUTANTS if options.dialect in ("both", m.dialect)]
    for mutant in mutants:
        started = time.monotonic()
        seed, text = run_mutant(mutant, options.seeds)
        taken_s = time.monotonic() - started
        if seed is None:
            survivors += 1
            print(f"SURVIVED {options.seeds} seeds  {mutant.name}  ({taken_s:.0f} s)", flush=True)
        else:
            print(f"caught by seed {seed:4d}  {mutant.name}: {text[:110]}", flush=True)
    print(f"{len(mutants)} mutants, {len(mutants) - survivors} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
