"""The chunk planner: how large a chunk may be for other sizes, memory and ways of counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.ground.units import parse_size, show_bytes
from helpers.tell.html_table import text_html
from helpers.tell.panels.frame import Frame, Panel, Part, parts_html
from helpers.vpoc.counting import STRATEGIES
from helpers.vpoc.free import Free
from helpers.vpoc.planner import NoRoomError, Shape, plan, plans
from helpers.vpoc.view import plans_table


@dataclass(frozen=True)
class Planner:
    """What is counted, the memory it may take, and the way of counting.

    ``resident``: the inputs lie there already; else they are loaded too.
    """

    shape: Shape
    free: Free
    strategy: str = "preallocated"
    resident: bool = True

    def resized(self, trades: int, sessions: int, bins: int, free: str, gpu: bool) -> Planner:
        """The same with other sizes; ``free`` is a size such as 8GiB.

        The longest session grows with the mean one. Raises ValueError in one line.
        """
        if min(trades, sessions, bins) < 1:
            raise ValueError(
                f"{trades} trades, {sessions} sessions, {bins} prices: expected each above 0"
            )
        size = parse_size(free)
        before = self.shape
        growth = (trades / sessions) / max(1, before.trades / max(1, before.sessions))
        longest = min(trades, max(1, round(before.longest * growth)))
        shape = replace(before, trades=trades, sessions=sessions, bins=bins, longest=longest)
        memory = self.free
        if (size, gpu) != (memory.bytes, memory.gpu):
            memory = Free(size, "as given", gpu=gpu)
        return replace(self, shape=shape, free=memory)

    def says(self) -> str:
        """The plan in a sentence, or why there is none."""
        try:
            chosen = plan(self.strategy, self.shape, self.free, self.resident)
        except NoRoomError as error:
            return f"Does not fit: {error}"
        return f"{chosen.says}\nThe profiles themselves take {show_bytes(self.shape.result_bytes)}."

    def parts(self) -> list[Part]:
        """The plan of the way chosen."""
        return [self.says()]


def build_chunks(frame: Frame, planner: Planner) -> Sequence[Any]:
    """The sizes, the memory, the way of counting, and the plans."""
    shape = planner.shape
    free_words = show_bytes(planner.free.bytes)
    trades = frame.field("IntText", "Trades", shape.trades)
    sessions = frame.field("IntText", "Sessions", shape.sessions)
    bins = frame.field("IntText", "Prices a session", shape.bins)
    free = frame.field("Text", "Free memory", free_words, tooltip="such as 8GiB or 900MiB")
    gpu = frame.field("Checkbox", "on a GPU", planner.free.gpu)
    names = list(STRATEGIES)
    strategy = frame.field("Dropdown", "Way of counting", planner.strategy, options=names)
    resident = frame.field("Checkbox", "inputs are there already", planner.resident)
    controls = [trades, sessions, bins, free, gpu, strategy, resident]
    answers = frame.widgets.HTML()

    def look() -> None:
        size = free.value
        if size == free_words:  # as it was: to the byte, not as rounded on screen
            size = str(planner.free.bytes)
        chosen = replace(planner, strategy=strategy.value, resident=resident.value)
        resized = chosen.resized(trades.value, sessions.value, bins.value, size, gpu.value)
        way = f"{resized.strategy}: {STRATEGIES[resized.strategy].shows}"
        every = plans_table(plans(resized.shape, resized.free), resized.shape)
        answers.value = text_html(way) + parts_html([*resized.parts(), every])

    frame.changed(look, *controls)()
    return [*controls, answers]


PANEL = Panel("Chunk planner", Planner, build_chunks)
