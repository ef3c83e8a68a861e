"""The box of a batch between its runs: what a look found, and which run is held back.

Only a run that works the box is held back, and only by what it could meet: its GPU in use, too
hot or lost, hardly any host memory free, or no room for results; by the GPUs and the host memory of
this machine only where it is about this machine. The box is looked at anew before each such run, and
given time to settle. What no look can disprove, such as a GPU reset or a process that SIGKILL does
not end, counts until the next boot.
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
FOR_GOOD = " (for good)"
Measure = Callable[..., BoxState]
"""Looks at the box: helpers.batch.box_state.measure, or a stand-in for it."""


class _Interrupted(Exception):
    pass


class BoxWatch:
    """Looks at the box of a batch while nothing runs.

    Without ``measure`` it never looks. ``interrupted`` says whether the batch is to stop, which
    ends a wait.
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
        """Why a run must not start now, or nothing; ``runs`` are all of its batch."""
        if run.danger == "looks":
            return ""
        self.look(lambda trouble: _concerns(trouble, run))
        troubles = [*lost(runs), *self.stays, *self.troubles]
        return concerning(troubles, run.gpu, elsewhere=_is_elsewhere(run))

    def after(self, runs: Sequence[Run]) -> list[Run]:
        """Look at the box after these runs; the records of those that left it unclean, or after
        which nothing could be seen.
        """
        if self.measure is None or self.interrupted():
            return []
        before = self.troubles

        def may_be_theirs(trouble: Trouble) -> bool:
            # Other programs take host memory and give it back all night.
            if trouble.scope == "host memory":
                return False
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
        """Find out what is wrong with the box, after what is worth a wait had time to settle."""
        self.blind = ""
        self.troubles = ()
        if self.measure is None:
            return
        try:
            if self.first is None:
                self.last = self.measure(folder=self.folder)
                # Other programs come and go all night: only too little host memory counts.
                self.first = replace(self.last, available_bytes=None)
            self.troubles = settle(
                self.first, self.gates, self._measure, self._pause, waits_for=waits_for
            )
            self.stays += [trouble for trouble in self.troubles if not trouble.passes]
        except _Interrupted:
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
    return bool(concerning([trouble], run.gpu, elsewhere=_is_elsewhere(run)))


def _is_elsewhere(run: Run) -> bool:
    """Whether a run is about a recorded box, and asks for no device of this machine."""
    device = run.parameters.get("device", "cpu")
    return run.box in recorded_names() and not run.gpu and device == "cpu"


def lost(runs: Iterable[Run]) -> Iterator[Trouble]:
    """What runs under this boot left behind that no look can disprove."""
    boot = boot_id()
    for run in runs:
        if run.boot_id != boot:
            continue
        if run.state == "stuck":
            scope = f"gpu {run.gpu}" if run.gpu else "a GPU"
            yield Trouble(scope, f"{run.run_id}: {run.cause}", passes=False)
        for scope in run.quarantined.split(", "):
            if scope.endswith(FOR_GOOD):
                yield Trouble(scope.removesuffix(FOR_GOOD), run.gate, passes=False)
