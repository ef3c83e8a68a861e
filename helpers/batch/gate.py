"""What a batch keeps its hands off between two runs, until the box is clean again (clean) or a
person has seen to it.

The rule is that of ORNL's checknode on Frontier (Cray User Group 2023): a clean check may lift
only what the check itself set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.ground.contract import to_json
from helpers.ground.units import pci_address, show_bytes
from helpers.look.earlier_boot import last_lines
from helpers.look.files import whole, write_atomic

from .box_state import BoxState, Gates, Trouble, measure, read_state, settle
from .record import boot_id, in_words, now, seconds_since
from .shapes import Run

__all__ = ["Trouble", "measure", "settle"]
TICK_S = 0.2
WATCH_S = 20.0
FOR_GOOD = " (for good)"


class Quarantine:
    """What a batch keeps its hands off, and why: a whole box, or one GPU of it.

    It holds state alone.

    ``add`` takes what the gate saw and what others know, such as a process that SIGKILL did not
    end; theirs never passes.
    """

    def __init__(self) -> None:
        self.troubles: tuple[Trouble, ...] = ()

    def add(self, *troubles: Trouble) -> None:
        """Keep these scopes out. What is added twice of one scope is kept once."""
        self.troubles = tuple(dict.fromkeys((*self.troubles, *troubles)))

    def lifted(self, seen: Iterable[Trouble]) -> tuple[Trouble, ...]:
        """What a look lifts that saw only ``seen``: passing troubles of the scopes that are
        clean now.
        """
        unclean = {trouble.scope for trouble in seen}
        gone = [one for one in self.troubles if one.passes and one.scope not in unclean]
        self.troubles = tuple(one for one in self.troubles if one not in gone)
        return tuple(gone)

    def refuses(self, run: Any) -> str:
        """Why this run must not start, or empty.

        ``run`` has ``gpu`` and ``danger`` (a Run or a Step).

        A box refuses every run. A GPU refuses those that name it, and those that name none and
        do more than look.
        """
        named = pci_address(run.gpu) or run.gpu
        looks = run.danger == "looks"
        for trouble in self.troubles:
            if trouble.scope in ("box", f"gpu {named}"):
                return f"{trouble.scope} is in quarantine: {trouble.why}"
            if (not named and not looks) or (named and trouble.scope == "a GPU"):
                return f"{trouble.scope} is in quarantine, and this run may use it: {trouble.why}"
        return ""


class _Interrupted(Exception):
    pass


class Between:
    """The box between two runs: what is closed, and the looks that close and open it.

    ``gate`` has ``measure`` and ``settle`` as this module; without it only what a run itself
    proves is closed. ``interrupted`` says whether the batch is to stop: it ends a wait.
    """

    def __init__(self, gate: Any, gates: Gates, folder: Path, interrupted: Callable[[], bool]):
        self.gate = gate
        self.gates = gates
        self.folder = folder
        self.interrupted = interrupted
        self.quarantine = Quarantine()
        self.first: Any = None
        self.last: Any = None
        self.kept = BoxState(boot_id(), at=now())
        self.blind = ""
        self.watched_s = time.monotonic()

    def take_up(self, runs: Iterable[Run]) -> None:
        """What earlier runs of the batch closed under this boot, and what is wrong with the box
        before the first run.
        """
        for run in runs:
            if run.quarantined and run.boot_id == boot_id():
                for scope in run.quarantined.split(", "):
                    why = run.gate or run.cause
                    passes = not scope.endswith(FOR_GOOD)
                    self.quarantine.add(Trouble(scope.removesuffix(FOR_GOOD), why, passes))
        self.quarantine.add(*self._look())

    def refuses(self, run: Run, idle: bool) -> str:
        """Why a run must not start, or nothing.

        While nothing runs, a look may open again what only a look has closed.
        """
        passing = any(trouble.passes for trouble in self.quarantine.troubles)
        if idle and passing and self.quarantine.refuses(run):
            self._judge(self._look(settle=False))
        return self.quarantine.refuses(run)

    def close_for(self, run: Run) -> Run:
        """Close the GPU of a run whose process SIGKILL does not end; its record says so."""
        scope = f"gpu {run.gpu}" if run.gpu else "a GPU"
        self.quarantine.add(Trouble(scope, f"{run.run_id}: {run.cause}", passes=False))
        return run.model_copy(update={"quarantined": scope + FOR_GOOD})

    def after(self, runs: Sequence[Run]) -> list[Run]:
        """Look at the box after these runs; the records of those that left it unclean, or after
        which nothing could be seen.
        """
        if self.interrupted() or self.gate is None:
            return []
        new = self._judge(self._look())
        if not new and not self.blind:
            return []
        if self.blind:
            return [run.model_copy(update={"gate": self.blind}) for run in runs]
        beside = f" (after {len(runs)} runs side by side)" if len(runs) > 1 else ""
        return [marked(run, new, beside) for run in runs]

    def _judge(self, seen: tuple[Trouble, ...]) -> list[Trouble]:
        """Open what a look found clean, close what is new, and return that."""
        if not self.blind and not self.interrupted():
            self.quarantine.lifted(seen)
        new = [trouble for trouble in seen if trouble not in self.quarantine.troubles]
        self.quarantine.add(*new)
        return new

    def _look(self, settle: bool = True) -> tuple[Trouble, ...]:
        """What is wrong with the box, after it had time to settle.

        An interrupt of the batch ends the wait.
        """
        self.blind = ""
        if self.gate is None:
            return ()
        try:
            if self.first is None:
                self.first = self.last = self.gate.measure(folder=self.folder)
            gates = self.gates if settle else replace(self.gates, settle_s=0)
            return self.gate.settle(self.first, gates, self._measure, self._pause)
        except _Interrupted:
            return ()
        except Exception as error:  # noqa: BLE001  a fault of the look must not cost the night; the records say it was blind
            self.blind = f"not looked at: {in_words(error)}"
            return ()

    def _measure(self) -> Any:
        self.last = self.gate.measure(folder=self.folder, since=self.last)
        self.kept = self.last
        keep(self.folder, self.last)
        return self.last

    def watch(self) -> None:
        """While runs go on, every WATCH_S, a look that is only kept; none any more after one
        that a driver did not answer.
        """
        if self.gate is None or time.monotonic() < self.watched_s + WATCH_S:
            return
        self.watched_s = time.monotonic()
        try:
            state = self.kept = self.gate.measure(folder=self.folder)
        except Exception as error:  # noqa: BLE001  no process or thread is left, a driver's words are new: the page says so
            why = f"not looked at: {in_words(error)}"
            state = replace(self.kept, errors=(Trouble("box", why),))
        keep(self.folder, state)
        self.watched_s = math.inf if state.errors else time.monotonic()

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self.interrupted():
                raise _Interrupted
            time.sleep(min(TICK_S, left_s))


def marked(run: Run, troubles: Sequence[Trouble], beside: str = "") -> Run:
    """The record of a run that left the box unclean, if it did: ``gate`` says why,
    ``quarantined`` what is closed since then.
    """
    if not troubles:
        return run
    why = "; ".join(f"{trouble.scope}: {trouble.why}" for trouble in troubles) + beside
    closed = [run.quarantined] if run.quarantined else []
    closed += [trouble.scope + FOR_GOOD * (not trouble.passes) for trouble in troubles]
    return run.model_copy(update={"gate": why, "quarantined": ", ".join(dict.fromkeys(closed))})


# What was last read of a box, kept while runs go on, for a run whose machine goes down under it.

LOOK = "last-look.json"
"""In a batch's folder: the newest look at the box, for where the machine goes down."""


