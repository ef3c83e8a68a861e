"""Ranks the program's own lines by the change of a single one of them that saves the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from helpers.allocator.call_sites import CallSite, Requests, requests_with_lines
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
"""A line that holds less than this share of what the largest line holds is left out: an edit of it
would hardly change the peak.
"""
MOST_LINES = 8
"""Lines that are tried: each costs up to eight replays under each of the settings."""
CHUNKS_TRIED = (2, 3, 4, 6, 8, 12, 16)
"""The fewest that save the run count, so small numbers are close together."""
NOT_IN_CHUNKS = 1 << 10
"""In place of a number of chunks for other edits: they come after all that are in chunks."""
KEPT_FOR_GOOD = re.compile(
    r"torch/optim/|torch/nn/modules/module\.py:\d+ (?!_(?:wrapped_)?call_impl)|.* __init__$"
)
"""Frames that make an optimizer's state; methods of a module other than its call, such as ``to``,
which moves weights; and functions that build a module.
"""


def ranked(study: Study, confs: Sequence[str]) -> list[LineEdit]:
    """The lines of a program that hold most where it runs out, each with an edit that saves the
    run, if there is one: those in fewest chunks first, then other edits, then lines without an
    edit.

    ``confs``: settings that are tried in turn, the default ones first; so edits that need no
    setting come first. Empty where the trace passes under all of them.
    """
    trace, _, _ = asked_again(study.trace)
    requests = requests_with_lines(trace)
    stream, origin, _ = prepared(trace, study.card)

    def first_oom(stream: Trace, conf: str) -> int | None:
        """The operation at which a trace runs out on the study's card; None where it passes."""
        return replace(study, trace=stream).replay(conf).first_oom

    def saving_conf(edit: Edit) -> str | None:
        """The first of the settings under which the edited program passes; None where it passes
        under none of them, and where it cannot be replayed.
        """
        changed = edited(trace, edit, requests).trace
        try:
            stream, _, _ = prepared(changed, study.card)
            passing = (conf for conf in confs if first_oom(stream, conf) is None)
            return next(passing, None)
        except ReplayError:
            return None

    failures = (first_oom(stream, conf) for conf in confs)
    first = next((failure for failure in failures if failure is not None), None)
    if first is None:
        return []
    # The lines are compared by what they hold just before the first failure.
    before_failure = max(int(origin[first]) - 1, 0)
    first_step = growth_of_recording(study.trace, study.path).steps_begin_at
    live = requests.alive(before_failure) & (requests.at >= 0) & ~requests.backward
    held_bytes = requests.by_site(live)
    rows = []
    for number in _largest_lines(requests, held_bytes):
        site = requests.sites[number]
        size = int(held_bytes[number])
        of_line = live & (requests.site == number)
        # Weights, an optimizer's state and all that was made before the first step stay: they
        # cannot be made in chunks or again.
        is_built = bool((requests.at[of_line] < first_step).all())
        edits: list[Edit] = []
        if not is_built and not _is_kept_for_good(requests, of_line):
            edits = _edits_of(site)
            # The last but one is in the most chunks: if that does not help, fewer do not either,
            # and only the checkpoint is left.
            if saving_conf(edits[-2]) is None:
                edits = edits[-1:]
        row = LineEdit(site.name, size, "", "", "", NOT_IN_CHUNKS)
        for edit in edits:
            conf = saving_conf(edit)
            if conf is not None:
                parts = edit.chunks if edit.kind == CHUNKS else NOT_IN_CHUNKS
                row = LineEdit(site.name, size, edit.words, conf, edit.assumes, parts)
                break
        rows.append(row)
    return sorted(
        rows, key=lambda row: (not row.edit, row.conf, row.chunks, -row.live_bytes)
    )


def _edits_of(site: CallSite) -> list[Edit]:
    """The edits of a line that are tried, in their order: in chunks, and at last a checkpoint."""
    chunks = [Edit(site.file, site.line, CHUNKS, parts) for parts in CHUNKS_TRIED]
    return [*chunks, Edit(site.file, site.line, CHECKPOINT)]


def _largest_lines(requests: Requests, held_bytes: np.ndarray) -> list[int]:
    """The numbers of the program's call sites that hold most, the largest first: at most
    MOST_LINES, none below LEAST_SHARE of the largest.
    """
    largest = requests.largest_lines(held_bytes)[:MOST_LINES]
    return [
        number
        for number in largest
        if held_bytes[number] >= LEAST_SHARE * held_bytes[largest[0]]
    ]


def _is_kept_for_good(requests: Requests, mask: np.ndarray) -> bool:
    """Whether an optimizer's state or a weight is among the requests of a mask, by the frames that
    asked for it inside the program's innermost own line (KEPT_FOR_GOOD).
    """
    for stack in set(requests.stack[mask].tolist()) - {-1}:
        frames = _up_to_own_line(requests.trace.frames[stack])
        if any(map(KEPT_FOR_GOOD.match, frames)):
            return True
    return False


def _up_to_own_line(frames: tuple[str, ...]) -> tuple[str, ...]:
    """The frames of a stack from the innermost to the first line of the program's own."""
    for place, frame in enumerate(frames):
        if own_line(frame):
            return frames[: place + 1]
    return frames
