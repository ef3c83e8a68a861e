"""Does a resumed batch repeat a run?"""

from __future__ import annotations

from helpers.look.files import boot_id

from .shapes import Run

NEVER_RAN = ("interrupt", "limit", "quarantine", "disk", "box")


def attempt_on_resume(run: Run, ooms: int | None) -> int:
    """The attempt at a run that a resumed batch makes by itself, or 0 where the run stays as it
    is.

    One that never started keeps its number. One that the user interrupted is tried again, and
    so is one whose batch ended while it ran, until that has happened twice; never where
    ``ooms``, the OOM kills by now, rose meanwhile.
    """
    if run.state == "skipped":
        return run.attempt if run.stopped_by in NEVER_RAN else 0
    if run.state == "failed" and run.stopped_by == "interrupt":
        return run.attempt + 1
    if run.state == "died" and run.stopped_by == "batch_end" and run.strikes <= 1:
        before = run.ooms_before if run.boot_id == boot_id() else None
        if ooms is None or before is None or ooms <= before:
            return run.attempt + 1
    return 0
