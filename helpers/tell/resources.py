"""Files of this folder that views are made with: wordings of codes, style sheets, scripts."""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def words(name: str) -> dict[str, Any]:
    """What words.json holds under ``name``: codes in a reader's words; lists are under ``rows``.

    The value is shared between callers, so nobody changes it.
    """
    return dict(json.loads(pkgutil.get_data(__name__, "words.json") or b"{}")[name])


@lru_cache(maxsize=None)
def template(*names: str) -> str:
    """Files of templates/, joined: style sheets, and table.js, which sorts and searches tables."""
    return b"".join(
        pkgutil.get_data(__name__, f"templates/{name}") or b"" for name in names
    ).decode()
