"""Python's garbage collector, switched off for a while. A file of its own, because the extension of
a notebook uses it, too, and loads as little as it can.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Inside of this context no garbage is collected; behind it as before. For code that makes very
    many objects and keeps them: each collection would look through all of them for nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
