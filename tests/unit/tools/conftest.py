"""The programs in tools and tools/bench import each other by their plain names."""

import sys
from pathlib import Path

TOOLS = Path(__file__).parents[3] / "tools"
sys.path += [str(TOOLS), str(TOOLS / "bench")]