def keep(folder: Path, state: Any) -> None:
    """Leave a look in the folder of a batch; a full disk costs it."""
    if isinstance(state, BoxState):
        with suppress(OSError):
            write_atomic(folder / LOOK, to_json(state))


def before_the_end(batch: Path, run: Run, root: str = "") -> list[str]:
    """Of a run whose machine went down: what was read of that machine last, and what its kernel
    logged last, or why not.
    """
    began_s = time.time() - seconds_since(run.started_at)
    words = last_lines(run.boot_id, began_s, root)
    return [
        *_readings(batch, run.boot_id),
        "The kernel's last words before it, " + words[0],
        *words[1:],
    ]


def _readings(batch: Path, boot_id: str) -> Iterator[str]:
    head = "The last readings before it"
    try:
        look = read_state(whole(batch / LOOK))
    except FileNotFoundError:
        yield f"{head}: not available because nothing looked at that machine while it ran"
        return
    except (OSError, ValueError) as error:
        yield f"{head}: not available because {in_words(error)}"
        return
    if look.boot_id != boot_id:
        yield f"{head}: not available because the box was last looked at under another boot"
        return
    yield f"{head}, at {look.at}:"
    for gpu in look.gpus:
        for name, used, total in gpu.pools:
            yield f"{name} of {gpu.pci}: {show_bytes(used)} of {show_bytes(total)} in use"
        for one in gpu.holders:
            size = "memory not measured" if one.bytes is None else show_bytes(one.bytes)
            yield f"{one.name or 'a process'} ({one.pid}) on {gpu.pci}: {size}"
        for name, degrees, _ in gpu.celsius:
            yield f"{name} of {gpu.pci}: {degrees:g} degrees Celsius"
    sizes = {
        "host memory available": look.available_bytes,
        "free on the disk": look.disk_free_bytes,
    }
    for name, size_bytes in sizes.items():
        yield f"{name}: {'not available' if size_bytes is None else show_bytes(size_bytes)}"
    for trouble in look.errors:
        yield f"{trouble.scope}: {trouble.why}"
