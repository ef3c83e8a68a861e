"""The live monitor as a panel: the chart and the tables of ``live``, below a field for the process."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.ground.units import parse_count
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle

from .frame import Frame, Panel, Part, parts_html
from .live import DRAWN, EVERY_S, Feed, chart, views

if TYPE_CHECKING:
    from helpers.look.sampler import Row


@dataclass(frozen=True)
class Watch:
    """A captured box (None: this machine), the process to watch on this machine (0: none), and the
    folder that the sampler takes for / (empty: /).
    """

    bundle: Bundle | None = None
    pid: int = 0
    root: str = ""

    @property
    def is_here(self) -> bool:
        """Whether this machine is the box, so that watching it shows the box."""
        return self.bundle is None or is_this_box(self.bundle)

    def parts(self) -> list[Part]:
        """One sentence, as a page has no live monitor: that it runs in an open notebook, or that
        the box is not this machine.
        """
        if self.bundle is None or self.is_here:
            return [
                "The live monitor samples this machine twice a second while a notebook is open."
            ]
        was_recorded = f"{self.bundle.box} was recorded and is not this machine"
        hint = 'To watch this machine: box = "live"'
        return [f"No live monitor: {was_recorded}. {hint}"]


def build(frame: Frame, watch: Watch) -> Sequence[object]:
    """A field for the process, the chart and the tables, which follow the samples; for a box that
    is not this machine only the sentence that says so.
    """
    make = frame.widgets.HTML
    if not watch.is_here:
        frame.say("")
        return [make(parts_html(watch.parts()))]
    tip = "a process to watch from outside; 0 for none"
    watched = frame.field("Text", "Process (PID)", str(watch.pid), tooltip=tip)
    samples: deque[Row] = deque(maxlen=DRAWN)
    drawing = make()
    rows = make()

    def hear(sample: Row) -> None:
        samples.append(sample)
        drawing.value = chart(samples)
        rows.value = parts_html(views(sample))

    feed = Feed(hear, frame.say, str(watch.pid), str(EVERY_S), watch.root)
    frame.ends.append(feed.stop)

    def watch_another() -> None:
        pid = 0
        if watched.value:
            pid = parse_count(watched.value, least=0)
        feed.watch(pid)

    frame.changed(watch_another, watched)
    return [watched, drawing, rows]


PANEL = Panel("Live monitor", Watch, build, again=True)
show = PANEL.show
