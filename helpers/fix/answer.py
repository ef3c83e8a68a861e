"""Why a program runs out of memory on a card, and a change with which it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from helpers.allocator.circumstances import add_to_record, record_of
from helpers.allocator.program_facts import evidence_from_trace
from helpers.fix.candidates import candidates
from helpers.fix.change import NOTHING, Change
from helpers.fix.imports import sources_of
from helpers.fix.program import Program, holding_frames
from helpers.fix.proof import Proof
from helpers.fix.search import INTERRUPTED, Start, Trials, TriedChange
from helpers.fix.settings_file import settings_files
from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence
from helpers.judge.program_facts import FirstChange, ProgramFacts
from helpers.look.cards import GpuCard
from helpers.rehearse import counterfactual
from helpers.rehearse.fault import refused_setting
from helpers.rehearse.rehearsal import STOPPED, Rehearsal, RehearsalLimits
from helpers.rehearse.scratch import copied, in_copy, why_not_copied
from helpers.settings.trouble import SettingsTrouble
from helpers.trials.user_program import script_of

DOWNLOADS_OFF = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Variables that keep the libraries of Hugging Face from downloading (their documentation)."""
_DOWNLOAD = re.compile(
    # huggingface_hub, datasets and transformers while DOWNLOADS_OFF is set
    r"LocalEntryNotFound|OfflineMode|offline mode|couldn.t connect"
    # urllib and requests, glibc's resolver, urllib3
    r"|URLError|ConnectionError|gaierror|Name or service not known|name resolution"
    r"|Max retries exceeded"
)
"""Words in the error of a program that tried to download something."""
ADVISED = ("user-leak", "true-capacity")
"""Labels of the verdicts for which first_change reads the program's sources: only these say what
kind of code has to change.
"""


class NoFix(ValueError):
    """A program for which no change can be looked for; why, in one line."""


@dataclass(frozen=True)
class FailedProgram:
    """A program that ran out of memory. ``first``: its rehearsal as it is; ``verdict``: why it ran
    out; ``repeats``: its rehearsals without a limit and with expandable segments.
    """

    program: Program
    first: Rehearsal
    verdict: Verdict
    repeats: counterfactual.Counterfactual = field(
        default_factory=counterfactual.Counterfactual
    )

    @property
    def rehearsed(self) -> dict[str, Rehearsal]:
        """The repeat with expandable segments, by the settings that it had, so that the search need
        not run it again; empty where there was none, or where a limit stopped it.
        """
        again = self.repeats.expandable
        if again is None or again.stopped:
            return {}
        return {again.conf: again}


@dataclass(frozen=True)
class SearchLimits:
    """``limits``: of each rehearsal; ``seconds`` and ``tries``: of the whole search. Three minutes
    and nine tries were chosen as what somebody waits for in front of a terminal.
    """

    limits: RehearsalLimits
    seconds: float = 180.0
    tries: int = 9


def failure_of(
    command: Sequence[str],
    card: GpuCard,
    run: Callable[..., Rehearsal],
    scratch: Path,
    limits: RehearsalLimits,
) -> FailedProgram:
    """Rehearse a command in a copy of the current folder, and find out why it fails.

    ``run``: rehearse.run.rehearse with its torch; ``scratch``: a folder for its traces. Raises
    NoFix where it fits, or fails for another reason than memory, and KeyboardInterrupt where
    somebody ended the rehearsal.
    """
    out = scratch / "first.pickle"
    first = _first_rehearsal(command, card, run, out, limits)
    setting = _refused_setting(out, first)
    if setting is not None:
        # torch ended the program before it allocated, so the setting is all there is to judge.
        source = f"rehearsal of {command[0]}"
        facts = ProgramFacts(source, exit_code=first.exit_code, settings=setting)
        return _failure(command, first, CaseEvidence(program=facts))
    why_not = _why_nothing_to_fix(first)
    if why_not:
        raise NoFix(why_not)
    repeats = counterfactual.Counterfactual()
    if not counterfactual.why_no_repeats(first, Path.cwd()):
        record = out.with_suffix(".record")
        both = counterfactual.Repeats(run, list(command), first, record)
        repeats = both.both()
        add_to_record(out, counterfactual=repeats.as_shape())
    failure = _failure(command, first, evidence_from_trace(out))
    # A program that catches its errors may fit and be ill all the same.
    if first.fits and failure.verdict.state == "healthy":
        raise NoFix(f"the program fits as it is: {failure.verdict.summary}")
    return replace(failure, repeats=repeats)


