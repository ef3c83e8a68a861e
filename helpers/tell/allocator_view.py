"""One study of the allocator as people look at it: memory over the run, the map at the failure, the figures, the league."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from helpers.allocator import metrics, whatif
from helpers.allocator.outcome import Outcome
from helpers.allocator.replay import replay
from helpers.load.study import Study
from helpers.look.reading import show_bytes
from helpers.settings.releases import behaviour
from helpers.settings.text import parse

from . import replay_figures as figures
from .replay_figures import Line
from .tables import table
from .verdict import WIDE


@dataclass(frozen=True)
class View:
    """A replay of a study under one setting, and the state at its first out-of-memory, or where most was reserved."""

    study: Study
    conf: str
    outcome: Outcome
    moment: int
    at: Outcome
    metrics: metrics.Metrics
    stranded: Line

    @property
    def lines(self) -> list[Line]:
        return [
            Line("reserved", self.outcome.column("reserved")),
            Line("allocated", self.outcome.column("allocated")),
            self.stranded,
        ]

    @property
    def moment_words(self) -> str:
        """What the moment is, in words."""
        return (
            "at the first out-of-memory"
            if self.outcome.first_oom is not None
            else "when most was reserved"
        )


def view(study: Study, conf: str | None = None, samples: int = 30) -> View:
    """Replays a study under its own settings or others; samples is how often stranded bytes are measured on the way."""
    conf = study.conf if conf is None else conf
    how = {"torch": study.torch, "build": study.build, "fraction": study.fraction}
    outcome = replay(study.trace, conf, study.card, timeline=True, **how)  # type: ignore[arg-type]
    moment = (
        int(np.argmax(outcome.column("reserved")))
        if outcome.first_oom is None
        else outcome.first_oom
    )
    at = replay(study.trace, conf, study.card, stop=moment + 1, **how)  # type: ignore[arg-type]
    rules = behaviour(study.torch, study.build)
    found = metrics.metrics(
        at.blocks, parse(conf, rules), study.card, rules, fraction=study.fraction
    )
    sampled = metrics.stranded_over_time(study.trace, conf, study.card, samples=samples, **how)
    points = np.array([point for point, _ in sampled], np.int64)
    stranded = Line(
        "stranded", np.array([share.stranded_bytes for _, share in sampled], np.int64), points
    )
    return View(study, conf, outcome, moment, at, found, stranded)


def memory(seen: View) -> Figure:
    """Reserved, allocated and stranded over the run."""
    return figures.memory_figure(
        seen.lines,
        seen.study.card.capacity_bytes,
        seen.outcome.first_oom,
        seen.conf or "Default settings",
    )


def memory_alt(seen: View) -> str:
    """The same in words."""
    return figures.memory_alt(seen.lines, seen.study.card.capacity_bytes, seen.outcome.first_oom)


def segments(seen: View) -> Figure:
    """The map of every reserved byte at the moment."""
    return figures.segment_map(seen.at, seen.moment_words.capitalize())


def segments_alt(seen: View) -> str:
    """The same in words."""
    return f"{seen.moment_words.capitalize()}: {figures.segment_map_alt(seen.at)}"


def metrics_table(seen: View) -> str:
    """The figures at the moment, with what the usual ratio would have said."""
    whole = seen.metrics.all
    rows: list[tuple[str, int, str]] = [
        ("reserved", whole.reserved_bytes, "what the allocator holds of the card"),
        ("allocated", whole.allocated_bytes, "what tensors hold"),
        (
            "awaiting free",
            whole.awaiting_free_bytes,
            "freed, while another stream may still use it",
        ),
        ("internal waste", whole.internal_waste_bytes, "of blocks in use: sizes less requests"),
        (
            "releasable",
            whole.releasable_bytes,
            "whole free segments and pages: given back before a failure",
        ),
        (
            "stranded",
            whole.stranded_bytes,
            "free, but beside something in use: the true fragmentation",
        ),
        ("largest request", seen.metrics.largest_request_bytes, "that would still succeed now"),
    ]
    text = table(
        [[name, show_bytes(size), says] for name, size, says in rows],
        ["at this moment", "bytes", "is"],
        widest=None,
    )
    ratio = (
        f"1 - allocated/reserved would say {seen.metrics.misleading_ratio:.2f}. {metrics.MISLEADS}"
    )
    return "\n".join(
        [
            _fill(seen.study.words),
            f"{seen.moment_words}, operation {seen.moment}",
            "",
            text,
            "",
            _fill(ratio),
        ]
    )


def words(study: Study) -> str:
    """The study in words, with what is to be said of its trace."""
    return "\n".join(map(_fill, [study.words, *study.notes]))


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDE)


def league(answer: whatif.Answer) -> Figure:
    """The league of settings as bars."""
    return figures.league_figure(_rows(answer), answer.capacity_bytes)


def league_alt(answer: whatif.Answer) -> str:
    """The same in words."""
    return figures.league_alt(_rows(answer), answer.capacity_bytes)


def _rows(answer: whatif.Answer) -> list[dict[str, object]]:
    return [
        {
            "settings": row.settings,
            "ooms": 0 if row.passes else max(row.ooms, 1),
            "device_calls": row.slow_calls,
            "peak_reserved_bytes": row.peak_reserved_bytes,
        }
        for row in answer.rows
    ]


def row_of(answer: whatif.Answer, conf: str) -> whatif.Row:
    """The row of a setting in the league."""
    return next(row for row in answer.rows if row.settings == conf)


def pair(seen: View, answer: whatif.Answer) -> Sequence[View]:
    """The run as it is and under the setting to use (or the best of the league), for before and after."""
    other = (
        answer.use
        if answer.use != seen.conf
        else next(
            (row.settings for row in answer.rows if row.settings != seen.conf and not row.flags),
            seen.conf,
        )
    )
    return seen, view(seen.study, other)


def before_after(views: Sequence[View]) -> Figure:
    """The same requests under two settings, on one scale."""
    return figures.before_after(
        [(one.conf or "Default settings", one.lines, one.outcome.first_oom) for one in views],
        views[0].study.card.capacity_bytes,
    )


def before_after_alt(views: Sequence[View]) -> str:
    """The same in words."""
    return " ".join(f"{one.conf or 'Default settings'}: {memory_alt(one)}" for one in views)
