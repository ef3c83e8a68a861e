"""The cells of a notebook in an IPython shell of this process: what a kernel would show, without the start of one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

QUIET = Config({"HistoryManager": {"enabled": False, "hist_file": ":memory:"}})


def carried_out(sources: Iterable[str]) -> list[str]:
    """What each cell printed and showed, in words. Raises what a cell raises."""
    shell = InteractiveShell.instance(config=QUIET)
    told = []
    try:
        for source in sources:
            with capture_output() as said:
                shell.run_cell(source, store_history=True).raise_error()
            texts = (said.stdout, *(one.data.get("text/plain", "") for one in said.outputs))
            told.append(re.sub(r"^Out\[\d+\]: \n?", "", "\n".join(texts), flags=re.MULTILINE))
        return told
    finally:
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
