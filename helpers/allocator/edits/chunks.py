"""A line that works in chunks, one at a time: ``train.py:82 / 8``.

What is computed from its requests with as many values, and the gradients of that, are as small.
What the backward pass needs of a chunk is made again there. What the chunks give on is there as
a whole.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.backward import BackwardPass
from helpers.allocator.edits.line_calls import LineCalls
from helpers.allocator.edits.rewrite import AT, EARLIEST, FIRST, Moment, Rewrite

LARGE_BYTES = 1 << 16
"""Bytes from which what is computed from a request is looked for: smaller ones look alike."""
NEAR = 64
"""Among how many requests after it that is."""


def cut_in_chunks(requests: Requests, line: LineCalls, rewrite: Rewrite) -> None:
    """Makes the requests of a line smaller, and what follows of that."""
    _Chunks(requests, line, rewrite).cut()


class _Chunks:
    """The requests of one line on their way into chunks."""

    def __init__(self, requests: Requests, line: LineCalls, rewrite: Rewrite) -> None:
        self.requests = requests
        self.line = line
        self.rewrite = rewrite
        self.backward: BackwardPass = rewrite.backward

    def cut(self) -> None:
        for call in self.line.calls():
            self._put_result_together(call)
        for request in self.line.numbers:
            if request in self.rewrite.smaller or request in self.rewrite.replaced:
                continue
            chain = self._computed_from(request)
            self.rewrite.smaller.update(chain)
            if self.requests.size[request] < LARGE_BYTES:
                continue
            saved = [member for member in chain if self.backward.frees[member]]
            if saved:
                self._cut_backward_pass(chain, saved)
            else:
                self._free_with_chunk(chain)

    def _put_result_together(self, call: list[int]) -> None:
        """The result of all chunks is there from the first of them on.

        That is what a call gives on, where it is less than half of its largest request.
        """
        at = self.requests.at
        size = self.requests.size
        result = call[-1]
        end = int(self.requests.until[result])
        given_on = self.requests.asked_at(result + 1) < end
        if given_on and LARGE_BYTES <= size[result] < size[call].max() // 2:
            begin = Moment(int(at[call[0]]), EARLIEST)
            self.rewrite.live_between(result, begin, Moment(end))

    def _computed_from(self, request: int) -> list[int]:
        """A request and what is computed from it with as many values.

        That is what follows in the forward pass and is of its size, or of twice or half of it
        after a cast.
        """
        sizes = self.requests.size
        size = int(sizes[request])
        chain = [request]
        if size < LARGE_BYTES:
            return chain
        for later in range(request + 1, min(request + NEAR, len(self.requests))):
            alike = sizes[later] in (size, 2 * size, size // 2)
            in_the_way = sizes[later] >= size // 8 and not alike
            if self.requests.backward[later] or in_the_way:
                break
            if alike:
                chain.append(later)
        return chain

    def _free_with_chunk(self, chain: list[int]) -> None:
        """What the backward pass does not need goes when its chunk is done.

        The program does not name chunks: one name holds them, which the next takes over.
        """
        at = self.requests.at
        last = chain[-1]
        numbers = self.line.numbers
        later = bisect_right(numbers, last)
        following = numbers[later : later + len(chain) + 1]
        if not following or self.backward.empty:
            return
        end = int(at[following[-1]]) + NEAR
        for request in chain:
            if self.requests.asked_at(last + 1) < self.requests.until[request] <= end:
                self.rewrite.free_before(request, int(at[last + 1]) + 1)

    def _cut_backward_pass(self, chain: list[int], saved: list[int]) -> None:
        """The gradients of a chain are as small as its chunks, and these are made again for them."""
        at = self.requests.at
        until = self.requests.until
        alike = self._like_gradients(chain, saved)
        end = self._end_of_gradients(chain, saved, alike)
        gradients = [request for request in alike if until[request] <= end]
        self.rewrite.smaller.update(gradients)
        self._shrink_scratch(gradients)
        first = min([int(at[request]) + 1 for request in gradients], default=end)
        begin = self.backward.step_at(min(first, int(until[saved].min())))
        done = self.requests.asked_at(chain[-1] + 1) + 1
        if done > begin:
            return
        for request in chain:
            if until[request] > done:
                self.rewrite.free_before(request, done)
        self.rewrite.ask_again(chain, saved, begin)
        for request in self.backward.inputs_freed(chain[0], begin, end):
            self.rewrite.free_before(request, end)  # the last chunk is computed from it too
        for gradient in self.backward.gradients(begin - 1, end):
            whole = gradient not in self.rewrite.smaller and until[gradient] > end
            if whole and self.requests.size[gradient] >= LARGE_BYTES:
                self._make_whole(gradient, begin, end)

    def _like_gradients(self, chain: list[int], saved: list[int]) -> list[int]:
        """Requests of the backward pass that may be gradients of a chain, by their sizes."""
        sizes = self.requests.size
        begin = self.backward.end_of_later(chain[-1], saved)
        end = int(self.requests.until[saved].max())
        nearby = int(np.searchsorted(self.requests.at, end)) + NEAR
        last = int(self.requests.at[:nearby][-1])
        wanted = set()
        for request in chain:
            size = int(sizes[request])
            wanted |= {size // 2, size, 2 * size}  # a cast halves or doubles it
        asked = self.backward.gradients(begin, last + 1)
        return [
            number for number in asked if self.backward.frees[number] and sizes[number] in wanted
        ]

    def _end_of_gradients(self, chain: list[int], saved: list[int], alike: list[int]) -> int:
        """When the last gradient of a chain is freed.

        Its gradients are those that outlive all before them, as many as the chain is long.
        """
        until = self.requests.until
        outlive: list[int] = []
        longest = -1
        for request in alike:
            if until[request] >= longest:
                longest = int(until[request])
                outlive.append(longest)
        return max([int(until[saved].max()), *outlive[: len(chain)]])

    def _shrink_scratch(self, gradients: list[int]) -> None:
        """What is there only while a gradient is, to sum it up for a bias, is as small."""
        until = self.requests.until
        for gradient in gradients:
            end = int(until[gradient])
            within = self.backward.gradients(int(self.requests.at[gradient]), end)
            self.rewrite.smaller.update(scratch for scratch in within if until[scratch] < end)

    def _make_whole(self, gradient: int, begin: int, end: int) -> None:
        """A gradient of all chunks is there from the first on.

        It is summed up with the last chunk's beside it; or put together at the end, where it
        goes on.
        """
        until = int(self.requests.until[gradient])
        summed_up = self.backward.frees[gradient]
        beside = end + 1 if summed_up else int(self.requests.at[gradient])
        self.rewrite.live_between(gradient, Moment(begin, EARLIEST), Moment(until, AT))
        self.rewrite.live_between(gradient, Moment(beside, FIRST), Moment(beside, FIRST))
