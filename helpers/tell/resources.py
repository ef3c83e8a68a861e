"""Files of this folder that views are made with: wordings of codes, style sheets, scripts."""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def words(name: str) -> dict[str, Any]:
    """What words.json has under ``name``: codes, each with its wording. ``rows`` has the lists.

    The value is shared between callers, so nobody changes it.
    """
    codes: dict[str, Any] = json.loads(_text_of("words.json"))[name]
    return codes


@lru_cache(maxsize=None)
def template(*names: str) -> str:
    """Files of templates/, joined: style sheets and scripts."""
    return "".join(_text_of(f"templates/{name}") for name in names)


def _text_of(path: str) -> str:
    """A file below this folder, also where the package is a zip file (capture.pyz).

    Raises FileNotFoundError where there is none.
    """
    content = pkgutil.get_data(__name__, path)
    assert content is not None  # only a loader without get_data gives None
    return content.decode()
