"""What the recording of a program shows of how it failed: typed facts for the judge.

The allocator's room reads the recording and works them out (allocator.program_facts); nothing
here reads a file. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from helpers.settings.trouble import SettingsTrouble


@dataclass(frozen=True)
class Refusal:
    """The allocator at the request that the card refused.

    ``where``: the program's own line that asked, empty where it is not known; ``callers``: its
    own lines that led there, the nearest first.
    ``fails_in_replay``: no such request was recorded; the replay on this card refuses it.
    ``allowed_bytes``: what the program let itself have of the card; 0 where it set no limit.
    ``of_optimizer``: the code of an optimizer asked for it.
    """

    request_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    where: str = ""
    callers: Tuple[str, ...] = ()
    fails_in_replay: bool = False
    allowed_bytes: int = 0
    of_optimizer: bool = False

    @property
    def room_bytes(self) -> int:
        """What the card has for this process: what it holds and what is free."""
        return self.reserved_bytes + self.device_free_bytes

    @property
    def is_limited(self) -> bool:
        """Whether the program's own limit is below what the card has for it."""
        return 0 < self.allowed_bytes < self.room_bytes

    @property
    def usable_bytes(self) -> int:
        """How much this process can have of the card."""
        if self.is_limited:
            return self.allowed_bytes
        return self.room_bytes

    @property
    def unused_bytes(self) -> int:
        """What the process holds of the card and does not use."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def missing_bytes(self) -> int:
        """What would be missing even if all that is unused lay in one piece; 0 for none."""
        return max(0, self.allocated_bytes + self.request_bytes - self.usable_bytes)


@dataclass(frozen=True)
class GrowerFacts:
    """Memory of which the program keeps more with each step.

    ``line``: where it is kept, else where it is asked for; ``asked_at``: the line that asks for
    it; ``keeper``: the variable, list or attribute that holds it, empty where it is not known.
    How it is kept: ``through_graph``: one tensor, whose autograd graph holds all earlier ones;
    ``with_graphs``: tensors of a collection, each with the graph that made it;
    ``tensors_alone``: tensors of a collection, whose graphs keep no more;
    ``in_circle``: objects that refer to each other, while Python's garbage collector is off.
    """

    line: str
    asked_at: str
    bytes_per_step: int
    kept_bytes: int
    keeper: str = ""
    through_graph: bool = False
    with_graphs: bool = False
    tensors_alone: bool = False
    in_circle: bool = False


@dataclass(frozen=True)
class GrowthFacts:
    """What grows over the steps of the program, the most telling first.

    ``steps``: those in which ``kept_bytes`` were kept, the running one included; all of them
    where nothing grows.
    ``may_be_one_step``: no backward pass was recorded, and a state that each of them makes of the
    one before carries a graph: they may be parts of one step. ``is_later``: the steps come after
    the request that failed, so how much had grown until then is not known. ``rest_bytes``: what
    the step that failed needs at once beside what was kept; 0 where it is not known.
    ``rest_so_far_bytes``: what it had live with the refused request beside what was kept, and
    ``usual_rest_bytes``: the most of that in a step before it; 0 where they are not known.
    """

    growers: Tuple[GrowerFacts, ...]
    steps: int
    rest_bytes: int = 0
    rest_so_far_bytes: int = 0
    usual_rest_bytes: int = 0
    may_be_one_step: bool = False
    is_later: bool = False

    @property
    def bytes_per_step(self) -> int:
        return sum(grower.bytes_per_step for grower in self.growers)

    @property
    def kept_bytes(self) -> int:
        return sum(grower.kept_bytes for grower in self.growers)


@dataclass(frozen=True)
class Repeat:
    """The program rehearsed once more: on how large a card, with which settings, and how it
    ended.

    ``stopped``: by which limit, so that the peaks are those reached until then.
    ``whole_step_bytes``: the peak until the step had ended in which the program had failed; 0
    where that is not known.
    """

    capacity_bytes: int
    conf: str
    fits: bool
    stopped: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    whole_step_bytes: int = 0

    @property
    def repeatable_peak_bytes(self) -> int:
        """The peak that every such run reaches: where a limit ended this one, that of the step in
        which the program had failed.
        """
        if self.stopped:
            return self.whole_step_bytes
        return self.peak_allocated_bytes

    @property
    def finishes(self) -> bool:
        """Whether the program ended by itself, without an error."""
        return self.fits and not self.stopped


@dataclass(frozen=True)
class Replays:
    """What the recorded requests do under other settings, up to the end of the recording.

    ``passes_with``: the setting under which all of them are met, None where no setting does
    that; ``needs_bytes``: then, how much larger the card would have to be. ``peak_bytes``: the
    most that is reserved under that setting, 0 where it is not known.
    """

    passes_with: str | None
    needs_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True)
class CardFacts:
    """What the processes of a program need of one card together.

    ``unused_bytes``: what those of them kept cached at their end without using it.
    """

    index: int
    processes: int
    bytes: int
    unused_bytes: int = 0


@dataclass(frozen=True)
class Holding:
    """What one line of the program holds when most is live."""

    line: str
    bytes: int


@dataclass(frozen=True)
class IdleCheckpointing:
    """Gradient checkpointing that was on without effect as a request was refused: the class of the
    model, and the line of the program that switches to evaluation, empty where it is not known.
    """

    model: str
    where: str = ""


@dataclass(frozen=True)
class FirstChange:
    """The change of the program's sources that ``casebook fix`` tries first: in the imperative,
    and what the program pays for it, empty for nothing.
    """

    title: str
    costs: str = ""


@dataclass(frozen=True)
class ProgramFacts:
    """What the recording of a program shows.

    ``source``: what the figures rest on, such as "recording of train.pickle". ``is_real``: torch's
    own allocator ran, on a card or in a rehearsal; a made trace proves something about itself
    alone. ``exit_code``: None where no record says how the program ended. ``ooms``: how often a
    request was refused, caught ones included. ``recording_is_whole``: it does not end at a request
    that was refused when it was recorded. ``usable_bytes``: what the process can have of the card;
    0 where that is not known. ``fraction``: the share of the card that the program lets itself have
    (set_per_process_memory_fraction). ``most_live_before_bytes``: the most that was live at any
    time before the refused request; ``steps_as_full``: in how many steps it was as much as with
    that request. ``more_to_come_bytes``: what was still to come at the same place whenever it was
    come to before, for no larger a request. ``conf_variable``: the name that this build reads the
    allocator's settings from. ``reached_first_step``: the first step had ended when a request was
    refused. ``asked_before_forward_bytes``: what was asked for before the first forward pass of a
    module and is live at the refused request, as weights are; of a program that reached none, what
    the code of a model asked for. ``trained_bytes``: the gradients and the optimizer's state then.
    ``runs_out_in_step``: the step in which what grows fills the card, of a program that was ended
    before that; 0 where nothing does, or not soon. ``trace``: the file, as it is typed in commands.
    ``command``: the program's, empty where no record has it. ``first_change``: None where nobody
    looked for one in its sources.
    """

    source: str
    is_real: bool = True
    exit_code: int | None = None
    ooms: int = 0
    capacity_bytes: int = 0
    usable_bytes: int = 0
    fraction: float | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    allocated_at_end_bytes: int = 0
    recording_is_whole: bool = True
    refusal: Refusal | None = None
    most_live_before_bytes: int = 0
    steps_as_full: int = 0
    more_to_come_bytes: int = 0
    growth: GrowthFacts | None = None
    runs_out_in_step: int = 0
    reached_first_step: bool = True
    replays: Replays | None = None
    without_limit: Repeat | None = None
    expandable: Repeat | None = None
    holding: Tuple[Holding, ...] = ()
    asked_before_forward_bytes: int = 0
    trained_bytes: int = 0
    cards: Tuple[CardFacts, ...] = ()
    settings: SettingsTrouble | None = None
    idle_checkpointing: IdleCheckpointing | None = None
    conf_variable: str = "PYTORCH_CUDA_ALLOC_CONF"
    trace: str = "TRACE"
    command: str = ""
    card_options: str = ""
    first_change: Optional[FirstChange] = None  # noqa: UP045  (read by Python 3.8)
