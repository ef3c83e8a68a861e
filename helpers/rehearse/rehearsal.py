"""A rehearsal: where it ends by itself, and what it found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from helpers.look.cards import GpuCard
from helpers.rehearse.holders import CardUse

STOPPED = 143
"""The exit code of a program that SIGTERM ended, sent by ``ends_after_s`` or by somebody."""


@dataclass(frozen=True)
class RehearsalLimits:
    """Where a rehearsal ends by itself, and what it takes for granted."""

    steps: int = 0
    """Of an optimizer; 0: as many as the program makes."""
    seconds: float = 0.0
    values: str = "typical"
    """How many elements a result has whose size hangs on values that nobody computed: the least,
    half of all (typical), the most.
    """
    gpus: int = 1
    """How many such cards the box has; collectives between them move nothing."""
    cudnn_bytes: int = 0
    """Of workspace for each call of cuDNN."""
    rank: int = 0
    world: int = 0
    """Of how many processes the program is the one of ``rank``, without the others; 0: it has none,
    or starts them itself.
    """
    holds_buckets: bool = False
    """The buckets of DistributedDataParallel's first step stay for another one."""
    compiles: bool = False
    """What the program gives to torch.compile is compiled; then no values of the device are
    computed.
    """


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
    """What a rehearsal found: peaks, retries and ooms are those of torch's own statistics."""

    device: GpuCard
    torch: str
    conf: str
    exit_code: int
    """The program's."""
    seconds: float
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    retries: int
    ooms: int
    """Those too that the program caught."""
    oom: Oom | None
    trace: Path | None
    """Ready for replay and what-if; None: ``why_no_trace``."""
    why_no_trace: str
    error: str
    exact: bool
    """Nothing that was allocated is known to hang on values that were not computed."""
    trust: tuple[str, ...]
    """What it takes for granted, a line each."""
    notes: tuple[str, ...]
    at_least: bool = False
    """A process of it died, so the peaks are those that it had reached."""
    stopped: str = ""
    """The limit that ended it from inside, "--steps" or "--seconds", after ``steps`` of an optimizer;
    empty where none did, also where SIGTERM ended it (STOPPED).
    """
    steps: int = 0
    whose: str = ""
    """Whose fault it is where it failed, and why: memory, the program or the rehearsal."""
    more_bytes: int = 0
    """How much higher the peak may be by what libraries take of which only a range is known."""
    at_once_bytes: int = 0
    """The most that cuDNN may ask for in one call, where a card has it; 0: it is known."""
    allocations: int = 0
    """How many there were in all, as far as was counted."""
    expandable: bool = False
    """The allocator's segments were."""
    devices: tuple[CardUse, ...] = ()
    """What its processes held of each card."""
    step_peaks: tuple[tuple[int, int], ...] = ()
    """The most that one process had allocated until a step of an optimizer began: the number of the
    step, and bytes; only steps in which it rose.
    """
    limits: RehearsalLimits = UNLIMITED
    has_buckets: bool = False
    """Alone, it exchanged gradients as DistributedDataParallel does."""
    compiled: int = 0
    """Of how many functions it called what torch.compile returned."""

    @property
    def rank_in_words(self) -> str:
        """Which rank of a job it was without the others; else empty."""
        if not self.limits.world:
            return ""
        return f"rank {self.limits.rank} of {self.limits.world}"

    @property
    def how_it_failed(self) -> str:
        """The error that ended it, else its exit code."""
        return self.error or f"it ended with exit code {self.exit_code}"

    def peak_until_step(self, step: int) -> int:
        """The most that was allocated until that step of an optimizer began; 0 if none did."""
        if self.steps < step:
            return 0
        peaks = [peak for begun, peak in self.step_peaks if begun <= step]
        return max(peaks, default=0)

    @property
    def label(self) -> str:
        """What every figure and trace of it is to be called."""
        words = f"rehearsed on {self.device.words}, torch {self.torch}"
        if self.limits.world:
            words += f", {self.rank_in_words} alone"
        if self.limits.compiles:
            words += ", compiled by torch.compile"
        return words

    @property
    def reserved_between(self) -> tuple[int, int] | None:
        """The least and the most that the reserved peak may be where cuDNN decides; else None.

        Its workspaces come and go, and what they leave is used again, so the peak may be lower,
        too, but not below what was allocated without them.
        """
        least_bytes = self.peak_allocated_bytes
        most_bytes = self.peak_reserved_bytes
        if not self.at_once_bytes or not least_bytes or not most_bytes:
            return None
        return least_bytes, min(most_bytes + self.at_once_bytes, self.usable_bytes)

    @property
    def usable_bytes(self) -> int:
        """What the card has beside what others hold."""
        return self.device.total_bytes - self.device.held_bytes

    @property
    def most_reserved_bytes(self) -> int:
        """The reserved peak, with the most that workspaces may take."""
        return (self.peak_reserved_bytes or 0) + self.more_bytes

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
        most_bytes = max(self.most_reserved_bytes, together_bytes + self.more_bytes)
        return max(0, self.usable_bytes - most_bytes)

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
        return self.fits and self.most_reserved_bytes > self.usable_bytes

    @property
    def outcome(self) -> str:
        """fits, runs out, between the two, or what it ended with."""
        if self.between:
            return "between fits and runs out"
        if self.failed_otherwise:
            return f"ended with {self.exit_code}"
        if not self.fits:
            return "runs out"
        return "fits so far" if self.stopped else "fits"
