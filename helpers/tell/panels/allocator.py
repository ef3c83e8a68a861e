"""The allocator what-if: other settings, another card or release, and a step through the requests on the segment map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from helpers.allocator import whatif
from helpers.allocator.driver import Card
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import replay
from helpers.allocator.steps import OOM, OUTCOMES
from helpers.allocator.trace import Op
from helpers.load.study import Study
from helpers.look.reading import parse_size, show_bytes
from helpers.settings.releases import behaviour
from helpers.settings.text import grid
from helpers.tell import replay_figures, replays

from .frame import Frame, Part, picture_html, present, text_html

NAME = "Allocator what-if"
RELEASES = ("2.14.1", "2.13.0", "2.11.0", "2.6.0")


@dataclass(frozen=True)
class Bench:
    """A study with its replay. A number names an operation of the trace, from 0."""

    study: Study

    def asked(self, capacity: str, conf: str, torch: str, build: str) -> Bench:
        """The same trace on another card, under other settings, another release or build. Raises ValueError in one line."""
        if (size := parse_size(capacity)) <= 0:
            raise ValueError(f"card of {capacity}: expected a size above 0, such as 20GiB")
        card = Card(size, self.study.card.held_bytes)
        return Bench(replace(self.study, card=card, conf=conf, torch=torch, build=build))

    def replayed(self, **how: Any) -> Outcome:
        """The replay, whole or up to ``stop``."""
        study = self.study
        return replay(
            study.trace,
            study.conf,
            study.card,
            torch=study.torch,
            build=study.build,
            fraction=study.fraction,
            **how,
        )

    @cached_property
    def outcome(self) -> Outcome:
        return self.replayed(timeline=True)

    @property
    def moment(self) -> int:
        """Where a look begins: at the first out-of-memory, else where most was reserved."""
        first = self.outcome.first_oom
        return int(np.argmax(self.outcome.column("reserved"))) if first is None else first

    def event(self, number: int, ahead: bool) -> int:
        """The nearest operation after (before) this one that changed the segments or ran out; this one where there is none."""
        reserved = self.outcome.column("reserved")
        changed = np.flatnonzero(
            (np.diff(reserved, prepend=0) != 0) | (self.outcome.column("out") == OOM)
        )
        found = changed[changed > number][:1] if ahead else changed[changed < number][-1:]
        return int(found[0]) if len(found) else number

    def words(self, number: int) -> str:
        """One operation: what was asked, what came of it, and what was held after it."""
        trace = self.study.trace
        row = {
            name: int(self.outcome.column(name)[number])
            for name in ("out", "reserved", "allocated")
        }
        asked = Op(int(trace.op[number])).name.lower().replace("_", " ")
        size = f" {show_bytes(int(trace.size[number]))}" if trace.op[number] == Op.ALLOC else ""
        return (
            f"operation {number}, the last is {len(trace) - 1}: {asked}{size}, "
            f"{OUTCOMES[row['out']].replace('oom', 'OUT OF MEMORY')}; {show_bytes(row['reserved'])} reserved, "
            f"{show_bytes(row['allocated'])} allocated"
        )

    def says(self) -> str:
        """The whole run in a sentence."""
        done = self.outcome
        end = (
            "every request is met"
            if done.first_oom is None
            else f"requests that fail: {done.ooms}, the first is operation {done.first_oom} ({show_bytes(done.first_oom_bytes)})"
        )
        return (
            f"{self.study.words}\n{end}; at most {show_bytes(done.peak_reserved_bytes)} reserved, "
            f"{done.slow_calls} slow calls"
        )

    def static(self) -> list[Part]:
        """The run, and the map at its moment in words."""
        at = self.replayed(stop=self.moment + 1)
        return [
            "\n".join([self.says(), self.words(self.moment), replay_figures.segment_map_alt(at)])
        ]


def build(frame: Frame, bench: Bench) -> Sequence[Any]:
    """Card, settings and release; the run; the step through it with the map; the league of settings on demand."""
    study, now, card = bench.study, [bench], show_bytes(bench.study.card.capacity_bytes)
    capacity = frame.field("Text", "Card", card, tooltip="such as 20GiB")
    conf = frame.field(
        "Combobox",
        "Settings",
        study.conf,
        wide=True,
        ensure_option=False,
        options=[conf for conf in grid(behaviour(study.torch, study.build)) if conf],
        placeholder="empty: the default; else as in PYTORCH_CUDA_ALLOC_CONF",
    )
    torch = frame.field(
        "Combobox", "torch", study.torch, options=[study.torch, *RELEASES], ensure_option=False
    )
    built = frame.field(
        "Combobox", "Build", study.build, options=["cuda", "rocm7.2"], ensure_option=False
    )
    at = frame.field(
        "IntSlider",
        "Operation",
        bench.moment,
        wide=True,
        min=0,
        max=len(study.trace) - 1,
        tooltip="arrow keys step by one operation",
    )
    run, here, drawn, league = (frame.widgets.HTML() for _ in range(4))

    def look() -> None:
        size = str(study.card.capacity_bytes) if capacity.value == card else capacity.value
        asked = bench.asked(size, conf.value.strip(), torch.value.strip(), built.value.strip())
        run.value, league.value, now[0] = text_html(asked.says()), "", asked
        if at.value == asked.moment:
            step()
        at.value = asked.moment

    def step() -> None:
        here.value = text_html(now[0].words(at.value))
        seen = now[0].replayed(stop=at.value + 1)
        drawn.value = (
            picture_html(
                replay_figures.segment_map(seen, f"After operation {at.value}"),
                replay_figures.segment_map_alt(seen),
            )
            if len(seen.blocks)
            else ""
        )

    def rank() -> None:
        this = now[0].study
        answer = whatif.whatif(
            this.trace,
            this.card,
            torch=this.torch,
            build=this.build,
            fraction=this.fraction,
            progress=lambda done, of: frame.say(f"{done} of {of} replays done"),
        )
        league.value = text_html(replays.league_text(answer, rows=6), wrap=False)
        frame.say(
            f"use: {answer.use or 'the default settings'}" if not answer.needs_bytes else answer.why
        )

    def to(where: Callable[[], int]) -> Callable[[], None]:
        return lambda: setattr(at, "value", where())

    near = "the nearest that changed the segments or ran out"
    steps = [
        frame.button("First failure or peak", to(lambda: now[0].moment), "where a look begins"),
        frame.button("Event before", to(lambda: now[0].event(at.value, False)), near),
        frame.button("Event after", to(lambda: now[0].event(at.value, True)), near),
        frame.button("Try every setting", rank, "the league of settings for this card"),
    ]
    frame.changed(step, at)
    frame.changed(look, capacity, conf, torch, built)()
    return [
        capacity,
        conf,
        torch,
        built,
        run,
        at,
        frame.widgets.HBox(steps, layout={"flex_flow": "row wrap"}),
        here,
        drawn,
        league,
    ]


def show(study: Study) -> None:
    """The panel, or the run in words where nobody is there."""
    bench = Bench(study)
    present(NAME, bench.static, lambda frame: build(frame, bench))
