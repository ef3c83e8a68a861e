"""What a rehearsal takes for granted, as rows: words.json, whose ``about`` says what each key
holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "under_torch"
"""The modules that run in the rehearsed program, and under its Python."""
WORDS: dict[str, Any] = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
