"""The live monitor in a terminal: a screen that rich draws where it is installed, else a line for
each sample, as also where the output is no terminal.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from queue import SimpleQueue
from typing import TYPE_CHECKING

from helpers.ground.units import plain, show_bytes

from .live import EVERY_S, Feed, percent, shares_of, views

if TYPE_CHECKING:
    from rich.console import RenderableType

    from helpers.look.sampler import Row

LINE_EVERY_S = 2.0
"""Seconds between lines, which stay on the screen: slow enough to be read."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What kill sends, and the end of a terminal."""


class SamplerEnded(Exception):
    """The sampler ended by itself; its text says how."""


def watch(pid: int, every_s: float | None, count: int | None, as_json: bool) -> int:
    """Show samples until Ctrl-C, until the terminal is closed, or until ``count`` were shown.

    ``pid``: a process to watch from outside, 0 for none. ``every_s``: seconds between samples; None
    is EVERY_S on a drawn screen and LINE_EVERY_S for lines. ``count``: None for no end.
    ``as_json``: each line is a JSON object. Returns the exit code, 1 where the sampler ended by
    itself.
    """
    has_rich = find_spec("rich") is not None
    is_drawn = has_rich and sys.stdout.isatty() and not as_json
    if every_s is None:
        every_s = LINE_EVERY_S
        if is_drawn:
            every_s = EVERY_S
    queue: SimpleQueue[Row | str] = SimpleQueue()
    handlers = {number: signal.signal(number, _interrupt) for number in ENDING_SIGNALS}
    feed = Feed(queue.put, queue.put, str(pid), str(every_s))
    samples = _samples(queue, count)
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
    """A signal handler: a signal ends the monitor as Ctrl-C does."""
    raise KeyboardInterrupt


def _samples(queue: SimpleQueue[Row | str], count: int | None) -> Iterator[Row]:
    """Samples as they come, ``count`` of them (None: without end). A text in the queue is the end
    of the sampler, and raises SamplerEnded.
    """
    shown = 0
    while count is None or shown < count:
        sample = queue.get()
        if isinstance(sample, str):
            raise SamplerEnded(sample)
        yield sample
        shown += 1


def _print_lines(samples: Iterator[Row], as_json: bool) -> None:
    """Print each sample as a line of words, or of JSON; before lines of words a note about what
    cannot be seen, each note only once.
    """
    printed: set[str] = set()
    for sample in samples:
        if as_json:
            print(json.dumps(sample), flush=True)
            continue
        for note in sample["why"]:
            if note not in printed:
                print(f"Note: {note}")
                printed.add(note)
        print(line_of(sample), flush=True)


def line_of(sample: Row) -> str:
    """One sample in one line: the time, the pools, the watched process, the holders, with
    semicolons between them. Each value has its heading before it; empty ones are left out.
    """
    parts = [f"{datetime.fromtimestamp(sample['at']):%H:%M:%S}"]
    for view in views(sample):
        if isinstance(view, str):
            parts.append(view)
            continue
        for row in view.rows:
            words = []
            for name, value in row.items():
                if isinstance(value, int):
                    value = show_bytes(value)
                if value != "":
                    words.append(f"{name} {value}")
            parts.append(" ".join(words))
    return "; ".join(parts)


def _draw(samples: Iterator[Row]) -> None:
    """Draw each sample as one screen."""
    from rich.console import Console
    from rich.live import Live

    # ``drawn`` is the terminal below a stream that makes text plain for it (helpers/cli.py).
    console = Console(file=getattr(sys.stdout, "drawn", sys.stdout))
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for sample in samples:
            live.update(picture(sample), refresh=True)


def picture(sample: Row) -> RenderableType:
    """One screen: for each memory a bar of the share in use, and the tables of a sample."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    bars = Table.grid(padding=(0, 2))
    for name, (share,) in shares_of([sample]).items():
        completed = share
        if completed is None:  # not known, as the words beside the bar say
            completed = 0.0
        bar = ProgressBar(total=1.0, completed=completed)
        bars.add_row(name, percent(share), bar)
    lines = []
    for view in views(sample):
        if isinstance(view, str):
            lines += ["", view]
        else:
            lines += ["", view.title, *view.text().splitlines()]
    head = f"{datetime.now():%H:%M:%S}  Ctrl-C ends"
    tables = [Text(plain(line), no_wrap=True, overflow="ellipsis") for line in lines]
    return Group(Text(head), bars, *tables)
