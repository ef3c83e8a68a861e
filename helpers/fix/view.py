"""What a search for a fitting change found, in words: the answer, the diff, and all trials."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator, Sequence
from typing import Any

from helpers.fix.answer import FailedProgram
from helpers.fix.change import Change, Results
from helpers.fix.notebook import Notebook
from helpers.fix.program import Program, changed_command, changed_files
from helpers.fix.search import TriedChange
from helpers.ground import shell
from helpers.ground.shapes import Evidence, NextStep, Verdict, seen
from helpers.ground.units import show_bytes
from helpers.rehearse.rehearsal import Rehearsal
from helpers.rehearse.view import depends_on_outside, outside_in_words
from helpers.tell.shown import Shown
from helpers.tell.values import Column


def diff(program: Program, change: Change) -> str:
    """A change of sources as `git apply` takes it; empty where it edits none."""
    pieces: list[str] = []
    for name, text in changed_files(program, change).items():
        source = program.file(name)
        if isinstance(source, Notebook):
            pieces += source.diff(text)
            continue
        lines = difflib.unified_diff(
            _lines(source.edited(()), source.encoding),
            _lines(text, source.encoding),
            f"a/{name}",
            f"b/{name}",
        )
        for line in lines:
            pieces.append(line)
            if not line.endswith("\n"):
                pieces.append("\n\\ No newline at end of file\n")
    return "".join(pieces)


def _lines(text: bytes, encoding: str) -> list[str]:
    """Lines with their ends, for a diff. Python decodes utf-8-sig without its byte order mark; git
    compares the mark, too, so it stays.
    """
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    return io.StringIO(text.decode(encoding), newline="").readlines()


def verdict_on_change(
    failure: FailedProgram, winner: TriedChange | None, trials: Sequence[TriedChange]
) -> Verdict:
    """The answer of a search as a notebook's verdict: the change that was found, or that none was."""
    cause = failure.verdict.headline
    if winner is None:
        tried = f"{len(trials)} were tried"
        if len(trials) == 1:
            tried = "1 was tried"
        return Verdict(
            cause="other",
            state="aside",
            title=f"No change was found with which the program finishes ({tried})",
            confidence="likely",
            summary=" ".join([f"{cause}.", *none_in_lines(trials)]),
            next_step=failure.verdict.next_step,
        )
    change = winner.change
    peak = seen(winner.rehearsal.reserved_bytes, "bytes", "rehearsal")
    usable = show_bytes(winner.rehearsal.usable_bytes)
    says = f"the most that the changed program reserved on a card of {usable}"
    return Verdict(
        cause="other",
        state="aside",
        title=f"A change was found: {change.title}",
        confidence="likely",
        summary=f"{cause}. Results: {results_in_words(winner)}. Cost: {change.costs}.",
        evidence=[Evidence("peak of the changed program", peak, says)],
        next_step=_how_to_apply(failure.program, change),
    )


def _how_to_apply(program: Program, change: Change) -> NextStep:
    """The next step by which a user makes a change that ``how_to_make`` shows."""
    if not diff(program, change):
        command = how_to_make(program, change).strip()
        return NextStep("Start the program like this", command)
    return NextStep(
        "Save the notebook's diff as change.diff in the folder of your program, and apply it",
        command="git apply change.diff",
        undo="git apply -R change.diff",
    )


def how_to_make(program: Program, change: Change) -> str:
    """The change as text to copy: variables and the command line where it has some, then the diff."""
    words = [f"{name}={value}" for name, value in change.environment.items()]
    lines = []
    if words or change.replaces:
        lines.append(shell.line([*words, *changed_command(program, change)]) + "\n")
    return "".join([*lines, diff(program, change)])


def in_lines(winner: TriedChange, first: Rehearsal) -> Iterator[str]:
    """The change that is recommended, and what is known of it, a line each."""
    change = winner.change
    after = winner.rehearsal
    aside = ""
    if after.more_bytes:
        aside = f" beside {show_bytes(after.more_bytes)} for workspaces"
    yield f"Change: {change.title}"
    yield (
        f"Memory: the changed program reserved at most {show_bytes(after.peak_reserved_bytes)} of "
        f"{show_bytes(after.usable_bytes)}, which leaves {show_bytes(after.left_bytes)}{aside}; "
        f"unchanged it {_ended_unchanged(first)} (both measured by rehearsing, not predicted)"
    )
    yield outside_in_words(after)
    if after.more_bytes:
        yield (
            f"Workspace: {show_bytes(after.more_bytes)} more is set aside for its libraries; where "
            "cuDNN gets less, it runs slower"
        )
    if after.reserved_between:
        least, most = map(show_bytes, after.reserved_between)
        yield f"With cuDNN's workspaces it reserves between {least} and {most}"
    yield f"Results: {results_in_words(winner)}"
    yield f"Cost: {change.costs}"


