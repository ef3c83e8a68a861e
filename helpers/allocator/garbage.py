"""Python's garbage collector, switched off for a while. Apart, because both the reader of a trace
and the extension of a notebook, which loads as little as it can, take it from here.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage, which would look through many new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
