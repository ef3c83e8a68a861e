"""Frames of a stack as texts: ``train.py:12 step``, and whose file one stands in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PYTHON_LINE = re.compile(r"cell \d+, line \d+ |(?!<(?!ipython|stdin))[^/]*:\d+ ")


CALLS = re.compile(
    r"^torch/(?:nn/modules/module\.py:\d+ _call_impl|utils/checkpoint\.py:|autograd/function\.py:)"
)
"""Frames that run a part of the program: the forward of a module, what a checkpoint runs anew,
a function's own backward.
"""

_PASSES_ON = re.compile(r"^torch/nn/modules/module\.py:\d+ _(?:wrapped_)?call_impl")
"""Frames in which torch only calls what was asked for."""


def own_line(frame: str) -> bool:
    """Whether a frame is a line of the program's own files: no package's, not the standard
    library's, no operator of torch's.
    """
    return bool(_PYTHON_LINE.match(frame))


def place_in_words(frames: Sequence[str]) -> str:
    """Where a stack asks, innermost frame first: the program's innermost own line, and what of a
    library it calls there; the innermost frame where the program has none.
    """
    called = ""
    for frame in frames:
        if own_line(frame):
            return f"{frame}, in {called}" if called else frame
        if not _PASSES_ON.match(frame):
            called = frame
    return next(iter(frames), "no Python frame")


def library_line(frame: str) -> bool:
    """Whether a frame is a line of a package that the program uses, such as a trainer: none of
    torch's, of the standard library or of the recorder.
    """
    return ".py:" in frame and "/" in frame and not frame.startswith(_NO_LIBRARIES)


_NO_LIBRARIES = ("torch/", "python/", "torchinductor/", "casebook/")
_PACKAGES = {
    "": r".*/(?:site|dist)-packages/(.+/.+)",
    "site-packages/": r".*/(?:site|dist)-packages/(.+)",
    "python/": r".*/lib(?:64)?/python\d[\d.]*t?/(.+)|.*/python\d+/lib/(.+)",
    "torch/": r".*/torch/((?:_\w+|amp|ao|autograd|backends|cuda|distributed|distributions|export|fft|func|functional|fx|jit|"
    r"linalg|masked|multiprocessing|nested|nn|optim|overrides|profiler|random|serialization|sparse|special|storage|utils)"
    r"(?:/.+|\.py))",
    "torchinductor/": r".*/torchinductor_[^/]+/(.+)",
    "casebook/": r".*/helpers/(?:torchside|\w+/under_torch)/(.+)",
}
"""Files that are not the program's own, and what stands for their folder: installed, the
standard library's, torch's from source, a compiler's, the recorder's.
"""
_REHEARSAL = re.compile(
    r".*/helpers/(?:torchside/values|rehearse/under_torch/\w+)\.py"
    r"|.*/torch/(?:_ops\.py|_(?:decomp|prims|prims_common|refs|subclasses)/.+)"
)
"""Files of a rehearsal, which stand between the program's line and torch, and where torch finds
out for it of which size a result is: a card computes it without them.
"""
_PATTERNS = {
    start: re.compile(pattern, re.IGNORECASE) for start, pattern in _PACKAGES.items()
}


def frame_text(frame: Any, cells: Mapping[str, int] | None = None) -> str:
    """``train.py:12 step``, without the folders of whoever recorded it; of a package's file
    with its place in the package, ``torch/nn/modules/linear.py:125 forward``; of a notebook
    ``cell 6, line 1 <module>``, where ``cells`` gives the number of its file; empty for C++.
    """
    if type(frame) is not dict:
        return ""
    file = frame.get("filename")
    line = frame.get("line")
    name = frame.get("name")
    if type(file) is not str or type(line) is not int or type(name) is not str:
        return ""
    if not file.endswith(".py") and file[:1] != "<":
        return ""
    if cells and file in cells:
        return f"cell {cells[file]}, line {line} {name[:120]}"
    path = file.replace("\\", "/")[-4096:]
    if _REHEARSAL.fullmatch(path):
        return ""
    number = line if abs(line) < 1 << 40 else 0  # a forged snapshot may hold any number
    return " ".join(f"{_shown_path(path)[-80:]}:{number} {name[:120]}".split())


def _shown_path(path: str) -> str:
    """A package's file with its place in the package, else the file's name."""
    for start, pattern in _PATTERNS.items():
        match = pattern.match(path)
        if match:
            return start + "".join(filter(None, match.groups()))
    return path.rsplit("/", 1)[-1]
