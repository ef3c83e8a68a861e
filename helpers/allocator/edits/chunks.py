"""Predicts a line that works in chunks, one at a time: ``train.py:82 / 8``. A *call* is one run of
the line, as the numbers of the requests made during it; a *chain* is a tensor and those computed
from it.

The requests of the line become as small as a chunk, and so do the tensors that are computed from
them with as many values, and the gradients of these. A reduced result, such as a sum over the
chunks, keeps its size. A trace does not say what is computed from what: it is recognised by its
size and by the order of requests.
"""

from __future__ import annotations

import numpy as np

from helpers.allocator.call_sites import Requests

LARGE_BYTES = 1 << 16
"""Smaller requests are too alike to be recognised by their size."""
NEAR = 64
"""Requests that are searched, before and after: about those of a layer."""
IN_THE_WAY = 8
"""A request of another size ends a chain from this part of the chain's size on; smaller ones are
masks, statistics and the like beside it.
"""


def made_smaller(requests: Requests, calls: list[list[int]]) -> set[int]:
    """The numbers of the requests that become as small as a chunk: of each call all requests except
    a result that is put together, the requests of their chains, and the gradients of these.
    """
    smaller: set[int] = set()
    for call in calls:
        for request in call:
            if request in smaller or _is_put_together(requests, call, request):
                continue
            chain = _computed_from(requests, request)
            smaller.update(chain)
            # Without a tensor that the graph saves there is nothing by which to find gradients.
            saved = [member for member in chain if requests.freed_in_backward[member]]
            if saved and requests.size[request] >= LARGE_BYTES:
                smaller.update(_gradients(requests, chain, saved))
    return smaller


def _is_put_together(requests: Requests, call: list[int], request: int) -> bool:
    """Whether a request is the result into which all chunks of a call are put together: it is the
    last of the call, outlives the call, and is less than half as large as the call's largest
    request. A request below LARGE_BYTES is no such result: it is too small to matter.
    """
    size = requests.size
    outlives_call = requests.asked_at(request + 1) < requests.until[request]
    is_reduced = LARGE_BYTES <= size[request] < size[call].max() // 2
    return bool(request == call[-1] and outlives_call and is_reduced)


def _computed_from(requests: Requests, request: int) -> list[int]:
    """The chain of a request, itself first: the requests for tensors that are computed from it with
    as many values. These follow in the forward pass, within NEAR requests, and are of its size, or
    of twice or half of that after a cast. A large request of another size ends the chain
    (IN_THE_WAY).
    """
    sizes = requests.size
    size = int(sizes[request])
    chain = [request]
    if size < LARGE_BYTES:
        return chain
    for later in range(request + 1, min(request + NEAR, len(requests))):
        is_alike = sizes[later] in _sizes_alike(size)
        is_in_the_way = sizes[later] >= size // IN_THE_WAY and not is_alike
        if requests.backward[later] or is_in_the_way:
            break
        if is_alike:
            chain.append(later)
    return chain


def _gradients(requests: Requests, chain: list[int], saved: list[int]) -> list[int]:
    """The gradients of a chain: at most as many requests as the chain has. They are the first
    requests of the backward pass that have a size of the chain and are near the first free of a
    tensor that the graph saved. ``saved``: the requests of the chain that a backward pass frees.
    """
    wanted: set[int] = set()
    for member in chain:
        wanted.update(_sizes_alike(int(requests.size[member])))
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
    """The bytes that a tensor of as many values may have: a cast halves or doubles them."""
    return size // 2, size, 2 * size
