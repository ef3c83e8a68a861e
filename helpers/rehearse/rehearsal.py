"""A rehearsal: where it was told to end, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.look.cards import GpuCard
from helpers.rehearse.holders import CardUse

STOPPED = 143  # the exit code of a program that SIGTERM ended
Told = Sequence[Mapping[str, Any]]
"""What the witness of each process wrote (helpers/rehearse/under_torch/witness.py)."""


@dataclass(frozen=True)
class RehearsalLimits:
    """Where a rehearsal ends by itself (0: nowhere): steps of an optimizer, seconds.

    ``values``: how many elements a result has whose size hangs on values that nobody computed:
    the least, half of all (typical), the most. ``gpus``: how many such cards the box has;
    collectives between them move nothing. ``cudnn_bytes``: of workspace for each call of cuDNN.
    ``world``: of how many processes the program is the one of ``rank``, without the others (0: it
    has none, or starts them itself). ``holds_buckets``: those of DistributedDataParallel's first
    step stay for another one. ``compiles``: what the program gives to torch.compile is compiled;
    then no values of the device are computed.
    """

    steps: int = 0
    seconds: float = 0.0
    values: str = "typical"
    gpus: int = 1
    cudnn_bytes: int = 0
    rank: int = 0
    world: int = 0
    holds_buckets: bool = False
    compiles: bool = False


UNLIMITED = RehearsalLimits()


@dataclass(frozen=True)
class Oom:
    """The first out-of-memory.

    Bytes asked for and free, the program's frames, and torch's words where it ended the program.
    """

    requested_bytes: int
    free_bytes: int
    frames: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found.

    ``exit_code`` is the program's; the peaks, retries and ooms are those of torch's statistics.

    ``ooms`` counts those too that the program caught. ``trace`` is ready for replay and
    what-if; None: ``why_no_trace``. ``exact``: nothing allocated is known to hang on values
    that were not computed. ``trust`` says what it rests on. ``at_least``: a process of it died,
    so the peaks are those it had reached. ``stopped``: by which limit, after ``steps`` of an
    optimizer. ``whose``: whose fault it is where it failed: memory, the program or the
    rehearsal, and why, in one line. ``more_bytes``: how much higher the peak may be by
    workspaces of libraries, of which only a range is known. ``at_once_bytes``: the most that
    cuDNN may ask for in one call, where a card has it (0: its workspaces are known).
    ``allocations``: how many there were in all, as far as was counted. ``expandable``: its segments were. ``devices``: what its
    processes held of each card. ``step_peaks``: the most that one process had allocated until
    which step of an optimizer began, where it rose. ``limits``: what it was told.
    ``has_buckets``: alone, it exchanged gradients as DistributedDataParallel does. ``compiled``:
    of how many functions it called what torch.compile returned.
    """

    device: GpuCard
    torch: str
    conf: str
    exit_code: int
    seconds: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    retries: int
    ooms: int
    oom: Oom | None
    trace: Path | None
    why_no_trace: str
    error: str
    exact: bool
    trust: tuple[str, ...]
    notes: tuple[str, ...]
    at_least: bool = False
    stopped: str = ""
    steps: int = 0
    whose: str = ""
    more_bytes: int = 0
    at_once_bytes: int = 0
    allocations: int = 0
    expandable: bool = False
    devices: tuple[CardUse, ...] = ()
    step_peaks: tuple[tuple[int, int], ...] = ()
    limits: RehearsalLimits = UNLIMITED
    has_buckets: bool = False
    compiled: int = 0

    @property
    def rank_in_words(self) -> str:
        """Which rank of a job it was without the others; else empty."""
        if not self.limits.world:
            return ""
        return f"rank {self.limits.rank} of {self.limits.world}"

    def peak_until_step(self, step: int) -> int:
        """The most that was allocated until that step of an optimizer began; 0 if none did."""
        if self.steps < step:
            return 0
        return max(
            (peak for begun, peak in self.step_peaks if begun <= step), default=0
        )

    @property
    def label(self) -> str:
        """What every figure and trace of it is to be called."""
        alone = f", {self.rank_in_words} alone" if self.limits.world else ""
        compiled = ", compiled by torch.compile" if self.limits.compiles else ""
        return f"rehearsed on {self.device.words}, torch {self.torch}{alone}{compiled}"

    @property
    def reserved_between(self) -> tuple[int, int] | None:
        """The least and the most that the reserved peak may be where cuDNN decides; else None.

        Its workspaces come and go, and what they leave is used again, so the peak may be lower,
        too, but not below what was allocated without them.
        """
        if (
            not self.at_once_bytes
            or not self.peak_allocated_bytes
            or not self.peak_reserved_bytes
        ):
            return None
        most_bytes = self.peak_reserved_bytes + self.at_once_bytes
        return self.peak_allocated_bytes, min(most_bytes, self.usable_bytes)

    @property
    def usable_bytes(self) -> int:
        """What the card has beside what others hold."""
        return self.device.total_bytes - self.device.held_bytes

    @property
    def left_bytes(self) -> int:
        """What the fullest card has left at the peak, with the most that workspaces may take.

        An expandable segment that asks in vain takes all that is left of the card before it gives
        it back, so then the card's own peak tells nothing of one process.
        """
        asked_in_vain = self.expandable and self.retries > 0
        counted = [
            use for use in self.devices if len(use.peak_bytes) > 1 or not asked_in_vain
        ]
        together_bytes = max((use.sum_bytes for use in counted), default=0)
        peak_bytes = (
            max(self.peak_reserved_bytes or 0, together_bytes) + self.more_bytes
        )
        return max(0, self.usable_bytes - peak_bytes)

    @property
    def too_much(self) -> CardUse | None:
        """The first card that does not hold what the processes on it need together."""
        for use in self.devices:
            if len(use.peak_bytes) > 1 and use.sum_bytes > self.usable_bytes:
                return use
        return None

    @property
    def fits(self) -> bool:
        """It ended well, without an out-of-memory or with one that it caught and went on from,
        and processes that share a card fit on it together.
        """
        went_on = self.ooms == 0 or not self.error
        return self.exit_code == 0 and went_on and not self.too_much

    @property
    def failed_otherwise(self) -> bool:
        """It failed, and not for want of memory."""
        return self.exit_code != 0 and not self.ooms

    @property
    def between(self) -> bool:
        """It fits with the least workspaces that its libraries may take, and not with the most."""
        return (
            self.fits
            and (self.peak_reserved_bytes or 0) + self.more_bytes > self.usable_bytes
        )

    @property
    def outcome(self) -> str:
        """fits, runs out, between the two, or what it ended with."""
        if self.between:
            return "between fits and runs out"
        if self.fits:
            return "fits so far" if self.stopped else "fits"
        return f"ended with {self.exit_code}" if self.failed_otherwise else "runs out"
