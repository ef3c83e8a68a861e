"""The live monitor in a terminal: drawn by rich where it is installed, else one line a sample.

Where the output is no terminal there are lines too.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from helpers.ground.units import plain, show_bytes

from .live import Feed, percent, shares_of, views

if TYPE_CHECKING:
    from rich.console import RenderableType

DRAWN_EVERY_S = 0.5
LINE_EVERY_S = 2.0
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class SamplerEnded(Exception):
    """The sampler ended by itself; its words say how."""


def watch(pid: int, every_s: float | None, count: int | None, as_json: bool) -> int:
    """Show samples until Ctrl-C, until the terminal is closed, or until ``count`` were shown.

    ``pid``: a process to watch from outside, 0 for none. ``every_s``: seconds between samples;
    None is DRAWN_EVERY_S in a drawn view and LINE_EVERY_S in lines. ``as_json``: one JSON object
    a line. Returns the exit code, 1 where the sampler ended by itself.
    """
    is_drawn = not as_json and sys.stdout.isatty() and find_spec("rich") is not None
    if every_s is None:
        every_s = DRAWN_EVERY_S if is_drawn else LINE_EVERY_S
    heard: SimpleQueue[dict[str, Any] | str] = SimpleQueue()
    handlers = {number: signal.signal(number, _interrupt) for number in ENDING_SIGNALS}
    feed = Feed(heard.put, heard.put, str(pid), str(every_s))
    samples = _samples(heard, count)
    try:
        if is_drawn:
            _draw(samples)
        else:
            _print_lines(samples, as_json)
    except KeyboardInterrupt:
        return 0
    except SamplerEnded as error:
        print(error)
        return 1
    finally:
        feed.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _samples(
    heard: SimpleQueue[dict[str, Any] | str], count: int | None
) -> Iterator[dict[str, Any]]:
    """At most ``count`` samples as they come. Raises SamplerEnded."""
    shown = 0
    while count is None or shown < count:
        sample = heard.get()
        if isinstance(sample, str):
            raise SamplerEnded(sample)
        yield sample
        shown += 1


def _print_lines(samples: Iterator[dict[str, Any]], as_json: bool) -> None:
    printed: set[str] = set()
    for sample in samples:
        if as_json:
            print(json.dumps(sample), flush=True)
            continue
        for why in sample["why"]:  # what cannot be seen is said once
            if why not in printed:
                print(f"Note: {why}")
                printed.add(why)
        print(line_of(sample), flush=True)


def line_of(sample: dict[str, Any]) -> str:
    """One sample in one line: the time, the pools, the process watched, the holders."""
    words = [f"{datetime.fromtimestamp(sample['at']):%H:%M:%S}"]
    for view in views(sample):
        if isinstance(view, str):
            words.append(view)
            continue
        for row in view.rows:
            cells = []
            for name, value in row.items():
                if isinstance(value, int):
                    value = show_bytes(value)
                if value != "":
                    cells.append(f"{name} {value}")
            words.append(" ".join(cells))
    return "; ".join(words)


def _draw(samples: Iterator[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=getattr(sys.stdout, "drawn", sys.stdout))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for sample in samples:
            live.update(picture(sample), refresh=True)


def picture(sample: dict[str, Any]) -> RenderableType:
    """One screen: a bar of what is in use of each memory, and the tables of a sample."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bars = Table.grid(padding=(0, 2))
    for name, shares in shares_of([sample]).items():
        bars.add_row(
            name, percent(shares), ProgressBar(total=1.0, completed=shares[-1] or 0.0)
        )
    lines = []
    for view in views(sample):
        if isinstance(view, str):
            lines += ["", view]
        else:
            lines += ["", view.title, *view.text().splitlines()]
    head = f"{datetime.now():%H:%M:%S}  Ctrl-C ends"
    tables = [Text(plain(line), no_wrap=True, overflow="ellipsis") for line in lines]
    return Group(Text(head), bars, *tables)
