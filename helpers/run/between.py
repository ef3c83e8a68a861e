"""The box between two runs: whether it is clean for the next one, and what of it is closed until it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from .one import TICK_S, Stop
from .quarantine import Quarantine, Trouble
from .record import boot_id
from .shapes import Gates, Run

FOR_GOOD = " (for good)"


class Gate(Protocol):
    """How a box is looked at: the module helpers.run.gate, or a stand-in for it."""

    def measure(
        self,
        gpus: Sequence[str] = (),
        root: str = "",
        *,
        folder: str | Path = ".",
        since: Any = None,
    ) -> Any: ...

    def settle(
        self,
        before: Any,
        gates: Any,
        measure: Callable[[], Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> tuple[Trouble, ...]: ...


class _Interrupted(Exception):
    pass


class Between:
    """What is closed, and the looks that close and open it. Without a gate only what a run itself proves is closed."""

    def __init__(self, gate: Gate | None, gates: Gates, folder: Path, stop: Stop):
        self.gate, self.gates, self.folder, self.stop = gate, gates, folder, stop
        self.quarantine = Quarantine()
        self.first: Any = None
        self.last: Any = None
        self.blind = ""

    def take_up(self, runs: Iterable[Run]) -> None:
        """What earlier runs of the batch closed under this boot, and what is wrong with the box before the first run."""
        for run in runs:
            if run.quarantined and run.boot_id == boot_id():
                self.quarantine.add(
                    *(
                        Trouble(
                            scope.removesuffix(FOR_GOOD),
                            run.gate or run.cause,
                            not scope.endswith(FOR_GOOD),
                        )
                        for scope in run.quarantined.split(", ")
                    )
                )
        self.quarantine.add(*self._look())

    def refuses(self, run: Run, idle: bool) -> str:
        """Why a run must not start, or nothing. While nothing runs, a look may open again what only a look has closed."""
        if (
            idle
            and self.quarantine.refuses(run)
            and any(trouble.passes for trouble in self.quarantine.troubles)
        ):
            found = self._look(settle=False)
            if not self.blind:
                self.quarantine.lifted(found)
            self.quarantine.add(
                *(trouble for trouble in found if trouble not in self.quarantine.troubles)
            )
        return self.quarantine.refuses(run)

    def close_for(self, run: Run) -> Run:
        """Close the GPU of a run whose process SIGKILL does not end; its record says so."""
        scope = f"gpu {run.gpu}" if run.gpu else "a GPU"
        self.quarantine.add(Trouble(scope, f"{run.run_id}: {run.cause}", passes=False))
        return run.model_copy(update={"quarantined": scope + FOR_GOOD})

    def after(self, runs: Sequence[Run]) -> list[Run]:
        """Look at the box after these runs; the records of those that left it unclean, or after which nothing could be seen."""
        if self.stop.signal or self.gate is None:
            return []
        found = self._look()
        if not self.blind and not self.stop.signal:
            self.quarantine.lifted(found)
        new = [trouble for trouble in found if trouble not in self.quarantine.troubles]
        self.quarantine.add(*new)
        if not new and not self.blind:
            return []
        beside = f" (after {len(runs)} runs side by side)" if len(runs) > 1 else ""
        why = self.blind or "; ".join(f"{trouble.scope}: {trouble.why}" for trouble in new) + beside
        scopes = [trouble.scope + FOR_GOOD * (not trouble.passes) for trouble in new]
        return [
            run.model_copy(
                update={
                    "gate": why,
                    "quarantined": ", ".join(
                        dict.fromkeys([run.quarantined] * bool(run.quarantined) + scopes)
                    ),
                }
            )
            for run in runs
        ]

    def _look(self, settle: bool = True) -> tuple[Trouble, ...]:
        """What is wrong with the box, after it had time to settle. An interrupt of the batch ends the wait."""
        self.blind = ""
        if self.gate is None:
            return ()
        try:
            if self.first is None:
                self.first = self.last = self.gate.measure(folder=self.folder)
            gates = self.gates if settle else self.gates.model_copy(update={"settle_s": 0})
            return self.gate.settle(self.first, gates, self._measure, self._pause)
        except _Interrupted:
            return ()
        except Exception as error:  # noqa: BLE001  a fault of the look must not cost the night; the records say it was blind
            self.blind = f"not looked at: {type(error).__name__}: {error}".splitlines()[0]
            return ()

    def _measure(self) -> Any:
        assert self.gate
        self.last = self.gate.measure(folder=self.folder, since=self.last)
        return self.last

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self.stop.signal:
                raise _Interrupted
            time.sleep(min(TICK_S, left_s))
