"""The readings that would decide, and why one that was asked for is not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from helpers.ground.shapes import Missing
from helpers.judge.case_names import fill, names_of
from helpers.judge.catalogue import DecidingReading, deciding_reading
from helpers.judge.evidence import CaseEvidence
from helpers.judge.posted_processes import processes
from helpers.judge.worlds import reading_for
from helpers.look.wordings import lines as forms

NO_EVIDENCE = CaseEvidence()


def missing_readings(
    deciding: Iterable[DecidingReading], evidence: CaseEvidence
) -> list[Missing]:
    """The readings that would decide and were not handed over, each once, with the command that
    takes them, filled in.
    """
    names = names_of(evidence, ())
    rows = dict.fromkeys(not_handed_over(deciding, evidence))
    return [Missing(row.reading, fill(row.how, names)) for row in rows]


def not_handed_over(
    deciding: Iterable[DecidingReading], evidence: CaseEvidence
) -> Iterator[DecidingReading]:
    """The readings that were not handed over, as they are taken in the world of the failure
    (judge/worlds.py: its server, system and vendor).
    """
    for row in deciding:
        if not _was_handed_over(row.name, evidence):
            yield reading_for(row, evidence)


def _was_handed_over(reading: str, evidence: CaseEvidence) -> bool:
    """Whether a reading, by its name in failures.json, was handed over; False for one that a
    person has to make (a second run, another setting), as nobody hands over such a thing.
    """
    has_box = evidence.bundle is not None
    if reading == "kernel-log" and evidence.bundle is not None:
        from helpers.look.kernel_log import readable  # only a captured box has a log

        return readable(evidence.bundle).ok
    if reading == "kernel-log":  # without a box: lines of it that were pasted
        rows_of_the_log = {line.id for line in forms(log=True)}
        return any(message.row in rows_of_the_log for message in evidence.messages)
    if reading == "holders":
        return any(row.bytes for row in processes(evidence))
    if reading == "host":
        shows_ram = any(figure.pool == "available" for figure in evidence.figures)
        return has_box or shows_ram
    return reading == "ceilings" and has_box


def missing_reading(name: str, evidence: CaseEvidence = NO_EVIDENCE) -> Missing:
    """A reading that would decide, by its name, whether it was handed over or not."""
    wanted = reading_for(deciding_reading(name), evidence)
    return Missing(wanted.reading, fill(wanted.how, names_of(evidence, ())))
