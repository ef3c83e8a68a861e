"""What a rehearsal stands on and takes for granted, as rows: words.json, which says what each of
its keys holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WORDS: dict[str, Any] = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
