"""Which line of the program's own files runs, as marks in torch's CPU profile: ``train.py:82 step``.

The profiler knows operators, not lines. While it runs, each line of the program's own files is a range of its own around what
that line calls, so that every allocation lies in one. Files of packages and of the standard library are not traced.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from types import FrameType
from typing import Any

MARK = re.compile(r"[^/]*:\d+ ")
"""What the name of such a range looks like, and of nothing else that the profiler records."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<(?!stdin|ipython)")


class CallLines:
    """From ``start`` to ``stop``, in the thread that calls them. It steps aside for a debugger or a coverage tool."""

    def __init__(self, torch: Any):
        self._range = getattr(torch._C._profiler, "_RecordFunctionFast", None)  # since torch 2.1
        places = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
        self._others = tuple(map(os.path.join, (*places, sysconfig.get_path("stdlib")), ("",) * 3))
        self._own: dict[str, bool] = {}
        self._open: list[tuple[FrameType, Any]] = []

    def start(self) -> str:
        """Empty, or why there will be no lines."""
        if self._range is None or sys.gettrace() is not None:
            why = "this torch has no such ranges" if self._range is None else "a tracer is at work"
            return f"the trace has no lines of the program, because {why}"
        os.register_at_fork(after_in_child=lambda: sys.settrace(None))
        sys.settrace(self._call)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frame.f_trace = self._call(frame, "call", None)
            frame = frame.f_back
        return ""

    def stop(self) -> None:
        """No more ranges."""
        if sys.gettrace() == self._call:
            sys.settrace(None)
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self._own:
            other = _INSTALLED.search(file) or file.startswith(self._others)
            self._own[file] = not other
        return self._line if self._own[file] else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event in ("line", "return") and self._open and self._open[-1][0] is frame:
            self._open.pop()[1].__exit__(None, None, None)
        if event == "line" and sys.gettrace() == self._call and self._range is not None:
            code = frame.f_code
            name = f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}"
            entered = self._range(name)
            entered.__enter__()
            self._open.append((frame, entered))
        return self._line
