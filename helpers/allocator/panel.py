"""The panel in which a person tries other settings and another card for a trace, and steps
through its requests on the segment map.
"""

from __future__ import annotations

from collections.abc import Sequence
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

MOST_SEGMENTS = 12
"""Segments listed below the map, those with most stranded bytes first: about a screenful."""


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
        """The replay, with a row for each operation."""
        return self.study.replay(timeline=True)

    @property
    def moment(self) -> int:
        """The operation shown first: the first out-of-memory, else where most was reserved."""
        return studies.moment_of(self.outcome)

    @cached_property
    def events(self) -> list[int]:
        """The operations that changed the bytes reserved or ran out of memory, in order. Operation
        0 counts as a change where anything was reserved after it, since it is compared with 0.
        """
        changed = np.diff(self.outcome.column("reserved"), prepend=0) != 0
        failed = self.outcome.column("out") == OOM
        events: list[int] = np.flatnonzero(changed | failed).tolist()
        return events

    def event_before(self, number: int) -> int:
        """The nearest event before an operation; the operation itself where there is none."""
        return max((event for event in self.events if event < number), default=number)

    def event_after(self, number: int) -> int:
        """The nearest event after an operation; the operation itself where there is none."""
        return min((event for event in self.events if event > number), default=number)

    def words(self, number: int) -> str:
        """One operation: its request, the result, and the bytes held after it."""
        trace = self.study.trace
        reserved = show_bytes(int(self.outcome.column("reserved")[number]))
        allocated = show_bytes(int(self.outcome.column("allocated")[number]))
        request = Op(trace.op[number]).name.lower().replace("_", " ")
        if trace.op[number] == Op.ALLOC:
            request += f" {show_bytes(int(trace.size[number]))}"
        result = self.outcome.column("out")[number]
        result_words = "OUT OF MEMORY" if result == OOM else OUTCOMES[result]
        return (
            f"operation {number}, the last is {len(trace) - 1}: {request}, "
            f"{result_words}; {reserved} reserved, {allocated} allocated"
        )

    def says(self) -> str:
        """The study, and below it the result of the whole replay."""
        outcome = self.outcome
        end = "every request is met"
        if outcome.first_oom is not None:
            size = show_bytes(outcome.first_oom_bytes)
            first = f"the first is operation {outcome.first_oom} ({size})"
            end = f"requests that fail: {outcome.ooms}, {first}"
        most = f"at most {show_bytes(outcome.peak_reserved_bytes)} reserved"
        return f"{self.study.words}\n{end}; {most}, {outcome.slow_calls} slow calls"

    def map(self, number: int) -> Shown:
        """The segment map after an operation."""
        state = self.study.replay(stop=number + 1)
        title = f"After operation {number}"
        return segment_map(self.study.trace, self.outcome, state, title)

    def parts(self) -> list[Part]:
        """The text for a page without widgets, such as an exported notebook: the operation that the
        panel would show first.
        """
        return [self.words(self.moment)]


def build(frame: Frame, bench: Bench) -> Sequence[object]:
    """Fills the panel: fields for card and settings, the result of the replay, a slider over the
    operations, and the segment map after the chosen one. Returns its widgets from top to bottom.
    """
    study = bench.study

    card_words = show_bytes(study.card.capacity_bytes)
    capacity = frame.field("Text", "Card", card_words, tooltip="such as 20GiB")
    conf = frame.field(
        "Combobox",
        "Settings",
        study.conf,
        wide=True,
        options=[conf for conf in grid(behaviour(study.torch, study.build)) if conf],
        placeholder="empty: the default; else as in PYTORCH_CUDA_ALLOC_CONF",
        ensure_option=False,
    )
    operation = frame.field(
        "IntSlider",
        "Operation",
        bench.moment,
        wide=True,
        min=0,
        max=len(study.trace) - 1,
        tooltip="arrow keys step by one operation",
    )
    result_answer = frame.answer()
    operation_answer = frame.answer()
    map_answer = frame.answer()

    def replay_again() -> None:
        """After a change of card or settings: shows the new result, and moves the slider to its
        first out-of-memory or peak.
        """
        nonlocal bench
        size = capacity.value
        if size == card_words:  # untouched: the words are rounded, so take the bytes
            size = str(study.card.capacity_bytes)
        bench = bench.under(size, conf.value.strip())
        result_answer.value = text_html(bench.says())
        if operation.value == bench.moment:
            show_operation()  # no change of the slider, so no callback
        operation.value = bench.moment

    def show_operation() -> None:
        """After a move of the slider: the operation, and the segments after it."""
        operation_answer.value = text_html(bench.words(operation.value))
        segments = bench.map(operation.value)
        parts: list[Part] = []
        if segments.cells:
            # The map, and below it the same segments as a table.
            table = replace(segments, draw=None, notes=(), most=MOST_SEGMENTS)
            parts = [segments, table]
        map_answer.value = parts_html(parts)

    def go_to_moment() -> None:
        operation.value = bench.moment

    def go_before() -> None:
        operation.value = bench.event_before(operation.value)

    def go_after() -> None:
        operation.value = bench.event_after(operation.value)

    tip = "the nearest that changed the segments or ran out"
    buttons = [
        frame.button("First failure or peak", go_to_moment, "where a look begins"),
        frame.button("Event before", go_before, tip),
        frame.button("Event after", go_after, tip),
    ]
    frame.changed(show_operation, operation)
    frame.changed(
        replay_again, capacity, conf
    )()  # called once now, for the first result
    return [
        capacity,
        conf,
        result_answer,
        operation,
        frame.row(*buttons),
        operation_answer,
        map_answer,
    ]


PANEL = Panel("Allocator what-if", Bench, build)
show = PANEL.show
