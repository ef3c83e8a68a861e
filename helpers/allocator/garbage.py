"""Python's garbage collector, switched off for a while. A file of its own, because the extension of
a notebook uses it, too, and loads as little as it can.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No garbage collection inside: it would look through many new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
