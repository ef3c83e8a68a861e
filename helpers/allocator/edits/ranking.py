"""The program's own lines by which change of one of them saves the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from helpers.allocator.call_sites import Requests, requests_with_lines
from helpers.allocator.edits.edit import CHECKPOINT, CHUNKS, Edit
from helpers.allocator.edits.edited import edited
from helpers.allocator.requests import asked_again, prepared
from helpers.allocator.study import Study
from helpers.allocator.trace import Trace
from helpers.ground.replays import LineEdit

LEAST_SHARE = 0.02
"""A line that holds less than this share of what the largest line holds is left out."""
MOST_LINES = 8
CHUNKS_TRIED = (2, 3, 4, 6, 8, 12, 16)
NOT_IN_CHUNKS = 1 << 10
"""Stands for the chunks of a line that is not cut: it comes after all that are."""
KEPT_FOR_GOOD = ("torch/optim/", "torch/nn/modules/module.py:")
"""Frames that make an optimizer's state and move weights (``to``; a call of a module ends in
``_call_impl``).
"""


def ranked(study: Study, confs: Sequence[str]) -> list[LineEdit]:
    """The lines of a program by what saves the run: fewest chunks first, then other edits, then
    what no edit of it saves.

    ``confs``: settings that are tried in turn. Empty where the first fails under none of them.
    Weights and an optimizer's state are kept for good and are not made in chunks.
    """
    trace, _, _ = asked_again(study.trace)
    requests = requests_with_lines(trace)
    stream, origin, _ = prepared(trace, study.card)

    def first_oom(stream: Trace, conf: str) -> int | None:
        return replace(study, trace=stream).replay(conf).first_oom

    def saving_conf(edit: Edit) -> str | None:
        """The first of the settings under which the edited program passes."""
        changed, _, _ = prepared(edited(trace, edit, requests).trace, study.card)
        return next((conf for conf in confs if first_oom(changed, conf) is None), None)

    failures = (first_oom(stream, conf) for conf in confs)
    first = next((failure for failure in failures if failure is not None), None)
    if first is None:
        return []
    before_failure = max(int(origin[first]) - 1, 0)
    live = requests.alive(before_failure) & (requests.at >= 0) & ~requests.backward
    held_bytes = requests.by_site(live)
    rows = []
    for number in _largest_lines(requests, held_bytes):
        site = requests.sites[number]
        size = int(held_bytes[number])
        row = LineEdit(site.name, size, "", "", "", NOT_IN_CHUNKS)
        candidates: list[Edit] = []
        if not _is_kept_for_good(requests, live & (requests.site == number)):
            chunks = [Edit(site.file, site.line, CHUNKS, parts) for parts in CHUNKS_TRIED]
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
    return sorted(rows, key=lambda row: (not row.edit, row.conf, row.chunks, -row.live_bytes))


def _largest_lines(requests: Requests, held_bytes: np.ndarray) -> list[int]:
    """The call sites of the program's own that hold most, by their numbers."""
    largest_first = np.argsort(-held_bytes).tolist()
    largest = [number for number in largest_first if requests.sites[number].own][:MOST_LINES]
    return [
        number for number in largest if held_bytes[number] >= LEAST_SHARE * held_bytes[largest[0]]
    ]


def _is_kept_for_good(requests: Requests, mask: np.ndarray) -> bool:
    """Whether an optimizer's state or a moved weight is among the requests of a mask."""
    stacks = set(requests.stack[mask].tolist())
    innermost = [requests.trace.frames[stack][0] for stack in stacks]
    return any(frame.startswith(KEPT_FOR_GOOD) and "_call_impl" not in frame for frame in innermost)
