"""The panel of the chunk planner: the chunk that fits for other sizes, memory and ways
of counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from helpers.ground.units import parse_count, parse_size, show_bytes
from helpers.tell.panels.frame import Frame, Panel, Part, parts_html
from helpers.vpoc.counting import STRATEGIES
from helpers.vpoc.free import Free
from helpers.vpoc.planner import NoRoomError, ProfileShape, plan, plans, runs_on
from helpers.vpoc.view import plans_table


@dataclass(frozen=True)
class Planner:
    """What is counted, the memory it may take, and the way of counting."""

    shape: ProfileShape
    free: Free
    strategy: str = "preallocated"

    def resized(
        self, trades: int, sessions: int, bins: int, free: str, gpu: bool
    ) -> Planner:
        """The same with other sizes; ``free`` is a size such as 8GiB. Raises ValueError in one
        line.
        """
        memory = self.free
        free_bytes = parse_size(free)
        if (free_bytes, gpu) != (memory.bytes, memory.gpu):
            memory = Free(free_bytes, "what was typed", gpu=gpu)
        shape = replace(self.shape, trades=trades, sessions=sessions, bins=bins)
        return replace(self, shape=shape, free=memory)

    def says(self) -> str:
        """The plan in a sentence, or why there is none."""
        if not runs_on(self.strategy, self.free):
            says = "runs on the CPU alone: choose another way, or no GPU."
            return f"{self.strategy} {says}"
        try:
            chosen = plan(self.strategy, self.shape, self.free)
        except NoRoomError as error:
            return f"Does not fit: {error}"
        result = show_bytes(self.shape.result_bytes)
        return f"{chosen.says}\nThe profiles themselves take {result}."

    def parts(self) -> list[Part]:
        """What the panel shows without widgets: the plan for the chosen way."""
        return [self.says()]


def build_chunks(frame: Frame, planner: Planner) -> Sequence[object]:
    """The widgets: fields for the sizes, the memory and the way of counting, and the plans for
    them.
    """
    shape = planner.shape
    free_words = show_bytes(planner.free.bytes)
    trades = frame.field("Text", "Trades", f"{shape.trades:,}")
    sessions = frame.field("Text", "Sessions", f"{shape.sessions:,}")
    bins = frame.field("Text", "Prices a session", f"{shape.bins:,}")
    free = frame.field(
        "Text", "Free memory", free_words, tooltip="such as 8GiB or 900MiB"
    )
    gpu = frame.field("Checkbox", "on a GPU", planner.free.gpu)
    names = list(STRATEGIES)
    strategy = frame.field(
        "Dropdown", "Way of counting", planner.strategy, options=names
    )
    controls = [trades, sessions, bins, free, gpu, strategy]
    answers = frame.answer()

    def look() -> None:
        size = free.value
        if size == free_words:
            # Unchanged, so the exact size counts, and not the rounded one on the screen.
            size = str(planner.free.bytes)
        chosen = replace(planner, strategy=strategy.value)
        resized = chosen.resized(
            parse_count(trades.value),
            parse_count(sessions.value),
            parse_count(bins.value),
            size,
            gpu.value,
        )
        all_plans = plans_table(plans(resized.shape, resized.free), resized.shape)
        answers.value = parts_html([*resized.parts(), all_plans])

    frame.changed(look, *controls)()
    return [*controls, answers]


PANEL = Panel("Chunk planner", Planner, build_chunks)
