"""Whether a box is clean enough for the next run: what differs from what it was like before, and what is closed until it is.

The rule is that of ORNL's checknode on Frontier (Cray User Group 2023): a clean check may lift only what the check itself set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers.load.targets import SLACK_BYTES
from helpers.units import pci_address, show_bytes

from .box_state import BoxState, GpuState, Held, Trouble, measure
from .record import boot_id, in_words
from .shapes import Gates, Run

__all__ = ["BoxState", "GpuState", "Held", "Trouble", "measure"]
FIRST_PAUSE_S, LONGEST_PAUSE_S, TICK_S = 0.1, 2.0, 0.2
FOR_GOOD = " (for good)"


def unclean(before: BoxState, after: BoxState, gates: Gates) -> tuple[Trouble, ...]:
    """Why a box is not clean: what happened by ``after``, and how its memory, holders, heat and disk differ from ``before``.

    Pure. After a reboot only what needs no comparison is judged. Of what either look could not read nothing is said.
    """
    troubles, same_boot = list(after.errors), before.boot_id == after.boot_id
    earlier = {gpu.pci: gpu for gpu in before.gpus} if same_boot else {}
    for pci in earlier.keys() - {gpu.pci for gpu in after.gpus}:
        why = "the GPU is gone: it was there before and no layer shows it now"
        troubles.append(Trouble(f"gpu {pci}", why, False))
    for gpu in after.gpus:
        whys = [*_too_hot(gpu, gates.temperature_c)]
        whys += _still_used(earlier[gpu.pci], gpu, gates) if gpu.pci in earlier else ()
        troubles += [Trouble(f"gpu {gpu.pci}", why) for why in whys]
    return tuple(troubles + [Trouble("box", why) for why in _host(before, after, gates)])


def _host(before: BoxState, after: BoxState, gates: Gates) -> Iterator[str]:
    had, has = before.available_bytes, after.available_bytes
    if had is not None and has is not None and before.boot_id == after.boot_id:
        least = had - _allowed(after.total_bytes or 0, gates)
        if has < least:
            expected = f"expected at least {show_bytes(least)} as before"
            yield f"{show_bytes(has)} of host memory available, {expected}"
    disk, free = f"the disk of {after.folder}", after.disk_free_bytes
    if after.read_only:
        yield f"{disk} is mounted read-only, expected one that can be written"
    elif free is not None and free < gates.disk_free_bytes:
        expected = f"expected at least {show_bytes(gates.disk_free_bytes)}"
        yield f"{show_bytes(free)} free on {disk}, {expected}"


def _allowed(total_bytes: int, gates: Gates) -> int:
    return max(SLACK_BYTES, int(gates.memory_back_fraction * total_bytes))


def _still_used(before: GpuState, after: GpuState, gates: Gates) -> Iterator[str]:
    known = {(held.pid, held.start_ticks) for held in before.holders}
    for held in after.holders:
        # A desktop opens and closes small clients all the time; one that cannot be ended holds the GPU whatever its size.
        matters = held.bytes is None or held.bytes > SLACK_BYTES or held.state == "D"
        if matters and (held.pid, held.start_ticks) not in known:
            size = "memory that was not measured" if held.bytes is None else show_bytes(held.bytes)
            state = " and waits inside the kernel (state D)" if held.state == "D" else ""
            who = f"{held.name or 'a process'} ({held.pid})"
            yield f"{who} holds {size}{state}, expected no holder that was not there before"
    earlier = {layer: used for layer, used, _ in before.pools}
    for layer, used, total in after.pools:
        most = earlier.get(layer, used) + _allowed(total, gates)
        if used > most:
            expected = f"expected at most {show_bytes(most)} ({show_bytes(earlier[layer])} before)"
            yield f"{layer}: {show_bytes(used)} used, {expected}"


def _too_hot(gpu: GpuState, limit: float | None) -> Iterator[str]:
    for sensor, degrees, critical in gpu.celsius:
        most = min((one for one in (limit, critical) if one is not None), default=None)
        if most is not None and degrees >= most:
            yield f"{sensor}: {degrees:g} degrees Celsius, expected below {most:g}"


def settle(
    before: BoxState,
    gates: Gates,
    look: Callable[[], BoxState],
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Trouble, ...]:
    """Look until the box is clean, for ``gates.settle_s`` seconds at most; what is still wrong, or nothing.

    What happened is not waited for, only what may pass: memory, holders, heat. Give the batch's first look as ``before``, so
    that many small leaks add up, and a ``look`` since the latest one, so that one fault counts once.
    """
    happened: tuple[Trouble, ...] = ()
    waited, pause = 0.0, FIRST_PAUSE_S
    while True:
        state = look()
        # A later look does not name again what an earlier one did.
        happened = tuple(dict.fromkeys((*happened, *state.errors)))
        troubles = unclean(before, replace(state, errors=happened), gates)
        passing = [one for one in troubles if one.passes and one not in happened]
        if waited >= gates.settle_s or not passing:
            return troubles
        sleep(pause)
        waited, pause = waited + pause + state.seconds, min(2 * pause, LONGEST_PAUSE_S)


class Quarantine:
    """What a batch keeps its hands off, and why: a whole box, or one GPU of it. It holds state alone.

    ``add`` takes what the gate saw and what others know, such as a process that SIGKILL did not end; theirs never passes.
    """

    def __init__(self) -> None:
        self.troubles: tuple[Trouble, ...] = ()

    def add(self, *troubles: Trouble) -> None:
        """Keep these scopes out. What is added twice of one scope is kept once."""
        self.troubles = tuple(dict.fromkeys((*self.troubles, *troubles)))

    def lifted(self, seen: Iterable[Trouble]) -> tuple[Trouble, ...]:
        """What a look lifts that saw only ``seen``: passing troubles of the scopes that are clean now."""
        unclean = {trouble.scope for trouble in seen}
        gone = [one for one in self.troubles if one.passes and one.scope not in unclean]
        self.troubles = tuple(one for one in self.troubles if one not in gone)
        return tuple(gone)

    def refuses(self, run: Any) -> str:
        """Why this run must not start, or empty. ``run`` has ``gpu`` and ``danger`` (a Run or a Step).

        A box refuses every run. A GPU refuses those that name it, and those that name none and do more than look.
        """
        named, looks = pci_address(run.gpu) or run.gpu, run.danger == "looks"
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

    ``gate`` has ``measure`` and ``settle`` as this module; without it only what a run itself proves is closed. ``interrupted``
    says whether the batch is to stop: it ends a wait.
    """

    def __init__(self, gate: Any, gates: Gates, folder: Path, interrupted: Callable[[], bool]):
        self.gate, self.gates, self.folder, self.interrupted = gate, gates, folder, interrupted
        self.quarantine = Quarantine()
        self.first: Any = None
        self.last: Any = None
        self.blind = ""

    def take_up(self, runs: Iterable[Run]) -> None:
        """What earlier runs of the batch closed under this boot, and what is wrong with the box before the first run."""
        for run in runs:
            if run.quarantined and run.boot_id == boot_id():
                for scope in run.quarantined.split(", "):
                    why, passes = run.gate or run.cause, not scope.endswith(FOR_GOOD)
                    self.quarantine.add(Trouble(scope.removesuffix(FOR_GOOD), why, passes))
        self.quarantine.add(*self._look())

    def refuses(self, run: Run, idle: bool) -> str:
        """Why a run must not start, or nothing. While nothing runs, a look may open again what only a look has closed."""
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
        """Look at the box after these runs; the records of those that left it unclean, or after which nothing could be seen."""
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
            self.blind = f"not looked at: {in_words(error)}"
            return ()

    def _measure(self) -> Any:
        self.last = self.gate.measure(folder=self.folder, since=self.last)
        return self.last

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if self.interrupted():
                raise _Interrupted
            time.sleep(min(TICK_S, left_s))


def marked(run: Run, troubles: Sequence[Trouble], beside: str = "") -> Run:
    """The record of a run that left the box unclean, if it did: ``gate`` says why, ``quarantined`` what is closed since then."""
    if not troubles:
        return run
    why = "; ".join(f"{trouble.scope}: {trouble.why}" for trouble in troubles) + beside
    closed = [run.quarantined] if run.quarantined else []
    closed += [trouble.scope + FOR_GOOD * (not trouble.passes) for trouble in troubles]
    return run.model_copy(update={"gate": why, "quarantined": ", ".join(dict.fromkeys(closed))})
