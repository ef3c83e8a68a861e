"""The limits that the layers between the RAM and torch put on memory, and the plan for TTM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.ground.units import near
from helpers.judge import ttm_limit as limits
from helpers.judge.ceilings import Stack
from helpers.judge.ceilings import ceilings as read_ceilings
from helpers.judge.diagnosis import diagnose
from helpers.judge.ttm_plan import planned_step, ttm_answer
from helpers.judge.ttm_verify import verify
from helpers.look.archive import BundleError
from helpers.tell import ttm
from helpers.tell.shown import Shown


class Ceilings(Result):
    """Every layer's limit on the first GPU of a box, and which one binds.

    ``stack`` holds them as data; ``stack.decision`` says which binds and why.
    """

    def __init__(self, box: Box, stack: Stack) -> None:
        self.box = box
        self.stack = stack

    @property
    def view(self) -> Shown:
        return ttm.ceilings_table(self.stack)

    @property
    def bars(self) -> Shown:
        """The limits as bars on one scale; a line marks the one that binds."""
        return ttm.ceilings_bars(self.stack)

    @property
    def binding_bytes(self) -> int | None:
        """The lowest limit in bytes, None where no layer is known to bind."""
        return self.stack.decision.binding_bytes

    @property
    def at_the_limit(self) -> list[str]:
        """The names of all layers whose limit equals the one that binds, to a small rounding; none
        where no layer is known to bind.
        """
        lowest = self.binding_bytes
        if not lowest:
            return []
        # A row without a layer limits nothing that a program allocates.
        limits_read = [row for row in self.stack.rows if row.layer and row.value.ok]
        return [row.name for row in limits_read if near(row.value.bytes, lowest)]

    @property
    def mistaken(self) -> Shown | None:
        """What is often set instead of TTM's limit; None where the GPU does not share the RAM."""
        if self.stack.kind != "apu":
            return None
        return ttm.mistaken_table()

    @property
    def _room(self) -> limits.Room | None:
        """What TTM's limit depends on, such as the RAM; None where the GPU does not
        share the RAM.
        """
        if self.stack.kind != "apu":
            return None
        return limits.room(self.box.facts, self.stack)

    def reserves(self, gib: Sequence[float] = (8,)) -> Shown | None:
        """The limit that each reserve for the system, in GiB, leaves, and the largest model for it.

        None where TTM limits no GPU of the box.
        """
        if not ttm.applies(self.stack):
            return None
        return ttm.reserves_table(self._room, gib)

    def panel(self) -> None:
        """Show a slider of RAM to keep for the system, or what its first position leaves.

        Shows nothing where TTM limits no GPU of the box.
        """
        if not ttm.applies(self.stack):
            return
        from helpers.tell.panels.questions import ceilings as panel

        panel.show(self.stack, self._room)


class TtmPlan(Result):
    """Whether TTM's limit should be set on a box, to how much, and with which commands.

    ``answer`` holds the plan as data. Its commands are printed and never run.
    """

    def __init__(
        self, box: Box, reserve_bytes: int | None, target_bytes: int | None
    ) -> None:
        self.box = box
        self.stack = read_ceilings(box.facts)[0]
        self.answer = ttm_answer(box.facts, reserve_bytes, target_bytes)
        self.reserve_bytes = reserve_bytes
        self.target_bytes = target_bytes

    @property
    def view(self) -> Shown:
        return ttm.decision_table(self.stack, self.answer)

    @property
    def applies(self) -> bool:
        """Whether TTM can limit the GPU of this box: one of AMD that shares the RAM, or may share
        it.
        """
        return ttm.applies(self.stack)

    def verdict(self) -> Answer:
        """The verdict on the box. If its next step sets TTM's limit, it sets the limit of this
        plan.
        """
        verdict = diagnose(self.box.evidence)
        usual = planned_step(self.box.facts, verdict.cause)
        ours = planned_step(
            self.box.facts, verdict.cause, self.reserve_bytes, self.target_bytes
        )
        # None: the cause is not the one that the limits show, or nothing is to be changed.
        if not ours or not usual:
            return Answer(verdict)
        sets_the_limit = verdict.next_step.command == usual.command
        if sets_the_limit:
            verdict = replace(verdict, next_step=ours)
        return Answer(verdict)

    @property
    def commands(self) -> str:
        """The commands that set, undo and check the limit on this distribution."""
        return ttm.command_text(self.answer)

    def recommends(self, command: str) -> bool:
        """Whether ``command`` is one of the plan's own."""
        return command in [planned.run for planned in self.answer.commands]

    def change_since(self, earlier: Box | str) -> Shown:
        """Which layers took a change that was made after ``earlier`` was captured.

        Raises BundleError where that is no bundle.
        """
        try:
            before = as_box(earlier).facts
        except BundleError as error:
            raise BundleError(f"earlier: {error}") from error
        changes = verify(before, self.box.facts, target_bytes=self.target_bytes)
        return ttm.verify_table(changes)


def ceilings(box: Box | str = "live") -> Ceilings:
    """Every ceiling between the RAM and torch on the first GPU of a box; sizes are bytes."""
    box = as_box(box)
    return Ceilings(box, read_ceilings(box.facts)[0])


def ttm_plan(box: Box | str = "live", reserve: str = "", target: str = "") -> TtmPlan:
    """The safe limit of TTM for a box whose GPU shares its RAM, and how to set and undo it.

    ``reserve`` is the RAM to keep for the system, such as ``8GiB``; ``target`` the limit itself.
    Raises ValueError in one line for a text that is no size, and for more than the box has.
    """
    reserve_bytes = limits.wanted_bytes(reserve)
    target_bytes = limits.wanted_bytes(target)
    return TtmPlan(as_box(box), reserve_bytes, target_bytes)
