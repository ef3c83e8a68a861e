"""What a rehearsal is told (RehearsalLimits) and what it found (Rehearsal)."""

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
    """Steps of an optimizer after which it ends; 0: as many as the program makes."""
    seconds: float = 0.0
    """Seconds after which it ends; 0: when the program ends."""
    values: str = "typical"
    """How many elements a result has whose size depends on values that are not computed: "least",
    "typical" (half of all), or "most".
    """
    gpus: int = 1
    """How many such cards the box has; collectives between them move nothing."""
    cudnn_bytes: int = 0
    """The workspace that each call of cuDNN takes."""
    rank: int = 0
    """Which rank of ``world`` the program is."""
    world: int = 0
    """How many ranks the job has, of which only this one runs; 0: the program is no such rank, or
    starts all of them itself.
    """
    holds_buckets: bool = False
    """The buckets of DistributedDataParallel's first step stay for another step."""
    compiles: bool = False
    """torch.compile compiles; then no values of the card are computed."""


UNLIMITED = RehearsalLimits()


@dataclass(frozen=True)
class Oom:
    """The first out-of-memory. ``free_bytes``: what the card had free; ``frames``: the stack that
    asked, the innermost first; ``message``: torch's words where the error ended the program.
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
    """The release that ran."""
    conf: str
    """The allocator's settings, as their variable has them; empty for none."""
    exit_code: int
    """Of the program."""
    seconds: float
    peak_allocated_bytes: int | None
    """None where it is not known; the same for the reserved peak."""
    peak_reserved_bytes: int | None
    retries: int
    """How often the allocator emptied its cache to go on."""
    ooms: int
    """How often memory ran out, also where the program caught the error."""
    oom: Oom | None
    trace: Path | None
    """The recording, for replay and whatif; None where there is none (``why_no_trace``)."""
    why_no_trace: str
    error: str
    """The program's last error in one line; empty for none."""
    exact: bool
    """Nothing that was allocated is known to depend on values that were not computed."""
    trust: tuple[str, ...]
    """What it takes for granted, a line each."""
    notes: tuple[str, ...]
    """What the recorder says of the recording, a line each."""
    at_least: bool = False
    """One of its processes died, so the peaks are those that it had reached."""
    stopped: str = ""
    """The limit that ended it from inside, "--steps" or "--seconds"; empty where none did, also
    where SIGTERM ended it (STOPPED).
    """
    steps: int = 0
    """Steps of an optimizer that it made."""
    whose: str = ""
    """Whose fault it is that it failed, and why: "the program: it needs a display"."""
    more_bytes: int = 0
    """How much higher the peak may be, since of what some libraries take only a range is known."""
    at_once_bytes: int = 0
    """The most that one call of cuDNN may ask for where a card has it; 0: no such range."""
    allocations: int = 0
    """How many allocations all processes made, as far as was counted."""
    expandable: bool = False
    """The allocator's segments were expandable."""
    devices: tuple[CardUse, ...] = ()
    """What its processes held of each card."""
    step_peaks: tuple[tuple[int, int], ...] = ()
    """Numbers of steps, each with the most bytes that one process had allocated when an optimizer
    began that step; only steps before which this rose.
    """
    limits: RehearsalLimits = UNLIMITED
    has_buckets: bool = False
    """As one rank without the others, it exchanged gradients in DistributedDataParallel's buckets.
    """
    compiled: int = 0
    """How many functions that torch.compile returned were called."""

    @property
    def rank_in_words(self) -> str:
        """Which rank of a job it was without the others; else empty."""
        if not self.limits.world:
            return ""
        return f"rank {self.limits.rank} of {self.limits.world}"

    @property
    def how_it_failed(self) -> str:
        """The error that ended it, else its exit code."""
        if self.error:
            return self.error
        return f"it ended with exit code {self.exit_code}"

    def peak_until_step(self, step: int) -> int:
        """The most that was allocated until that step of an optimizer began (the first is 1); 0
        where the program did not make so many.
        """
        if self.steps < step:
            return 0
        peaks = [peak for begun, peak in self.step_peaks if begun <= step]
        return max(peaks, default=0)

    @property
    def label(self) -> str:
        """The words that say with every figure and trace of it that it was rehearsed."""
        words = f"rehearsed on {self.device.words}, torch {self.torch}"
        if self.limits.world:
            words += f", {self.rank_in_words} alone"
        if self.limits.compiles:
            words += ", compiled by torch.compile"
        return words

    @property
    def reserved_between(self) -> tuple[int, int] | None:
        """The least and the most that the reserved peak may be on a real card with cuDNN; None
        where cuDNN does not decide.

        What its workspaces leave in the cache is used again, so that the reserved peak may be lower
        than without them, but not below what was allocated.
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
    def allocated_bytes(self) -> int:
        """The allocated peak; 0 where it is not known."""
        if self.peak_allocated_bytes is None:
            return 0
        return self.peak_allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The reserved peak; 0 where it is not known."""
        if self.peak_reserved_bytes is None:
            return 0
        return self.peak_reserved_bytes

    @property
    def most_reserved_bytes(self) -> int:
        """The reserved peak, with the most that workspaces may take."""
        return self.reserved_bytes + self.more_bytes

    @property
    def left_bytes(self) -> int:
        """What the fullest card has left at the peak, with the most that workspaces may take.

        Where a request fails, an expandable segment takes all that is left of the card, and gives
        it back: then what one process held of a card says nothing, and torch's own peak counts.
        """
        filled_the_card = self.expandable and self.retries > 0
        counted = self.devices
        # What several processes held still counts: torch has no peak of their sum.
        if filled_the_card:
            counted = tuple(use for use in counted if len(use.peak_bytes) > 1)
        together_bytes = max((use.sum_bytes for use in counted), default=0)
        most_bytes = max(self.most_reserved_bytes, together_bytes + self.more_bytes)
        return max(0, self.usable_bytes - most_bytes)

    @property
    def too_much(self) -> CardUse | None:
        """The first card too small for what its processes need together; None where each suffices."""
        for use in self.devices:
            if len(use.peak_bytes) > 1 and use.sum_bytes > self.usable_bytes:
                return use
        return None

    @property
    def fits(self) -> bool:
        """It ended well, without an out-of-memory or although memory ran out, and the processes
        that share a card fit on it together.
        """
        # A process may end with an error, although the program that started it ends with 0.
        went_on = self.ooms == 0 or not self.error
        return self.exit_code == 0 and went_on and not self.too_much

    @property
    def failed_otherwise(self) -> bool:
        """It failed for another reason than memory."""
        return self.exit_code != 0 and not self.ooms

    @property
    def between(self) -> bool:
        """It fits with the least that workspaces, or DistributedDataParallel's buckets, may take,
        and not with the most (``more_bytes``).
        """
        return self.fits and self.most_reserved_bytes > self.usable_bytes

    @property
    def outcome(self) -> str:
        """In a few words: fits, runs out, between the two, or the exit code of another failure."""
        if self.between:
            return "between fits and runs out"
        if self.failed_otherwise:
            return f"ended with {self.exit_code}"
        if not self.fits:
            return "runs out"
        if self.stopped:
            return "fits so far"
        return "fits"
