"""Frames of a stack as texts, ``train.py:12 step``, and whose file each is in.

The file of a package keeps its path from a folder that names its owner: ``torch/``, ``python/``
for the standard library, ``torchinductor/``, ``casebook/`` for the recorder; files of other
packages keep the path below site-packages. So a text with a slash before its line number is of
a package, and one without is the program's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_OWN_LINE = re.compile(r"cell \d+, line \d+ |(?!<(?!ipython|stdin))[^/]*:\d+ ")
"""A cell of a notebook, or a file without folders. Code of neither, such as "<string>" or
"<frozen os>", has no own line, except what is typed: "<stdin>" and "<ipython-input-3>".
"""

CALLS = re.compile(
    r"^torch/(?:nn/modules/module\.py:\d+ _call_impl|utils/checkpoint\.py:|autograd/function\.py:)"
)
"""Frames that run a part of the program: the forward of a module, what a checkpoint runs anew,
a function's own backward.
"""

_PASSES_ON = re.compile(r"^torch/nn/modules/module\.py:\d+ _(?:wrapped_)?call_impl")
"""Frames in which torch only calls what was asked for."""


def own_line(frame: str) -> bool:
    """Whether a frame is a line of the program's own files, and not of a package, the standard
    library or an operator of torch.
    """
    return bool(_OWN_LINE.match(frame))


def place_in_words(frames: Sequence[str]) -> str:
    """The place at which a stack asks for memory: the program's innermost own line, and the
    function of a library that it calls; the innermost frame where the program has no line.
    ``frames``: innermost first.
    """
    called = ""  # the outermost function inside the own line, without torch's dispatch (_PASSES_ON)
    for frame in frames:
        if own_line(frame):
            return f"{frame}, in {called}" if called else frame
        if not _PASSES_ON.match(frame):
            called = frame
    return next(iter(frames), "no Python frame")


def library_line(frame: str) -> bool:
    """Whether a frame is a line of a package that the program uses, such as a trainer: its file
    keeps a folder (module docstring), which is not that of torch, the standard library or the
    recorder.
    """
    is_of_package = ".py:" in frame and "/" in frame
    return is_of_package and not frame.startswith(_NO_LIBRARIES)


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
"""What stands in place of a folder, and which paths have it; the group is what stays. The first
that fits holds: torch and others where they are installed, other packages there, the standard
library (also Windows'), torch run from its source, by its own packages and modules, code that
torchinductor wrote, the recorder.
"""
_REHEARSAL = re.compile(
    r".*/helpers/(?:torchside/values|rehearse/under_torch/\w+)\.py"
    r"|.*/torch/(?:_ops\.py|_(?:decomp|prims|prims_common|refs|subclasses)/.+)"
)
"""Files of a rehearsal between the program's line and torch, and those in which torch finds out for
it how large a result is: a program on a card has none of these frames.
"""
_PATTERNS = {
    start: re.compile(pattern, re.IGNORECASE) for start, pattern in _PACKAGES.items()
}

# A forged snapshot may hold texts and numbers of any length.
MOST_OF_PATH = 4096  # PATH_MAX of Linux
MOST_SHOWN_OF_PATH = 80
MOST_OF_NAME = 120
LINES_BELOW = 1 << 40


def frame_text(frame: object, cells: Mapping[str, int] | None = None) -> str:
    """A frame of a snapshot, {"filename", "line", "name"}, as text. A line of the program is
    ``train.py:12 step``, without the folders of whoever recorded it; a line of a package is
    ``torch/nn/modules/linear.py:125 forward``. A line of a notebook is ``cell 6, line 1 <module>``,
    if ``cells`` has the number of its file. Empty for C++, for a frame of a rehearsal's own files,
    and for what is no frame.
    """
    if type(frame) is not dict:
        return ""
    file = frame.get("filename")
    line = frame.get("line")
    name = frame.get("name")
    if type(file) is not str or type(line) is not int or type(name) is not str:
        return ""
    is_python = file.endswith(".py") or file.startswith("<")
    if not is_python:
        return ""
    name = name[:MOST_OF_NAME]
    if cells and file in cells:
        return f"cell {cells[file]}, line {line} {name}"
    path = file.replace("\\", "/")[-MOST_OF_PATH:]
    if _REHEARSAL.fullmatch(path):
        return ""
    if abs(line) >= LINES_BELOW:  # forged: no file has so many lines
        line = 0
    shown_path = _shown_path(path)[-MOST_SHOWN_OF_PATH:]
    return " ".join(f"{shown_path}:{line} {name}".split())


def _shown_path(path: str) -> str:
    """The path of a package's file from its folder in _PACKAGES on, else the file's name alone."""
    for start, pattern in _PATTERNS.items():
        match = pattern.match(path)
        if match:
            # A pattern with two alternatives has two groups, one of them None.
            return start + "".join(filter(None, match.groups()))
    _, _, file_name = path.rpartition("/")
    return file_name
