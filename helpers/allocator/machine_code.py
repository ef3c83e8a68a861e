"""Functions as machine code, compiled once on a machine."""

from collections.abc import Sequence
from types import FunctionType
from typing import Any

from numba import njit


def compile_and_keep(body: Any, helpers: Sequence[Any] = (), **options: Any) -> Any:
    """A function compiled by numba with these options of njit. Its machine code is kept for other
    processes where there is a folder to write to, else it is made anew in each process.

    ``helpers``: the functions of its module that it calls, which are compiled with it.
    """
    # Copies of the functions, which see the compiled helpers in place of the plain ones.
    names = dict(body.__globals__)
    for helper in helpers:
        copy = FunctionType(helper.__code__, names, helper.__name__)
        names[helper.__name__] = njit(copy, **options)
    if helpers:
        body = FunctionType(body.__code__, names, body.__name__)
    try:
        return njit(body, cache=True, **options)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(body, **options)
