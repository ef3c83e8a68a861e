"""Functions as machine code, compiled once on a machine."""

from typing import Any

from numba import njit


def kept(body: Any, **options: Any) -> Any:
    """Compile, and keep the code for other processes where there is a folder to write to."""
    try:
        return njit(body, cache=True, **options)
    except RuntimeError:  # numba finds no such folder
        return njit(body, **options)