def _first_rehearsal(
    command: Sequence[str],
    card: GpuCard,
    run: Callable[..., Rehearsal],
    out: Path,
    limits: RehearsalLimits,
) -> Rehearsal:
    """Rehearse the unchanged command, with its trace at ``out``. Raises NoFix where it cannot run
    in a copy of the current folder, and KeyboardInterrupt where somebody ended it.
    """
    folder = Path.cwd()
    why_not = why_not_copied(folder)
    if why_not:
        raise NoFix(f"{why_not}; start fix in a smaller folder")
    script = script_of(command)
    # The copy would lack a script from elsewhere, and no change could be made in it.
    if script and not (folder / script).resolve().is_relative_to(folder.resolve()):
        advice = "start fix in the folder of its sources"
        raise NoFix(f"{script} is not below this folder; {advice}")
    with copied(folder) as copy:
        first = run(
            in_copy(command, folder, copy),
            card,
            out,
            extra=counterfactual.UPLOADS_OFF,
            log=out.with_suffix(".log"),
            limits=limits,
            working_folder=copy,
        )
    # No limit of the rehearsal sent this SIGTERM, so somebody wants fix itself to end.
    was_ended = first.exit_code == STOPPED and not first.stopped
    if was_ended or first.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    return first


def _refused_setting(out: Path, first: Rehearsal) -> SettingsTrouble | None:
    """The allocator's setting at which torch ended the program that was recorded at ``out``; None
    where no setting did.
    """
    if not first.failed_otherwise:
        return None
    for process in record_of(out).get("processes", ()):
        trouble = refused_setting(process, first.torch)
        if trouble is not None:
            return trouble
    return None


def _why_nothing_to_fix(first: Rehearsal) -> str:
    """Why there is nothing to search: the first rehearsal did not run out of memory, or recorded
    nothing; else empty. A program that caught its out-of-memory errors (``ooms``) did run out.
    """
    if first.failed_otherwise and _DOWNLOAD.search(first.error):
        return f"the program needs a download: {first.error}; fetch it first, then try again"
    if first.failed_otherwise:
        why = first.how_it_failed
        return f"the program fails, but not for lack of memory: {why}; fix that first"
    if first.peak_reserved_bytes is None:
        return "no use of the GPU was seen; expected a program that computes on it"
    if first.fits and first.stopped and not first.ooms:
        return f"the program fits as far as it ran: {first.label}; run it to its end"
    if first.fits and not first.ooms:
        return f"the program fits as it is: {first.label}; nothing needs to change"
    if first.trace is None:
        return f"nothing was recorded: {first.why_no_trace}"
    return ""


def first_change(
    command: Sequence[str], evidence: CaseEvidence, label: str
) -> FirstChange | None:
    """The change that ``fix`` would try first for a recorded program; None where none is known, or
    where the program's sources are not in this folder. ``label``: that of the verdict.
    """
    # Where fix could not copy this folder, its advice could not be tried.
    if label not in ADVISED or why_not_copied(Path.cwd()):
        return None
    try:
        program = _program(command, evidence)
    except NoFix:
        return None
    change = next(candidates(program, label), None)
    if change is None:
        return None
    costs = "" if change.costs == NOTHING else change.costs
    return FirstChange(change.title, costs)


def _failure(
    command: Sequence[str], first: Rehearsal, evidence: CaseEvidence
) -> FailedProgram:
    """The program of a command with the verdict on it. Raises NoFix where it has no sources here."""
    return FailedProgram(_program(command, evidence), first, diagnose(evidence))


def _program(command: Sequence[str], evidence: CaseEvidence) -> Program:
    """The program of a command. Raises NoFix where it has no sources here."""
    facts = evidence.program
    assert facts is not None
    folder = Path.cwd()
    sources = sources_of(command, folder, _frames(facts))
    if not sources:
        raise NoFix(
            "no Python file of the program below this folder could be read; "
            "start fix where its sources are"
        )
    files = settings_files(command, sources, folder)
    return Program(sources, list(command), facts, files)


def change_for(
    failure: FailedProgram,
    run: Callable[..., Rehearsal],
    prove: Callable[[Program, Change], Proof],
    search: SearchLimits,
    *,
    on_start: Callable[[Start], None] = lambda _start: None,
    on_trial: Callable[[TriedChange], None] = lambda _trial: None,
) -> tuple[TriedChange | None, list[TriedChange]]:
    """Search for a change with which the program fits. Returns the one that was rehearsed to fit
    (None: no change was), and all that were tried.

    ``prove`` compares what the program and a changed one compute (Prover.prove).
    """
    trials = Trials(
        program=failure.program,
        folder=Path.cwd(),
        first=failure.first,
        run=partial(run, limits=search.limits),
        prove=prove,
        seconds=search.seconds,
        tries=search.tries,
        on_start=on_start,
        on_trial=on_trial,
        rehearsed=failure.rehearsed,
    )
    try:
        winner = trials.best(candidates(failure.program, failure.verdict.label))
    except KeyboardInterrupt:
        winner = trials.fallback  # what was tried until then is not lost
    return winner, trials.done


def _frames(facts: ProgramFacts) -> list[str]:
    """The lines of the program that its recording names, as frames such as "train.py:36 evaluate":
    of what holds the memory, of what grows, and of the allocator's setting.
    """
    frames = holding_frames(facts)
    if facts.growth is not None:
        for grower in facts.growth.growers:
            frames += [grower.line, grower.asked_at]
    if facts.settings is not None:
        frames.append(facts.settings.where)
    return frames
