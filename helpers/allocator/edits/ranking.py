"""The program's own lines by which change of one of them saves the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from helpers.allocator.call_sites import Requests, requests_with_lines
from helpers.allocator.capacity import asked_again, prepared
from helpers.allocator.edits.edit import CHECKPOINT, CHUNKS, Edit
from helpers.allocator.edits.edited import edited
from helpers.allocator.growers import growth_of_recording
from helpers.allocator.outcome import ReplayError
from helpers.allocator.stack_frames import own_line
from helpers.allocator.study import Study
from helpers.allocator.trace import Trace
from helpers.ground.replays import LineEdit

LEAST_SHARE = 0.02
"""A line that holds less than this share of what the largest line holds is left out."""
MOST_LINES = 8
CHUNKS_TRIED = (2, 3, 4, 6, 8, 12, 16)
NOT_IN_CHUNKS = 1 << 10
"""Stands for the chunks of a line that is not cut: it comes after all that are."""
KEPT_FOR_GOOD = re.compile(
    r"torch/optim/|torch/nn/modules/module\.py:\d+ (?!_(?:wrapped_)?call_impl)|.* __init__$"
)
"""Frames that make an optimizer's state, move weights (``to``) and build a module."""


def ranked(study: Study, confs: Sequence[str]) -> list[LineEdit]:
    """The lines of a program by what saves the run: fewest chunks first, then other edits, then
    what no edit of it saves.

    ``confs``: settings that are tried in turn. Empty where the first fails under none of them.
    Weights, an optimizer's state and whatever was made before the first step are kept for good
    and are not made in chunks.
    """
    trace, _, _ = asked_again(study.trace)
    requests = requests_with_lines(trace)
    stream, origin, _ = prepared(trace, study.card)

    def first_oom(stream: Trace, conf: str) -> int | None:
        return replace(study, trace=stream).replay(conf).first_oom

    def saving_conf(edit: Edit) -> str | None:
        """The first of the settings under which the edited program passes; None also where the
        edit cannot be replayed.
        """
        try:
            changed, _, _ = prepared(edited(trace, edit, requests).trace, study.card)
            return next(
                (conf for conf in confs if first_oom(changed, conf) is None), None
            )
        except ReplayError:
            return None

    failures = (first_oom(stream, conf) for conf in confs)
    first = next((failure for failure in failures if failure is not None), None)
    if first is None:
        return []
    before_failure = max(int(origin[first]) - 1, 0)
    first_step = growth_of_recording(study.trace, study.path).first_step
    live = requests.alive(before_failure) & (requests.at >= 0) & ~requests.backward
    held_bytes = requests.by_site(live)
    rows = []
    for number in _largest_lines(requests, held_bytes):
        site = requests.sites[number]
        size = int(held_bytes[number])
        row = LineEdit(site.name, size, "", "", "", NOT_IN_CHUNKS)
        candidates: list[Edit] = []
        of_line = live & (requests.site == number)
        is_built = bool((requests.at[of_line] < first_step).all())
        if not (is_built or _is_kept_for_good(requests, of_line)):
            chunks = [
                Edit(site.file, site.line, CHUNKS, parts) for parts in CHUNKS_TRIED
            ]
            if saving_conf(chunks[-1]) is not None:  # else fewer do not help either
                candidates += chunks
            candidates.append(Edit(site.file, site.line, CHECKPOINT))
        for edit in candidates:
            conf = saving_conf(edit)
            if conf is not None:
                parts = edit.chunks if edit.kind == CHUNKS else NOT_IN_CHUNKS
                row = LineEdit(site.name, size, edit.words, conf, edit.assumes, parts)
                break
        rows.append(row)
    return sorted(
        rows, key=lambda row: (not row.edit, row.conf, row.chunks, -row.live_bytes)
    )


def _largest_lines(requests: Requests, held_bytes: np.ndarray) -> list[int]:
    """The call sites of the program's own that hold most, by their numbers."""
    largest = requests.largest_lines(held_bytes)[:MOST_LINES]
    return [
        number
        for number in largest
        if held_bytes[number] >= LEAST_SHARE * held_bytes[largest[0]]
    ]


def _is_kept_for_good(requests: Requests, mask: np.ndarray) -> bool:
    """Whether an optimizer's state or a weight is among the requests of a mask."""
    stacks = set(requests.stack[mask].tolist()) - {-1}
    return any(
        KEPT_FOR_GOOD.match(frame)
        for stack in stacks
        for frame in _up_to_own_line(requests.trace.frames[stack])
    )


def _up_to_own_line(frames: tuple[str, ...]) -> tuple[str, ...]:
    """The frames of a stack from the innermost to the first line of the program's own."""
    for place, frame in enumerate(frames):
        if own_line(frame):
            return frames[: place + 1]
    return frames
