"""The checkout stands first on sys.path, here and in every kernel and child, also where another package named helpers is."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(1, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = str(ROOT)

# Misbehaving fixtures of the engine's tests: nbval would run them, and one kills the process that started it.
collect_ignore = ["notebooks"]
