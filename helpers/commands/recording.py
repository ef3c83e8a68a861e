"""What `record` and `rehearse` share: checking the command, naming the recording, judging it."""

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from helpers.allocator.circumstances import add_to_record
from helpers.allocator.program_facts import evidence_from_trace
from helpers.allocator.record import NameTakenError, remove
from helpers.allocator.trace import TraceError
from helpers.commands.use import WrongUse, words_of_command
from helpers.ground.places import OUTPUTS
from helpers.ground.shapes import Verdict
from helpers.judge.diagnosis import diagnose
from helpers.trials.user_program import check_script

Recorded = TypeVar("Recorded")
"""What a caller's ``record`` returns: a recording, rehearsals, or the traces of a comparison."""
ANALYSED = "its recording is being analysed"


def checked_command(arguments: Namespace) -> list[str]:
    """The command to run; empty without one.

    Raises WrongUse where its script does not exist, or where --out is not a name for a snapshot.
    """
    command = words_of_command(arguments)
    check_script(command)
    out = Path(arguments.out)
    if out.suffix not in ("", ".pickle"):
        written = out.with_suffix(".pickle")
        raise WrongUse(
            f"--out {out}: the trace is a memory snapshot, in a .pickle; give {written}"
        )
    return command


def recorded(
    arguments: Namespace, kind: str, record: Callable[[Path], Recorded]
) -> Recorded:
    """Call ``record`` with the place for its trace, and return its result.

    The place is the one that --out names, else a new one in outputs, named by ``kind`` and the
    time. Recordings that begin in the same second are numbered: ``trace-...``, ``trace-...-2``.
    """
    if arguments.out:
        out = Path(arguments.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        if arguments.force:
            remove(out)
        return record(out)
    OUTPUTS.mkdir(parents=True, exist_ok=True)
    named_by_time = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    name = named_by_time
    number = 1
    while True:
        try:
            return record(OUTPUTS / name)
        except (NameTakenError, FileExistsError):
            number += 1
            name = f"{named_by_time}-{number}"


def record_folder(trace: Path) -> Path:
    """The folder beside a trace with everything else of its recording, such as record.json."""
    return trace.absolute().with_suffix(".record")


def verdict_on_recording(trace: Path, command: Sequence[str]) -> Verdict | None:
    """The verdict on a recording that was just made; None where it cannot be read.

    Its next step is the change that ``fix`` would try first. That change is written beside the
    recording, so that ``diagnose`` and ``whatif`` give the same verdict.
    """
    try:
        evidence = evidence_from_trace(trace)
    except TraceError:
        return None
    # Imported here, because libcst takes long to load and `--gpu list` does not need it.
    from helpers.fix.answer import first_change

    verdict = diagnose(evidence)
    change = first_change(command, evidence, verdict.label)
    if change is None or evidence.program is None:
        return verdict
    add_to_record(trace, first_change=asdict(change))
    program = replace(evidence.program, first_change=change)
    return diagnose(replace(evidence, program=program))
