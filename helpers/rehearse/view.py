"""A rehearsal in lines, and the cards that one can take place on as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.allocator.stack_frames import place_in_words
from helpers.ground.units import show_bytes
from helpers.look.cards import CONTEXT_IN_WORDS, CONTEXT_MOST_BYTES, cards
from helpers.rehearse.rehearsal import Rehearsal
from helpers.tell.shown import Shown
from helpers.tell.values import Column

UNEVEN = 1.25
"""From how many times the emptiest card on the fullest one is worth a line."""


def answer(rehearsal: Rehearsal) -> list[str]:
    """The outcome with the peak and what is left, what was run, and whether the answer depends
    on what a rehearsal does not count.
    """
    unknown = rehearsal.peak_reserved_bytes is None or rehearsal.at_least
    retries = "unknown" if unknown else str(rehearsal.retries)
    counts = f"retries: {retries}, out of memory {_times(rehearsal.ooms)}"
    outcome = _outcome(rehearsal)
    if not _saw_no_use(rehearsal):
        outcome += f": {_peaks(rehearsal)}"
    lines = [
        f"{outcome[0].upper()}{outcome[1:]}",
        f"{rehearsal.label[0].upper()}{rehearsal.label[1:]}, {rehearsal.seconds:.1f} s; {counts}",
    ]
    if rehearsal.fits and rehearsal.peak_reserved_bytes is not None:
        lines.append(outside_in_words(rehearsal))
    return lines


def _peaks(rehearsal: Rehearsal) -> str:
    """The peaks, and what is left of the card beside the higher one."""
    least = "at least " if rehearsal.at_least else ""
    allocated = show_bytes(rehearsal.peak_allocated_bytes)
    if rehearsal.peak_allocated_bytes is not None:
        allocated = least + allocated
    reserved = least + show_bytes(rehearsal.peak_reserved_bytes)
    words = f"peak reserved {reserved} (allocated {allocated})"
    if rehearsal.peak_reserved_bytes is None:
        return words
    words += f" of {show_bytes(rehearsal.usable_bytes)}"
    if rehearsal.fits:
        words += f", {show_bytes(rehearsal.left_bytes)} left"
    return words


def outside_in_words(rehearsal: Rehearsal) -> str:
    """Whether a program that fits also fits with its context, which a rehearsal does not count."""
    if rehearsal.device.held_bytes:
        return "The GPU context is counted only as far as --held has it"
    most = CONTEXT_IN_WORDS
    processes = _processes(rehearsal)
    if processes > 1:
        most += f" for each of {processes} processes"
    says = f"Not counted: the GPU context ({most})"
    if _depends_on_outside(rehearsal):
        return f"{says}, with which the program may not fit; --held 600MiB counts it"
    return f"{says}; there is room for it"


def _processes(rehearsal: Rehearsal) -> int:
    """How many processes share the card that most of them use."""
    return max((len(use.peak_bytes) for use in rehearsal.devices), default=1)


def _depends_on_outside(rehearsal: Rehearsal) -> bool:
    """It fits, and the context and the libraries of its processes may be too much."""
    may_take_bytes = _processes(rehearsal) * CONTEXT_MOST_BYTES
    return not rehearsal.device.held_bytes and rehearsal.left_bytes < may_take_bytes


def next_step(rehearsal: Rehearsal) -> str:
    """What to do after a rehearsal that did not run out of memory."""
    if rehearsal.exit_code:
        return "see the cause above; it is not memory"
    if rehearsal.stopped:
        return f"run it to its end, without {rehearsal.stopped}"
    if rehearsal.between:
        return "rehearse again with --cudnn-workspace, the size that its libraries take"
    if rehearsal.peak_reserved_bytes is None:
        return "rehearse a program that uses the GPU"
    if _depends_on_outside(rehearsal):
        return "rehearse again with --held 600MiB"
    return "nothing to do"


def notes(rehearsal: Rehearsal) -> list[str]:
    """What the answer rests on, what a failed program said, and why nothing was recorded."""
    why_no_trace = "" if rehearsal.trace else f"nothing was recorded: {rehearsal.why_no_trace}"
    lines = [*_cards(rehearsal), *rehearsal.trust[:-1], *_how_it_ended(rehearsal), why_no_trace]
    return [*filter(None, lines), *_notes(rehearsal)]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _saw_no_use(rehearsal: Rehearsal) -> bool:
    """It ended well, and nothing of it used the GPU."""
    return rehearsal.peak_reserved_bytes is None and rehearsal.exit_code == 0


def _outcome(rehearsal: Rehearsal) -> str:
    if _saw_no_use(rehearsal):
        words = "cannot tell: no use of the GPU was seen"
    elif rehearsal.fits:
        words = rehearsal.outcome
    elif rehearsal.ooms or not rehearsal.exit_code:
        words = "does not fit"
    else:
        words = f"ended with exit code {rehearsal.exit_code}, but not for lack of memory"
    if rehearsal.between:
        more = show_bytes(rehearsal.more_bytes)
        words += f" ({more} more are needed if workspaces take the most they can)"
    if rehearsal.stopped:
        words += f" (ended by {rehearsal.stopped} after {rehearsal.steps} steps)"
    if not rehearsal.exact:
        words += ", as far as the rehearsal can tell (see NOT TO BE TRUSTED above)"
    return words


def _cards(rehearsal: Rehearsal) -> list[str]:
    """What a card that several processes share has to hold, and how the cards of one job compare."""
    lines = []
    for use in rehearsal.devices:
        peaks = use.peak_bytes.values()
        if use.sum_bytes > max(peaks, default=0):
            need = f"together need {show_bytes(use.sum_bytes)} on card {use.index}"
            each = " and ".join(map(show_bytes, peaks))
            has = f"it has {show_bytes(rehearsal.device.total_bytes)}"
            lines.append(f"{len(peaks)} processes {need} (their peaks: {each}); {has}")
    sums = [use.sum_bytes for use in rehearsal.devices]
    if max(sums, default=0) > UNEVEN * min(sums, default=0):
        lines.append(_beside_each_other(sums))
    return lines


def _beside_each_other(sums: Sequence[int]) -> str:
    """What each card of one job needs, neighbours that need the same as one."""
    parts = []
    first = 0
    for index, size in enumerate(sums):
        if sums[index + 1 : index + 2] == [size]:
            continue
        needs = f"needs {show_bytes(size)}" if size else "holds nothing"
        if first < index:
            parts.append(f"cards {first} to {index} {needs.replace('s ', ' ', 1)}")
        else:
            parts.append(f"card {index} {needs}")
        first = index + 1
    return ", ".join(parts)


def _how_it_ended(rehearsal: Rehearsal) -> list[str]:
    """What made it fail; the verdict on a trace says so of memory."""
    lines = []
    oom = rehearsal.oom
    if oom and rehearsal.trace:
        return []
    if rehearsal.whose:
        lines.append(f"cause: {rehearsal.whose}")
    if oom:
        sizes = f"{show_bytes(oom.requested_bytes)} requested, {show_bytes(oom.free_bytes)} free on the card"
        lines.append(f"the first request that failed: {sizes}; at {place_in_words(oom.frames)}")
    elif rehearsal.error:
        how = "the program ended with"
        if not rehearsal.exit_code:
            how = "the program ended well, but one of its processes ended with"
        lines.append(f"{how} {rehearsal.error}")
    return lines


def where_recorded(trace: Path) -> str:
    """Where a recording is, and the folder beside it, which verdicts read too."""
    return f"recording: {trace} (keep {trace.with_suffix('.record').name} beside it)"


def _notes(rehearsal: Rehearsal) -> list[str]:
    """The notes that do not say again why there is no trace."""
    if rehearsal.trace:
        return list(rehearsal.notes)
    return [note for note in rehearsal.notes if note not in rehearsal.why_no_trace]


def several(runs: Sequence[Rehearsal]) -> list[str]:
    """The peaks of several runs in one line, the last the highest; none for one run."""
    if len(runs) < 2:
        return []
    peaks = [_peak_and_outcome(run) for run in runs]
    if runs[0].limits.world:
        by_rank = {run.limits.rank: peak for run, peak in zip(runs, peaks, strict=True)}
        ranks = "; ".join(f"rank {rank}: {by_rank[rank]}" for rank in sorted(by_rank))
        return [f"peak reserved, {ranks}; the answer is that of {runs[-1].rank_in_words}"]
    line = (
        f"peak reserved, depending on values that are not computed: between {' and '.join(peaks)}"
    )
    return [f"{line}; the answer is that of the larger one"]


def _peak_and_outcome(run: Rehearsal) -> str:
    if _saw_no_use(run):
        return "no use of the GPU was seen"
    return f"{show_bytes(run.peak_reserved_bytes)} ({run.outcome})"


def cards_table(wide: bool = False) -> Shown:
    """The cards by name, one a line; ``wide`` adds their sources."""
    header = ["name", "card", Column("memory", "bytes"), "arch", "SMs", "source"]
    rows = [
        [
            key,
            card.name,
            card.total_bytes or "by --capacity",
            card.arch,
            card.multiprocessors,
            card.source,
        ]
        for key, card in cards().items()
    ]
    note = "A card by another name: as nvidia-smi or rocminfo prints it. Another card: --capacity."
    table = Shown("", header, rows, notes=[note], widest=None)
    return table if wide else table.without("source")


def tried_table(names: Sequence[str], rehearsals: Sequence[Rehearsal]) -> Shown:
    """Rehearsals under their names, one a row."""
    rows = []
    for name, run in zip(names, rehearsals, strict=True):
        size = run.peak_reserved_bytes
        peak = "unknown" if size is None else f"{size:,}"
        rows.append([name, run.outcome, peak, run.retries, f"{run.seconds:.1f}"])
    heads = ["tried", "outcome", "peak reserved", "retries", "seconds"]
    return Shown("", heads, rows, widest=70)
