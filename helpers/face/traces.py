"""A trace of allocations, its replay under settings, and what would save the run."""

from __future__ import annotations

from functools import cached_property

from helpers.allocator import panel, study
from helpers.allocator.edits import comparison
from helpers.allocator.edits.edit import parse
from helpers.allocator.views import edits, growth, studies, trace_verdict
from helpers.face.box import Box, as_box
from helpers.face.diagnosis import Answer
from helpers.face.result import Result
from helpers.ground import replays as contracts
from helpers.tell.shown import Shown
from helpers.trials import stress


class Trace(Result):
    """A recorded program or a generated pattern, with the card, release and settings of its replay.

    ``study`` has them as data; ``study.trace`` has the operations.
    """

    def __init__(self, studied: study.Study) -> None:
        self.study = studied

    @cached_property
    def as_it_is(self) -> ReplayView:
        """The replay under the trace's own settings, made once."""
        return ReplayView(studies.view(self.study))

    @property
    def words(self) -> str:
        """The trace in a line, and notes on how it was recorded."""
        return studies.words(self.study)

    @property
    def view(self) -> Shown:
        return self.as_it_is.view

    def __repr__(self) -> str:
        return self.words

    def panel(self) -> None:
        """Show a panel to step through the trace under other settings, or its static twin."""
        panel.show(self.study)

    def on_card(self, box: Box | str, limit: str) -> Shown:
        """Run the pattern on a free GPU of this machine, and show it beside the allocator model.

        ``limit`` is the most memory to take, such as ``8GiB``. Nothing runs without a limit, on a
        box that is not this machine, or on a card in use, and the view says why.
        """
        result, figures = stress.live(as_box(box).facts, self.study, limit)
        columns = ["figure", "model", "card"]
        why_none = f"Not run: {result.why}."
        return Shown("The pattern on the card", columns, figures, none=why_none)


class ReplayView(Result):
    """What the caching allocator does with a trace under one setting.

    ``replayed`` has as data the curves, and the state at the first failure, else at the peak.
    """

    def __init__(self, replayed: studies.View) -> None:
        self.replayed = replayed

    @property
    def view(self) -> Shown:
        return studies.metrics_table(self.replayed)

    @property
    def memory(self) -> Shown:
        """Reserved and allocated memory over the run, and what is free but cannot be used or
        returned.
        """
        return studies.memory(self.replayed)

    @property
    def segments(self) -> Shown:
        """A map of the reserved bytes in the state of ``replayed``, a row for each segment."""
        return studies.segments(self.replayed)

    def beside(self, other: ReplayView) -> Shown:
        """The curves of two replays, one below the other, on one scale."""
        return studies.memory(self.replayed, other.replayed)


class WhatIf(Result):
    """A trace under every setting that applies: which one to use, or how many bytes are missing.

    ``league`` holds the rows as data.
    """

    def __init__(self, trace: Trace, league: contracts.WhatIf) -> None:
        self.trace = trace
        self.league = league

    @property
    def view(self) -> Shown:
        return studies.league(self.league)

    @property
    def best(self) -> ReplayView:
        """The replay under the setting to use, or the best of those that do not help."""
        _, best = studies.pair(self.trace.as_it_is.replayed, self.league)
        return ReplayView(best)

    @cached_property
    def _ranked(self) -> tuple[list[contracts.LineEdit], list[str]]:
        """The lines whose change saves the run, the best first; and notes on why there are none,
        such as that the trace is too long.
        """
        verdict = trace_verdict.verdict(self.trace.study, self.league)
        return comparison.lines_that_save(self.trace.study, self.league, verdict)

    @property
    def lines(self) -> Shown:
        """The program's own lines, each with the change that alone saves the run."""
        recording_fails = self.trace.study.trace.ran_out
        ranking, why_none = self._ranked
        return edits.lines(ranking, recording_fails, why_none)

    @cached_property
    def edited(self) -> Shown:
        """The run before and after the first change of ``lines``."""
        ranking, _ = self._ranked
        changes = [parse(line.edit) for line in ranking if line.edit]
        compared = comparison.compare_edits(self.trace.study, changes[:1])
        return edits.table(compared)

    def verdict(self) -> Answer:
        """Why the program fails on this card, or that it does not, and the one next step."""
        verdict = trace_verdict.verdict(self.trace.study, self.league)
        return Answer(verdict, sources=False)


def load_trace(
    source: str,
    *,
    capacity: str = "",
    settings: str = "",
    torch: str = "",
    build: str = "",
    seed: int = 0,
) -> Trace:
    """Load a trace file, a trace of env/traces by its name, or make a pattern from ``seed``.

    ``capacity`` is the card's memory, such as ``20GiB``; ``settings`` is PYTORCH_CUDA_ALLOC_CONF;
    ``torch`` and ``build`` are the release and the build (``cuda`` or ``rocmX.Y``). For an empty
    one the trace's own is used. Raises ValueError in one line.
    """
    studied = study.open_study(
        source, capacity=capacity, conf=settings, torch=torch, build=build, seed=seed
    )
    return Trace(studied)


def replay(trace: Trace, settings: str | None = None) -> ReplayView:
    """What the allocator does with a trace, to the byte, under ``settings`` or the trace's own."""
    if settings is None:
        return trace.as_it_is
    return ReplayView(studies.view(trace.study, settings))


def what_if(trace: Trace) -> WhatIf:
    """A trace under every setting of its release and build, best first."""
    return WhatIf(trace, trace.study.what_if())


def leaks(trace: Trace) -> Shown:
    """The memory that grows: by line of the program, in bytes a step, and when it fills
    the card.
    """
    return growth.growing(trace.study)
