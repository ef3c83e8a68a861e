"""The allocator what-if: other settings, another card, and a step through the requests on the
segment map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from helpers.allocator.driver import Card
from helpers.allocator.operations import OOM, OUTCOMES
from helpers.allocator.outcome import Outcome
from helpers.allocator.study import Study
from helpers.allocator.trace import Op
from helpers.allocator.views import studies
from helpers.allocator.views.segment_map import segment_map
from helpers.ground.units import parse_capacity, show_bytes
from helpers.settings.in_force import grid
from helpers.settings.releases import behaviour
from helpers.tell.html_table import text_html
from helpers.tell.panels.frame import Frame, Panel, Part, parts_html
from helpers.tell.shown import Shown

STRANDING = 12
"""Segments listed below the map, those that strand most first."""


@dataclass(frozen=True)
class Bench:
    """A study with its replay. A number names an operation of the trace, from 0."""

    study: Study

    def under(self, capacity: str, conf: str) -> Bench:
        """The same trace on another card, under other settings. Raises ValueError in one line."""
        card = Card(parse_capacity(capacity), self.study.card.held_bytes)
        return Bench(replace(self.study, card=card, conf=conf))

    @cached_property
    def outcome(self) -> Outcome:
        return self.study.replay(timeline=True)

    @property
    def moment(self) -> int:
        """Where a look begins: at the first out-of-memory, else where most was reserved."""
        return studies.moment_of(self.outcome)

    def event(self, number: int, ahead: bool) -> int:
        """The nearest operation after (before) this one that changed the segments or ran out;
        this one where there is none.
        """
        reserved = self.outcome.column("reserved")
        moves = np.diff(reserved, prepend=0) != 0
        fails = self.outcome.column("out") == OOM
        events = np.flatnonzero(moves | fails)
        if ahead:
            near = events[events > number][:1]
        else:
            near = events[events < number][-1:]
        return int(near[0]) if len(near) else number

    def words(self, number: int) -> str:
        """One operation: what was asked, what came of it, and what was held after it."""
        trace = self.study.trace
        reserved = show_bytes(int(self.outcome.column("reserved")[number]))
        allocated = show_bytes(int(self.outcome.column("allocated")[number]))
        request = Op(int(trace.op[number])).name.lower().replace("_", " ")
        if trace.op[number] == Op.ALLOC:
            request += f" {show_bytes(int(trace.size[number]))}"
        end = OUTCOMES[int(self.outcome.column("out")[number])].replace(
            "oom", "OUT OF MEMORY"
        )
        return (
            f"operation {number}, the last is {len(trace) - 1}: {request}, {end}; "
            f"{reserved} reserved, {allocated} allocated"
        )

    def says(self) -> str:
        """The whole run in a sentence."""
        done = self.outcome
        end = "every request is met"
        if done.first_oom is not None:
            size = show_bytes(done.first_oom_bytes)
            end = f"requests that fail: {done.ooms}, the first is operation {done.first_oom} ({size})"
        most = f"at most {show_bytes(done.peak_reserved_bytes)} reserved"
        return f"{self.study.words}\n{end}; {most}, {done.slow_calls} slow calls"

    def map(self, number: int) -> Shown:
        """The segment map after an operation."""
        seen = self.study.replay(stop=number + 1)
        return segment_map(
            self.study.trace, self.outcome, seen, f"After operation {number}"
        )

    def parts(self) -> list[Part]:
        """Where a look begins."""
        return [self.words(self.moment)]


def build(frame: Frame, bench: Bench) -> Sequence[object]:
    """Card and settings; the run; the step through it with the map."""
    study = bench.study

    card = show_bytes(study.card.capacity_bytes)
    capacity = frame.field("Text", "Card", card, tooltip="such as 20GiB")
    conf = frame.field(
        "Combobox",
        "Settings",
        study.conf,
        True,
        options=[conf for conf in grid(behaviour(study.torch, study.build)) if conf],
        placeholder="empty: the default; else as in PYTORCH_CUDA_ALLOC_CONF",
        ensure_option=False,
    )
    at = frame.field(
        "IntSlider",
        "Operation",
        bench.moment,
        True,
        min=0,
        max=len(study.trace) - 1,
        tooltip="arrow keys step by one operation",
    )
    run, moment, drawn = (frame.answer() for _ in range(3))

    def look() -> None:
        nonlocal bench
        size = capacity.value
        if size == card:
            size = str(study.card.capacity_bytes)
        bench = bench.under(size, conf.value.strip())
        run.value = text_html(bench.says())
        if at.value == bench.moment:
            step()
        at.value = bench.moment

    def step() -> None:
        moment.value = text_html(bench.words(at.value))
        seen = bench.map(at.value)
        parts: list[Part] = []
        if seen.cells:
            parts = [seen, replace(seen, draw=None, notes=(), most=STRANDING)]
        drawn.value = parts_html(parts)

    def to(where: Callable[[], int]) -> Callable[[], None]:
        return lambda: setattr(at, "value", where())

    near = "the nearest that changed the segments or ran out"
    steps = [
        frame.button(
            "First failure or peak", to(lambda: bench.moment), "where a look begins"
        ),
        frame.button("Event before", to(lambda: bench.event(at.value, False)), near),
        frame.button("Event after", to(lambda: bench.event(at.value, True)), near),
    ]
    frame.changed(step, at)
    frame.changed(look, capacity, conf)()
    return [capacity, conf, run, at, frame.row(*steps), moment, drawn]


PANEL = Panel("Allocator what-if", Bench, build)
show = PANEL.show
