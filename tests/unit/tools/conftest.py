"""The modules of tools/bench import each other by their plain names: `python tools/bench`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "tools" / "bench"))
