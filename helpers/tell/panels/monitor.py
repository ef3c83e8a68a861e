"""The live monitor as a panel: the samples, tables and events of ``live``, beside a field for
the process and buttons.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.ground.child import OUTPUTS
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle

from .frame import Frame, Panel, Part, parts_html
from .live import Feed, Monitor, views


@dataclass(frozen=True)
class Watch:
    """A captured box, the process to watch on this machine (0: none), where samples are kept,
    and the root that is sampled.
    """

    bundle: Bundle | None = None
    pid: int = 0
    folder: Path = OUTPUTS / "monitor"
    root: str = ""
    monitor: Monitor = field(default_factory=Monitor)

    @property
    def is_here(self) -> bool:
        """Whether this machine is the box, so that watching it shows the box."""
        return self.bundle is None or is_this_box(self.bundle)

    def parts(self) -> list[Part]:
        """One sentence: a page has no live monitor."""
        if self.is_here:
            return [
                "The live monitor samples this machine twice a second while a notebook is open."
            ]
        box = self.bundle.box if self.bundle else ""
        return [f"No live monitor: this machine is not {box}, which was recorded. Give box = live."]


def build(frame: Frame, watch: Watch) -> Sequence[Any]:
    """Which process, the buttons, the drawing and the tables, and the feed behind them."""
    make = frame.widgets.HTML
    monitor = watch.monitor
    if not watch.is_here:
        return [make(parts_html(watch.parts()))]
    tip = "a process to watch from outside; 0 for none"
    watched = frame.field("IntText", "Process (PID)", watch.pid, tooltip=tip)
    event = frame.field("Text", "Event", "", placeholder="such as: batch 2 starts")
    drawing = make()
    rows = make()

    def hear(sample: dict[str, Any]) -> None:
        monitor.ring.append(sample)
        drawing.value = monitor.chart()
        rows.value = parts_html(views(sample))

    def mark() -> None:
        frame.say(monitor.mark(event.value.strip()))

    def save() -> None:
        frame.say(f"saved {os.path.relpath(monitor.save(watch.folder), OUTPUTS.parent)}")

    feed = Feed(hear, frame.say, str(watch.pid), "0.5", watch.root)
    frame.ends.append(feed.stop)
    buttons = [
        frame.button("Mark the event", mark, "an upright line now, kept with the samples"),
        frame.button("Save as evidence", save, "a JSON file in outputs"),
    ]
    frame.changed(lambda: feed.watch(max(0, watched.value)), watched)
    return [watched, event, frame.row(*buttons), drawing, rows]


PANEL = Panel("Live monitor", Watch, build, again=True)
show = PANEL.show
