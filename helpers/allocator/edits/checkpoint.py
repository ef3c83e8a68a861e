"""A line under ``torch.utils.checkpoint``: what it keeps for the backward pass is made again.

It is freed when the line is done, and asked for anew when the backward pass comes to the line.
What the line gives on stays, and so does what it was given, until then.
"""

from __future__ import annotations

from itertools import groupby

from helpers.allocator.call_sites import Requests
from helpers.allocator.edits.backward import NEAR, BackwardPass
from helpers.allocator.edits.line_calls import CONTAINER, LineCalls
from helpers.allocator.edits.rewrite import LINEAR, Rewrite
from helpers.allocator.stack_frames import own_line

KEEP_THEIR_INPUT = (LINEAR, "torch/nn/modules/conv.py")
"""Modules that keep for the backward pass what they are given, and not what they give."""


def checkpoint(requests: Requests, line: LineCalls, rewrite: Rewrite) -> None:
    """Frees what each call of a line keeps, and makes it again for the backward pass."""
    line_checkpoint = _Checkpoint(requests, rewrite)
    for call in line.calls():
        line_checkpoint.apply(call)


class _Checkpoint:
    """The calls of one line, each checkpointed."""

    def __init__(self, requests: Requests, rewrite: Rewrite) -> None:
        self.requests = requests
        self.rewrite = rewrite
        self.backward: BackwardPass = rewrite.backward
        self._not_kept: set[tuple[int, int]] = set()
        """Where in its call, and by what stack, something is asked for that a checkpoint does
        not keep.
        """

    def apply(self, call: list[int]) -> None:
        """Checkpoints one call of the line."""
        until = self.requests.until
        call_end = self.requests.asked_at(call[-1] + 1)
        kept = self._kept_for_backward(call)
        self._not_kept |= {self._place(call, request) for request in kept}
        for request in call[:-1]:
            if call_end < until[request] and self._is_unreachable(call, request, call_end):
                self.rewrite.free_before(request, call_end)
        if not kept:
            return
        begin = self.backward.step_at(min(int(until[request]) for request in kept))
        if call_end >= begin:
            return
        ends = dict.fromkeys(call, call_end)
        ends.update(self._passed_on_within(call))
        ends[call[-1]] = begin
        for request in kept:
            # What the line gives on, and keeps itself, is there until the backward pass has come
            # through what follows it.
            self.rewrite.free_before(request, ends[request])
        again = [request for request in call if request <= kept[-1]]
        self.rewrite.ask_again(again, kept, begin)
        self._keep_inputs(call, kept, min(begin, call_end + 1))

    def _place(self, call: list[int], request: int) -> tuple[int, int]:
        return request - call[0], int(self.requests.stack[request])

    def _is_unreachable(self, call: list[int], request: int, call_end: int) -> bool:
        """Whether no backward pass comes to a request: the recording ends before, or it passes
        by what other calls of the line keep for it.
        """
        until = int(self.requests.until[request])
        if until == len(self.requests.trace):
            return True
        passed_by = self.backward.gradients(call_end, until) and not self.backward.frees[request]
        return bool(passed_by) and self._place(call, request) in self._not_kept

    def _keep_inputs(self, call: list[int], kept: list[int], name_taken_over: int) -> None:
        """What the line was given stays until the backward pass has come through the line.

        ``name_taken_over``: when the name of what the line was given holds what it gives.
        """
        at = self.requests.at
        site = self.requests.site
        until = self.requests.until
        end = max(int(until[request]) for request in kept)
        before = call[0] - 1
        for given in range(before, max(call[0] - NEAR, -1), -1):
            if site[given] != site[before]:
                break
            named_only = at[call[0]] < until[given] < name_taken_over
            if named_only and given not in self.rewrite.replaced:
                self.rewrite.free_before(given, end)

    def _passed_on_within(self, call: list[int]) -> dict[int, int]:
        """When a result goes that an expression or a container passes on to its next part.

        It goes once the next part is done; with it both sides of a product that follows.
        """
        parts = [(key, [*group]) for key, group in groupby(call, self._part_of)]
        ends = {}
        for (key, results), (next_key, following), (_, after) in zip(
            parts, parts[1:], parts[2:], strict=False
        ):
            if key[0] != next_key[0]:
                continue
            freed_in = None
            if self.backward.frees[following[-1]]:
                freed_in = self.backward.step_freeing(following[-1])
            end = int(self.requests.at[after[0]])
            for result in results:
                same_step = self.backward.step_freeing(result) == freed_in
                ends[result] = end + 1 if same_step else end
        return ends

    def _part_of(self, request: int) -> tuple[tuple[str, ...], str]:
        """The innermost lines of the program's own or of a container that asked for a request,
        and what the innermost of them called.
        """
        frames = self.requests.trace.frames[self.requests.stack[request]]
        position = 0
        for number, frame in enumerate(frames):
            if own_line(frame) or frame.startswith(CONTAINER):
                position = number
                break
        called = [frame for frame in frames[:position] if not frame.endswith("_call_impl")]
        outer = filter(own_line, frames[position + 1 :])  # deep stacks lack some of torch's
        return (*frames[position : position + 1], *outer), called[-1] if called else ""

    def _kept_for_backward(self, call: list[int]) -> list[int]:
        """What a call itself keeps for the backward pass, not what comes after it.

        A backward pass goes through what was computed in reverse, so that what the call keeps
        is freed after what followed it. Its last result is kept where it goes with its own
        gradient.
        """
        until = self.requests.until
        saved = [request for request in call if self.backward.frees[request]]
        if not saved:
            return []
        later_done = self.backward.end_of_later(call[-1], saved)
        call_end = self.requests.asked_at(call[-1] + 1)
        outlive = [request for request in call if until[request] > call_end]
        result = outlive[-1] if outlive else call[-1]
        keeps_result = self._keeps_its_result(result, later_done)
        return [
            request
            for request in saved
            if until[request] > later_done
            and not self._is_one_of_several_results(request, call)
            and (keeps_result or request != result)
        ]

    def _keeps_its_result(self, result: int, later_done: int) -> bool:
        _, callee = self._part_of(result)
        if callee.startswith(KEEP_THEIR_INPUT):
            return False
        return self.backward.goes_with_its_gradient(result, later_done)

    def _is_one_of_several_results(self, request: int, call: list[int]) -> bool:
        """Whether the step that frees a request uses up a gradient of a size that the call has
        not asked for since: then it is one of several results.
        """
        size = self.requests.size
        step = self.backward.step_freeing(request)
        made = self.backward.gradients(step - 1, int(self.requests.until[request]))
        used_up = size[self.backward.gradients_used_up(request)]
        largest = int(used_up.max(initial=0))
        since = size[request : call[-1] + 1]
        return bool(size[request] in size[made] and largest and largest not in since)
