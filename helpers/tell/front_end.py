"""Whether somebody sits at the notebook that a view is shown in."""

from __future__ import annotations

import os
import sys
from typing import Any

from helpers.ground.workbook_process import MARK


def is_interactive() -> bool:
    """Whether a person sits at the notebook: the workbook did not start it, and its front end lets
    cells ask for input. Programs that execute notebooks do not.
    """
    if os.environ.get(MARK) or "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    kernel: Any = getattr(get_ipython(), "kernel", None)
    # The request that runs this cell says so (Jupyter's messaging protocol, execute_request).
    try:
        return bool(kernel.get_parent("shell")["content"]["allow_stdin"])
    except (AttributeError, KeyError, TypeError):
        return False
