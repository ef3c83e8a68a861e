"""Tables of tests that are data: tests/data, read where a test walks their rows."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from helpers.ground.units import parse_size

DATA = Path(__file__).parent / "data"


@lru_cache
def read_table(name: str) -> Any:
    """What tests/data/NAME.json holds."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def read_rows(name: str) -> Any:
    """The table of that name, its rows as tuples; ``48 GiB`` is a number of bytes there, and ``1 KiB`` as well."""
    table = sized(read_table("tables")[name])
    made = [tuple(row) if isinstance(row, list) else row for row in table]
    return table if isinstance(table, dict) else made


def read_lines(name: str) -> list[dict[str, Any]]:
    """The rows of tests/data/NAME.jsonl, a JSON object a line."""
    text = (DATA / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def sized(value: Any) -> Any:
    """The value with its sizes in bytes."""
    if isinstance(value, dict):
        return {key: sized(one) for key, one in value.items()}
    if isinstance(value, list):
        return [sized(one) for one in value]
    is_size = isinstance(value, str) and re.fullmatch(r"\d+ [KMG]iB", value)
    return parse_size(value) if is_size else value
