"""A line that works in chunks, one at a time: ``train.py:82 / 8``.

What is computed from its requests with as many values, and the gradients of that, are as small.
A result that is smaller than what it is computed from is there as a whole.
"""

from __future__ import annotations

import numpy as np

from helpers.allocator.call_sites import Requests

LARGE_BYTES = 1 << 16
"""Bytes from which what is computed from a request is looked for: smaller ones look alike."""
NEAR = 64
"""How many later requests are searched."""


def made_smaller(requests: Requests, calls: list[list[int]]) -> set[int]:
    """The requests that are as small as a chunk, by their numbers."""
    smaller: set[int] = set()
    for call in calls:
        for request in call:
            if request in smaller or _is_put_together(requests, call, request):
                continue
            chain = _computed_from(requests, request)
            smaller.update(chain)
            saved = [member for member in chain if requests.freed_in_backward[member]]
            if saved and requests.size[request] >= LARGE_BYTES:
                smaller.update(_gradients(requests, chain, saved))
    return smaller


def _is_put_together(requests: Requests, call: list[int], request: int) -> bool:
    """Whether a request is what all chunks of a call give on together: its last one, less than
    half as large as the largest.
    """
    size = requests.size
    given_on = requests.asked_at(request + 1) < requests.until[request]
    large = LARGE_BYTES <= size[request] < size[call].max() // 2
    return bool(request == call[-1] and given_on and large)


def _computed_from(requests: Requests, request: int) -> list[int]:
    """A request and what is computed from it with as many values.

    That is what follows in the forward pass and is of its size, or of twice or half of it
    after a cast.
    """
    sizes = requests.size
    size = int(sizes[request])
    chain = [request]
    if size < LARGE_BYTES:
        return chain
    for later in range(request + 1, min(request + NEAR, len(requests))):
        alike = sizes[later] in _sizes_alike(size)
        in_the_way = sizes[later] >= size // 8 and not alike
        if requests.backward[later] or in_the_way:
            break
        if alike:
            chain.append(later)
    return chain


def _gradients(requests: Requests, chain: list[int], saved: list[int]) -> list[int]:
    """The gradients of a chain: the first that the backward pass asks for in its sizes, as many
    as the chain is long.
    """
    wanted = {
        size for member in chain for size in _sizes_alike(int(requests.size[member]))
    }
    first_free = int(requests.until[saved].min())
    number = int(np.searchsorted(requests.at, first_free))
    near = range(max(number - NEAR, chain[-1] + 1), min(number + NEAR, len(requests)))
    alike = [
        later
        for later in near
        if requests.backward[later] and requests.size[later] in wanted
    ]
    return alike[: len(chain)]


def _sizes_alike(size: int) -> tuple[int, int, int]:
    """Bytes of as many values: a cast halves or doubles them."""
    return size // 2, size, 2 * size
