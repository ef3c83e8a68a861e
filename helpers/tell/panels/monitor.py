"""The live monitor as a panel: the chart and the tables of ``live``, below a field for the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.ground.units import parse_count
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle

from .frame import Frame, Panel, Part, parts_html
from .live import DRAWN, Feed, chart, views


@dataclass(frozen=True)
class Watch:
    """A captured box, the process to watch on this machine (0: none), and the root that is
    sampled.
    """

    bundle: Bundle | None = None
    pid: int = 0
    root: str = ""

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
        hint = 'To watch this machine: box = "live"'
        return [f"No live monitor: {box} was recorded and is not this machine. {hint}"]


def build(frame: Frame, watch: Watch) -> Sequence[object]:
    """Which process, the drawing and the tables, and the feed behind them."""
    make = frame.widgets.HTML
    if not watch.is_here:
        frame.say("")
        return [make(parts_html(watch.parts()))]
    tip = "a process to watch from outside; 0 for none"
    watched = frame.field("Text", "Process (PID)", str(watch.pid), tooltip=tip)
    samples: deque[dict[str, Any]] = deque(maxlen=DRAWN)
    drawing = make()
    rows = make()

    def hear(sample: dict[str, Any]) -> None:
        samples.append(sample)
        drawing.value = chart(samples)
        rows.value = parts_html(views(sample))

    feed = Feed(hear, frame.say, str(watch.pid), "0.5", watch.root)
    frame.ends.append(feed.stop)
    frame.changed(
        lambda: feed.watch(parse_count(watched.value or "0", least=0)), watched
    )
    return [watched, drawing, rows]


PANEL = Panel("Live monitor", Watch, build, again=True)
show = PANEL.show
