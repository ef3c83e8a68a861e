"""The chunk planner: how many trades at a time are right for a way of counting on so much free memory, by its closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.load.vpoc import answer
from helpers.load.vpoc.memory import Shape
from helpers.load.vpoc.planner import Free, PlanError, plan
from helpers.load.vpoc.strategies import STRATEGIES
from helpers.look.reading import parse_size, show_bytes
from helpers.tell import vpoc

from .frame import Frame, Part, present, text_html

NAME = "Chunk planner"


@dataclass(frozen=True)
class Planner:
    """What is counted, the memory it may take, and the way of counting. Inputs lie there already, or are loaded too."""

    shape: Shape
    free: Free
    strategy: str = "preallocated"
    resident: bool = True

    def asked(self, trades: int, sessions: int, bins: int, free: str, gpu: bool) -> Planner:
        """The same with other sizes; free is a size such as 8GiB. The longest session grows with the mean one. ValueError."""
        if min(trades, sessions, bins) < 1:
            raise ValueError(
                f"{trades} trades, {sessions} sessions, {bins} prices: expected each above 0"
            )
        size, old = parse_size(free), self.shape
        longest = round(
            old.longest * (trades / sessions) / max(1, old.trades / max(1, old.sessions))
        )
        shape = replace(
            old, trades=trades, sessions=sessions, bins=bins, longest=min(trades, max(1, longest))
        )
        same = (size, gpu) == (self.free.bytes, self.free.gpu)
        return replace(
            self, shape=shape, free=self.free if same else Free(size, "as given", gpu=gpu)
        )

    def says(self) -> str:
        """The plan in a sentence, or why there is none."""
        try:
            made = plan(self.strategy, self.shape, self.free, self.resident)
        except PlanError as error:
            return f"Does not fit: {error}"
        return f"{made.says}\nThe profiles themselves take {show_bytes(self.shape.result_bytes)}."

    def static(self) -> list[Part]:
        """The plan of the way chosen, and of every other with its inputs there already."""
        return [self.says(), vpoc.plans_table(answer.plans(self.shape, self.free), self.shape)]


def build(frame: Frame, planner: Planner) -> Sequence[Any]:
    """The sizes, the memory, the way of counting, and the plans."""
    shape, given = planner.shape, show_bytes(planner.free.bytes)
    trades, sessions = (
        frame.field("IntText", "Trades", shape.trades),
        frame.field("IntText", "Sessions", shape.sessions),
    )
    bins = frame.field("IntText", "Prices a session", shape.bins)
    free = frame.field("Text", "Free memory", given, tooltip="such as 8GiB or 900MiB")
    gpu = frame.field("Checkbox", "on a GPU", planner.free.gpu)
    strategy = frame.field(
        "Dropdown", "Way of counting", planner.strategy, options=list(STRATEGIES)
    )
    resident = frame.field("Checkbox", "inputs are there already", planner.resident)
    says, listed = frame.widgets.HTML(), frame.widgets.HTML()

    def look() -> None:
        size = str(planner.free.bytes) if free.value == given else free.value
        now = replace(planner, strategy=strategy.value, resident=resident.value)
        now = now.asked(trades.value, sessions.value, bins.value, size, gpu.value)
        says.value = text_html(f"{now.strategy}: {STRATEGIES[now.strategy].shows}")
        listed.value = "".join(text_html(str(part)) for part in now.static())

    frame.changed(look, trades, sessions, bins, free, gpu, strategy, resident)()
    return [trades, sessions, bins, free, gpu, strategy, resident, says, listed]


def show(shape: Shape, free: Free, strategy: str = "preallocated") -> None:
    """The panel, or the plans where nobody is there."""
    planner = Planner(shape, free, strategy)
    present(NAME, planner.static, lambda frame: build(frame, planner))
