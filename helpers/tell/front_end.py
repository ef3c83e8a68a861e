"""Whether somebody sits at the notebook that a view is shown in."""

from __future__ import annotations

import os
import sys
from typing import Any

from helpers.ground.workbook_process import MARK


def is_interactive() -> bool:
    """Whether a person can answer: no run of the workbook's own, and a front end that lets a
    cell ask (runners do not).
    """
    if os.environ.get(MARK) or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    kernel: Any = getattr(get_ipython(), "kernel", None)
    try:
        return bool(kernel.get_parent("shell")["content"]["allow_stdin"])
    except (AttributeError, KeyError, TypeError):
        return False
