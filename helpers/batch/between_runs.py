"""The box of a batch between its runs: what a look found, and which run is held back.

Only a run that does more than look is held back, and only by what could disturb it: its GPU is in
use, too hot or lost, hardly any host memory is free, or there is no room for results. A run about a
recorded box uses no GPU of this machine, so GPUs and host memory do not hold it back. Before each
run that may be held back the box is looked at again, and given time to settle. A fault that no
later look can disprove, such as a GPU reset or a process that SIGKILL does not end, counts until
the next boot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.look.boxes import recorded_names

from .clean import concerning, settle
from .look_shapes import BoxState, Gates, Trouble
from .record import boot_id, in_words
from .shapes import Run

TICK_S = 0.2
"""Seconds after which a wait looks again whether the batch was interrupted."""
FOR_GOOD = " (for good)"
"""Marks a scope in a record's ``quarantined`` that stays unclean until the next boot."""
Measure = Callable[..., BoxState]
"""Looks at the box: helpers.batch.box_state.measure, or a stand-in for it."""


class _Interrupted(Exception):
    """The batch was asked to stop while the box was given time to settle."""


class BoxWatch:
    """Looks at the box of a batch while nothing runs.

    Without ``measure`` it never looks. A wait ends early when ``interrupted()`` is true. ``first``
    and ``last`` are the first and the latest look; ``troubles`` is what the latest one found, and
    ``stays`` what no later look can disprove. ``blind`` says why the latest look failed, or is
    empty.
    """

    def __init__(
        self,
        measure: Measure | None,
        gates: Gates,
        folder: Path,
        interrupted: Callable[[], bool],
    ):
        self.measure = measure
        self.gates = gates
        self.folder = folder
        self.interrupted = interrupted
        self.first: BoxState | None = None
        self.last: BoxState | None = None
        self.troubles: tuple[Trouble, ...] = ()
        self.stays: list[Trouble] = []
        self.blind = ""

    def holds_back(self, run: Run, runs: Iterable[Run]) -> str:
        """Why a run must not start now, after a new look at the box; empty if it may start.

        ``runs`` are all runs of its batch, whose records may name faults that last.
        """
        if run.danger == "looks":
            return ""
        self.look(lambda trouble: _concerns(trouble, run))
        troubles = [*lost(runs), *self.stays, *self.troubles]
        return concerning(troubles, run.gpu, elsewhere=_is_elsewhere(run))

    def after(self, runs: Sequence[Run]) -> list[Run]:
        """Look at the box after ``runs`` have ended; returns their records with the reason in
        ``gate`` where the box is unclean or could not be looked at, else no record.
        """
        if self.measure is None or self.interrupted():
            return []
        before = self.troubles

        def may_be_theirs(trouble: Trouble) -> bool:
            # The runs are not blamed for it: other programs use host memory, too.
            if trouble.scope == "host memory":
                return False
            # A fault that lasts is recorded whatever GPU the runs named: a resumed batch knows it
            # from their records only (``lost``).
            return not trouble.passes or any(_concerns(trouble, run) for run in runs)

        self.look(may_be_theirs)
        if self.blind:
            return [run.model_copy(update={"gate": self.blind}) for run in runs]
        new = [
            trouble
            for trouble in self.troubles
            if trouble not in before and may_be_theirs(trouble)
        ]
        if not new:
            return []
        why = "; ".join(f"{trouble.scope}: {trouble.why}" for trouble in new)
        if len(runs) > 1:
            why += f" (after {len(runs)} runs side by side)"
        stays = dict.fromkeys(
            trouble.scope + FOR_GOOD for trouble in new if not trouble.passes
        )
        update = {"gate": why, "quarantined": ", ".join(stays)}
        return [run.model_copy(update=update) for run in runs]

    def look(self, waits_for: Callable[[Trouble], bool]) -> None:
        """Set ``troubles`` to what is wrong with the box, or ``blind`` to why this is not known.

        A trouble for which ``waits_for`` is true gets time to pass.
        """
        self.blind = ""
        self.troubles = ()
        if self.measure is None:
            return
        try:
            if self.first is None:
                self.last = self.measure(folder=self.folder)
                # Other programs start and end all night, so free host memory is compared with the
                # plan's limit only, not with the first look.
                self.first = replace(self.last, available_bytes=None)
            self.troubles = settle(
                self.first, self.gates, self._measure, self._pause, waits_for=waits_for
            )
            self.stays += [trouble for trouble in self.troubles if not trouble.passes]
        except _Interrupted:  # the batch ends, so nobody needs the answer
            return
        except Exception as error:  # noqa: BLE001  a fault of the look must not cost the night; the records say it was blind
            self.blind = f"not looked at: {in_words(error)}"

    def _measure(self) -> BoxState:
        assert self.measure is not None
        self.last = self.measure(folder=self.folder, since=self.last)
        return self.last

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.interrupted():
                raise _Interrupted
            time.sleep(TICK_S)


def _concerns(trouble: Trouble, run: Run) -> bool:
    """Whether a trouble alone would hold a run back."""
    return bool(concerning([trouble], run.gpu, elsewhere=_is_elsewhere(run)))


def _is_elsewhere(run: Run) -> bool:
    """Whether a run is about a recorded box and uses no GPU of this machine: the plan names none
    for it, and a notebook with the parameter ``device`` trains on the CPU.
    """
    device = run.parameters.get("device", "cpu")
    return run.box in recorded_names() and not run.gpu and device == "cpu"


def lost(runs: Iterable[Run]) -> Iterator[Trouble]:
    """The faults that records of runs name and that last until the next boot: GPUs on which a run
    is stuck, and what ``quarantined`` marks with FOR_GOOD.
    """
    boot = boot_id()
    for run in runs:
        if run.boot_id != boot:  # a reboot since then has cleared its faults
            continue
        if run.state == "stuck":
            scope = f"gpu {run.gpu}" if run.gpu else "a GPU"
            yield Trouble(scope, f"{run.run_id}: {run.cause}", passes=False)
        for scope in run.quarantined.split(", "):
            if scope.endswith(FOR_GOOD):
                yield Trouble(scope.removesuffix(FOR_GOOD), run.gate, passes=False)
