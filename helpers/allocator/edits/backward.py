"""What a trace tells of its backward passes: which requests they free, step by step."""

from __future__ import annotations

import numpy as np

from helpers.allocator.call_sites import Requests

NEAR = 64
"""What is kept for the backward pass counts from a share of 1 / NEAR of the largest on."""
FAR = 1 << 10
"""How many requests before another one are looked at."""


class BackwardPass:
    """The backward passes of a trace. A request is meant by its number in ``requests``.

    ``frees``: for each request whether a backward pass frees it, which is so where the request
    before that was asked for by one.
    """

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        before_free = np.searchsorted(requests.at, requests.until) - 1
        in_backward = requests.backward[np.maximum(before_free, 0)]
        self.frees = in_backward & (requests.until < len(requests.trace))
        self._gradients = np.flatnonzero(requests.backward)

    @property
    def empty(self) -> bool:
        """Whether no backward pass is known."""
        return not len(self._gradients)

    def gradients(self, after: int, before: int) -> list[int]:
        """What backward passes ask for after one operation and before another."""
        asked_at = self.requests.at[self._gradients]
        first, last = np.searchsorted(asked_at, (after + 1, before))
        return self._gradients[first:last].tolist()

    def step_at(self, operation: int) -> int:
        """The operation with which the backward step begins that frees something at another.

        A step's requests stand in a row.
        """
        at = self.requests.at
        backward = self.requests.backward
        number = int(np.searchsorted(at, operation)) - 1
        while number > 0 and backward[number - 1] and at[number - 1] == at[number] - 1:
            number -= 1
        return int(at[number])

    def step_freeing(self, request: int) -> int:
        """The operation with which the step begins that frees a request."""
        return self.step_at(int(self.requests.until[request]))

    def gradients_used_up(self, request: int) -> list[int]:
        """The gradients that go in the step that frees a request."""
        until = self.requests.until
        step = self.step_freeing(request)
        earlier = self.gradients(int(self.requests.at[request]), step)
        return [gradient for gradient in earlier if step <= until[gradient] <= until[request]]

    def goes_with_its_gradient(self, request: int, after: int) -> bool:
        """Whether a request goes in the step that uses up its own gradient, one that steps after
        the operation ``after`` have made.
        """
        size = self.requests.size
        made = self.gradients(after, self.step_freeing(request))
        used_up = self.gradients_used_up(request)
        return bool(size[request] in size[made] and size[request] in size[used_up])

    def end_of_later(self, request: int, saved: list[int]) -> int:
        """When the backward pass has come through all that was computed after a request.

        What that kept is freed then. ``saved``: what is kept of the request's own line, which
        ends the search.
        """
        at = self.requests.at
        size = self.requests.size
        end = int(self.requests.until[saved].max())
        least_bytes = int(size[saved].max()) // NEAR
        later = slice(request + 1, int(np.searchsorted(at, end)))
        until = self.requests.until[later]
        forward = self.frees[later] & ~self.requests.backward[later]
        kept = forward & (size[later] >= least_bytes) & (until < end)
        return int(until[kept].max(initial=at[request]))

    def inputs_freed(self, request: int, after: int, before: int) -> list[int]:
        """What the forward pass asked for before a request and a backward pass frees between
        two operations.
        """
        near = slice(max(request - FAR, 0), request)
        until = self.requests.until[near]
        forward = self.frees[near] & ~self.requests.backward[near]
        freed_between = forward & (until > after) & (until < before)
        return (np.flatnonzero(freed_between) + near.start).tolist()
