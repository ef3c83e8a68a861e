"""A rehearsal in lines, and the cards that one can take place on as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from helpers.allocator.stack_frames import place_in_words
from helpers.ground.shapes import BESIDE, Verdict
from helpers.ground.units import show_bytes, times_in_words
from helpers.look.cards import CONTEXT_IN_WORDS, CONTEXT_MOST_BYTES, cards
from helpers.rehearse.rehearsal import Rehearsal
from helpers.tell.next_steps import harm
from helpers.tell.prose import SCREEN, bold, typed, wrapped
from helpers.tell.shown import Shown
from helpers.tell.values import Column
from helpers.tell.verdict import label, why_lines

UNEVEN = 1.25
"""The cards of a job are compared where the fullest has more than so many times what the emptiest
has. Our choice: a smaller difference hardly decides which card is bought.
"""
NAME_COLUMNS = 70
"""Columns of a terminal for the name of a rehearsal, such as a preset with its settings."""


def answer(
    rehearsal: Rehearsal,
    verdict: Verdict | None,
    run_next: tuple[str, str] = ("", ""),
    beside: Sequence[str] = (),
) -> list[str]:
    """The answer in lines of a terminal: whether the program fits and why not, then what to do,
    then the evidence, and last what the rehearsal takes for granted.

    ``verdict``: on its recording; ``run_next``: for a program that does not fit, what a command
    does about it, and that command, both empty for none; ``beside``: more lines for the end.
    """
    lines = [*map(bold, wrapped(headline(rehearsal, verdict), columns=SCREEN))]
    below: list[str] = []
    if verdict is not None and _is_why(rehearsal, verdict):
        lines += [f"({label(verdict)})", ""]
        lines += [bold("Next step"), *_change(verdict, run_next)]
        lines += ["", *why_lines(verdict)]
    elif rehearsal.exit_code:
        below = _how_it_ended(rehearsal)
    else:
        below = [*_noticed(rehearsal, verdict), f"Next step: {next_step(rehearsal)}"]
    below += ["", *_how_it_ran(rehearsal), *beside, *notes(rehearsal)]
    for text in below:
        lines += wrapped(text, "", "  ", SCREEN)
    return lines


def will_run_out(rehearsal: Rehearsal, verdict: Verdict | None) -> bool:
    """Whether the program fits so far, but keeps more and more memory, which would fill the card."""
    return rehearsal.fits and verdict is not None and verdict.cause == "user-leak"


def _is_why(rehearsal: Rehearsal, verdict: Verdict | None) -> bool:
    """Whether a verdict on the recording says why a program does not fit: it is one on a failure,
    and memory ran out, or will run out.
    """
    if verdict is None or verdict.state:  # healthy, or aside: no cause of a failure
        return False
    ran_out = bool(rehearsal.ooms) or rehearsal.too_much is not None
    return (ran_out and not rehearsal.fits) or will_run_out(rehearsal, verdict)


def headline(rehearsal: Rehearsal, verdict: Verdict | None = None) -> str:
    """Whether it fits, with the numbers that say so, and if not, why."""
    if _saw_no_use(rehearsal):
        return "Cannot tell: no use of the GPU was seen"
    says = _fits_or_not(rehearsal, verdict)
    if rehearsal.stopped:
        says += f" ({rehearsal.stopped} ended it after {rehearsal.steps} steps)"
    if not rehearsal.exact:
        says += ", as far as the rehearsal can tell (see NOT TO BE TRUSTED below)"
    return says


def _fits_or_not(rehearsal: Rehearsal, verdict: Verdict | None) -> str:
    """The headline without the words that make it less certain."""
    usable = show_bytes(rehearsal.usable_bytes)
    if verdict is not None and will_run_out(rehearsal, verdict):
        return f"Will not fit in {usable} for long. {verdict.headline}"
    if rehearsal.between:
        return f"May not fit in {usable}. The peak is {peak_in_words(rehearsal)}"
    if rehearsal.fits:
        return _with_what_is_left(rehearsal)
    if rehearsal.failed_otherwise:
        failed = "Failed"
        if rehearsal.rank_in_words:
            failed += f" as {rehearsal.rank_in_words}"
        return (
            f"{failed}, but not because GPU memory ran out: {rehearsal.how_it_failed}"
        )
    if verdict is not None and _is_why(rehearsal, verdict):
        return f"Does not fit in {usable}. {verdict.headline}"
    if rehearsal.peak_reserved_bytes is None:
        return f"Does not fit in {usable}"
    peak = show_bytes(rehearsal.peak_reserved_bytes)
    if not rehearsal.exit_code:  # it went on, and reached its whole peak
        peak = peak_in_words(rehearsal)
    if rehearsal.at_least:
        return f"Does not fit in {usable}. The peak was at least {peak}"
    return f"Does not fit in {usable}. The peak was {peak}"


def _with_what_is_left(rehearsal: Rehearsal) -> str:
    """That a program fits, its peak, and what it leaves of the card."""
    usable = show_bytes(rehearsal.usable_bytes)
    left = show_bytes(rehearsal.left_bytes)
    says = f"in {usable}. The peak is {peak_in_words(rehearsal)}, which leaves {left}"
    if depends_on_outside(rehearsal):
        return f"May not fit {says} for a GPU context that is not counted ({CONTEXT_IN_WORDS})"
    if rehearsal.stopped:
        return f"Fits so far {says}"
    return f"Fits {says}"


def peak_in_words(rehearsal: Rehearsal) -> str:
    """The reserved peak, and how much of it is not certain."""
    peak = show_bytes(rehearsal.peak_reserved_bytes)
    more = show_bytes(rehearsal.more_bytes)
    if rehearsal.has_buckets and rehearsal.more_bytes:
        takers = "DistributedDataParallel's buckets"
        return f"{peak}, and {takers} may take up to {more} more"
    if rehearsal.reserved_between:
        least, most = map(show_bytes, rehearsal.reserved_between)
        return f"{peak} without cuDNN's workspaces, and between {least} and {most} with them"
    if rehearsal.more_bytes:
        return f"{peak}, and libraries may take up to {more} more"
    return peak


def _change(verdict: Verdict, run_next: tuple[str, str]) -> list[str]:
    """What to change, what that may harm, and one command: that of the verdict, else ``run_next``."""
    step = verdict.next_step
    lines = wrapped(step.what, "  ", columns=SCREEN)
    if harm(step):
        lines += wrapped(harm(step), "  ", columns=SCREEN)
    if step.command:
        return [*lines, *typed(step.command, "     ")]
    says, command = run_next
    if command:
        lines += [f"  {says}", *typed(command, "     ")]
    return lines


def _noticed(rehearsal: Rehearsal, verdict: Verdict | None) -> list[str]:
    """What the verdict noticed about a program that ended well: that it caught an out-of-memory, or
    that its memory grows.
    """
    if verdict is None:
        return _how_it_ended(rehearsal)
    if rehearsal.ooms:
        return [verdict.title]
    return [
        f"{row.says}: more steps need more memory"
        for row in verdict.evidence
        if row.id == f"{BESIDE}grows"
    ]


def _how_it_ran(rehearsal: Rehearsal) -> list[str]:
    """What was run and for how long, the peaks, and what is not counted in them."""
    ran = f"{rehearsal.label[0].upper()}{rehearsal.label[1:]}, in {rehearsal.seconds:.1f} s"
    if _saw_no_use(rehearsal):
        return [ran]
    lines = [ran, _peaks(rehearsal)]
    if rehearsal.fits:
        lines.append(outside_in_words(rehearsal))
    return lines


def _peaks(rehearsal: Rehearsal) -> str:
    """What was reserved and in use at the peak, and what the allocator had to do for it."""
    allocated = show_bytes(rehearsal.peak_allocated_bytes)
    reserved = show_bytes(rehearsal.peak_reserved_bytes)
    if rehearsal.at_least:
        reserved = f"at least {reserved}"
        if rehearsal.peak_allocated_bytes is not None:
            allocated = f"at least {allocated}"
    words = f"Peak: {reserved} reserved, of which {allocated} was in use"
    if rehearsal.retries:
        times = times_in_words(rehearsal.retries)
        words += f"; PyTorch emptied its cache {times} to go on"
    if rehearsal.ooms > 1:
        words += f"; out of memory {times_in_words(rehearsal.ooms)}"
    return words


def outside_in_words(rehearsal: Rehearsal) -> str:
    """Whether a program that fits also fits with its GPU context, which a rehearsal does not count."""
    if rehearsal.device.held_bytes:
        return "The GPU context is counted only as far as --held has it"
    most = CONTEXT_IN_WORDS
    processes = _processes(rehearsal)
    if processes > 1:
        most += f" for each of {processes} processes"
    says = f"Not counted: the GPU context ({most})"
    if depends_on_outside(rehearsal):
        return f"{says}, with which the program may not fit; --held 600MiB counts it"
    return f"{says}; there is room for it"


def _processes(rehearsal: Rehearsal) -> int:
    """How many processes share the card that the most of them use."""
    return max((len(use.peak_bytes) for use in rehearsal.devices), default=1)


def depends_on_outside(rehearsal: Rehearsal) -> bool:
    """Whether the program fits, but the GPU contexts of its processes may not, if --held did not
    count them.
    """
    may_take_bytes = _processes(rehearsal) * CONTEXT_MOST_BYTES
    too_little = rehearsal.left_bytes < may_take_bytes
    return rehearsal.fits and not rehearsal.device.held_bytes and too_little


def may_not_fit(rehearsal: Rehearsal) -> bool:
    """Whether the program fits, but not for certain: workspaces or GPU contexts may be too much."""
    return rehearsal.between or depends_on_outside(rehearsal)


def next_step(rehearsal: Rehearsal) -> str:
    """What to do after a rehearsal that ended well. The first that applies: to see its end, to
    leave no range of the peak, to use the GPU, to count the GPU context.
    """
    if rehearsal.stopped:
        return f"run it to its end, without {rehearsal.stopped}"
    if rehearsal.between and rehearsal.has_buckets:
        return "choose a card with room for the higher peak"
    if rehearsal.between:
        return "rehearse again with --cudnn-workspace, the size that its libraries take"
    if rehearsal.peak_reserved_bytes is None:
        return "rehearse a program that uses the GPU"
    if depends_on_outside(rehearsal):
        return "rehearse again with --held 600MiB"
    return "nothing to do"


def notes(rehearsal: Rehearsal) -> list[str]:
    """The notes below the answer: what its processes held of each card, what was taken for granted,
    what the recorder says, and, where there is no trace, why nothing was recorded.
    """
    # The last line is about the GPU context, of which outside_in_words says more.
    lines = [*_cards(rehearsal), *rehearsal.trust[:-1]]
    if rehearsal.trace:
        return [*lines, *rehearsal.notes]
    why_not = rehearsal.why_no_trace
    lines.append(f"nothing was recorded: {why_not}")
    # Some notes only repeat that.
    return [*lines, *(note for note in rehearsal.notes if note not in why_not)]


def _saw_no_use(rehearsal: Rehearsal) -> bool:
    """Whether the program ended well without any use of the GPU."""
    return rehearsal.peak_reserved_bytes is None and rehearsal.exit_code == 0


def _cards(rehearsal: Rehearsal) -> list[str]:
    """A line for each card that several processes share, and one that compares the cards of a job
    where they need different amounts.
    """
    lines = []
    for use in rehearsal.devices:
        peaks = use.peak_bytes.values()
        if use.sum_bytes > max(peaks, default=0):
            need = f"together need {show_bytes(use.sum_bytes)} on card {use.index}"
            sizes = " and ".join(map(show_bytes, peaks))
            has = f"it has {show_bytes(rehearsal.device.total_bytes)}"
            lines.append(f"{len(peaks)} processes {need} (their peaks: {sizes}); {has}")
    sums = [use.sum_bytes for use in rehearsal.devices]
    if max(sums, default=0) > UNEVEN * min(sums, default=0):
        lines.append(_beside_each_other(sums))
    return lines


def _beside_each_other(sums: Sequence[int]) -> str:
    """What each card of a job needs, by ``sums`` of bytes; neighbours that need the same together."""
    parts = []
    first = 0  # the number of the first of these neighbours
    for size, neighbours in groupby(sums):
        last = first + len(list(neighbours)) - 1
        cards = f"cards {first} to {last} "
        needs = f"need {show_bytes(size)}"
        holds_nothing = "hold nothing"
        if first == last:
            cards = f"card {first} "
            needs = f"needs {show_bytes(size)}"
            holds_nothing = "holds nothing"
        if not size:
            needs = holds_nothing
        parts.append(cards + needs)
        first = last + 1
    return ", ".join(parts)


def _how_it_ended(rehearsal: Rehearsal) -> list[str]:
    """Whose fault a failure is, and the request or the error with which the program failed: for
    rehearsals without a verdict that says so.
    """
    lines = []
    culprit, _, why = rehearsal.whose.partition(": ")
    if why:
        lines.append(f"At fault: {culprit}. {why[0].upper()}{why[1:]}")
    oom = rehearsal.oom
    if oom is not None:
        sizes = f"{show_bytes(oom.requested_bytes)} requested, {show_bytes(oom.free_bytes)} free"
        place = place_in_words(oom.frames)
        lines.append(f"The first request that failed: {sizes} on the card; at {place}")
    elif rehearsal.error and not rehearsal.failed_otherwise:
        says = "The program ended well, but one of its processes with"
        lines.append(f"{says} {rehearsal.error}")
    return lines


def where_recorded(trace: Path) -> str:
    """The line about a recording and the folder beside it, which later commands read, too."""
    return f"recording: {trace} (keep {trace.with_suffix('.record').name} beside it)"


def several(runs: Sequence[Rehearsal]) -> list[str]:
    """The peaks of several runs of one program in a line: of ranks, without and with torch.compile,
    or with few and many elements (--values between). Of ``runs``, the last one has the highest
    peak, or is compiled. No line for one run.
    """
    if len(runs) < 2:
        return []
    peaks = [_peak_and_outcome(run) for run in runs]
    if runs[0].limits.world:
        by_rank = {run.limits.rank: peak for run, peak in zip(runs, peaks, strict=True)}
        ranks = "; ".join(f"rank {rank}: {by_rank[rank]}" for rank in sorted(by_rank))
        last = runs[-1].rank_in_words
        return [f"peak reserved, {ranks}; the answer is that of {last}"]
    if runs[-1].limits.compiles:
        plain, compiled = peaks
        return [f"peak reserved: {plain} without torch.compile, {compiled} with it"]
    between = f"between {' and '.join(peaks)}; the answer is that of the larger one"
    return [f"peak reserved, depending on values that are not computed: {between}"]


def _peak_and_outcome(run: Rehearsal) -> str:
    """The reserved peak of a run, and whether it fits."""
    if _saw_no_use(run):
        return "no use of the GPU was seen"
    return f"{show_bytes(run.peak_reserved_bytes)} ({run.outcome})"


def cards_table(wide: bool = False) -> Shown:
    """The cards by name, one a line; ``wide`` adds their sources."""
    header = ["name", "card", Column("memory", "bytes"), "arch", "SMs", "source"]
    rows = []
    for key, card in cards().items():
        memory: int | str = card.total_bytes
        if not card.total_bytes:
            memory = "by --capacity"
        about = [key, card.name, memory, card.arch, card.multiprocessors, card.source]
        rows.append(about)
    note = "A card by another name: as nvidia-smi or rocminfo prints it. Another card: --capacity."
    table = Shown("", header, rows, notes=[note], widest=None)
    if wide:
        return table
    return table.without("source")


def tried_table(names: Sequence[str], rehearsals: Sequence[Rehearsal]) -> Shown:
    """Rehearsals, one a row; ``names``: the value or the card of each."""
    rows = []
    for name, run in zip(names, rehearsals, strict=True):
        peak = "unknown"
        if run.peak_reserved_bytes is not None:
            peak = f"{run.peak_reserved_bytes:,}"
        rows.append([name, run.outcome, peak, run.retries, f"{run.seconds:.1f}"])
    heads = ["tried", "outcome", "peak reserved", "retries", "seconds"]
    return Shown("", heads, rows, widest=NAME_COLUMNS)