def _ended_unchanged(first: Rehearsal) -> str:
    """How the unchanged program ended."""
    if first.peak_reserved_bytes is None:
        return "ended before it used the GPU"
    return f"ran out of memory at {show_bytes(first.peak_reserved_bytes)}"


def none_in_lines(trials: Sequence[TriedChange]) -> Iterator[str]:
    """Why no change is recommended, a line each."""
    early = [trial for trial in trials if trial.ended_early]
    # Trials whose time was up may fit with more time: only of them can a user do something.
    if not trials:
        yield "No change is known that could help."
        return
    if not early:
        yield "None of the changes that were tried lets the program finish."
        return
    yield "No change was seen to let the program finish in the time that it had."
    for trial in early:
        rehearsal = trial.rehearsal
        peak = show_bytes(rehearsal.peak_reserved_bytes)
        yield (
            f"Still running after {rehearsal.seconds:.0f} s, with at most {peak} reserved until "
            f"then: {trial.change.title}"
        )
    yield "Give them more time with --seconds, or end the program sooner with --steps."


def results_in_words(trial: TriedChange) -> str:
    """What a change does to the results, and whether that was measured or follows from a rule.

    "should be": no measurement showed it to the program's end. The reason of the rule in brackets:
    the rule knows more than the CPU shows, or nothing was measured.
    """
    proof = trial.proof
    change = trial.change
    by_rule = f"{trial.results.value} ({change.why})"
    if proof is None:
        return by_rule
    if change.results is Results.OTHER and trial.results is Results.OTHER:
        return by_rule
    if change.only_on_a_gpu and proof.results is not Results.OTHER:
        return f"{trial.results.value} ({change.why}; a CPU cannot show it)"
    if proof.results is None:
        words = f"{trial.expected.value} ({change.why}; not measured: {proof.says})"
        if trial.expected is Results.OTHER:
            return words
        return f"should be {words}"
    if proof.results is Results.OTHER:
        return f"{trial.results.value}: {proof.says}"
    if change.shows_late and not proof.to_its_end:
        return f"should be {change.results.value} ({change.why}; {proof.says})"
    if proof.results is not trial.results:  # the rule knows what a CPU does not show
        return by_rule
    return proof.says


def tried_table(trials: Sequence[TriedChange], first: Rehearsal) -> Shown:
    """Every change that was rehearsed, in order."""
    rows = [
        (
            trial.change.title,
            outcome(trial, first),
            trial.rehearsal.peak_reserved_bytes,
            trial.expected.value,
            round(trial.rehearsal.seconds, 1),
        )
        for trial in trials
    ]
    peak = Column("peak reserved", "bytes")
    columns = ("change", "outcome", peak, "results", "seconds")
    return Shown("Changes that were tried", columns, rows)


def outcome(trial: TriedChange, first: Rehearsal) -> str:
    """How the changed program ended, in a few words."""
    rehearsal = trial.rehearsal
    if trial.loses_gradients:
        return "fits, but some weights are no longer trained"
    if trial.is_refuted:
        return "fits, but computes something else"
    if trial.passes:
        return _passed(rehearsal)
    if rehearsal.fits and rehearsal.ooms:
        return "runs out of memory, and goes on"
    if trial.ended_early:
        return f"was still running after {rehearsal.seconds:.0f} s"
    if rehearsal.failed_otherwise:
        return f"fails: {rehearsal.error or rehearsal.exit_code}"
    if trial.helps(first):
        return "gets further, then runs out of memory"
    return "runs out of memory"


def _passed(rehearsal: Rehearsal) -> str:
    """In a few words, under which condition a changed program fits that came to its end."""
    if rehearsal.between:
        return "fits if its libraries take little workspace"
    if depends_on_outside(rehearsal):
        return f"fits if the GPU context takes less than {show_bytes(rehearsal.left_bytes)}"
    return "fits"


def as_shape(failure: FailedProgram, trial: TriedChange) -> dict[str, Any]:
    """A trial as --json prints it: sizes in bytes, ``measured``: whether runs on the CPU showed the
    results, ``why``: what is known of them.
    """
    change = trial.change
    return {
        "change": change.title,
        "results": trial.results.name.lower(),
        "measured": trial.measured is not None and not change.only_on_a_gpu,
        "why": results_in_words(trial),
        "costs": change.costs,
        "fits": trial.passes,
        "outcome": outcome(trial, failure.first),
        "peak_reserved_bytes": trial.rehearsal.peak_reserved_bytes,
        "seconds": trial.rehearsal.seconds,
        "diff": diff(failure.program, change),
        "environment": dict(change.environment),
        "command": changed_command(failure.program, change),
    }
