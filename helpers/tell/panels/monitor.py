"""The live monitor: VRAM, GTT, host memory, who holds them, and one process from outside, sampled twice a second.

The samples are taken by a program of its own (``sampler``), so no GPU context of this kernel is in the way, and a driver that
hangs hangs that program. Of torch's own numbers nothing shows from outside; a process run under ``record`` tells them if asked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.look.bundle import Bundle
from helpers.look.files import write_atomic
from helpers.look.gpus import gpus, host_pools
from helpers.look.reading import show_bytes
from helpers.run.kernel import CHECKOUT, environment
from helpers.tell import tables
from helpers.tell.sheet import SERIES

from .frame import Frame, present, table_html, text_html

NAME = "Live monitor"
OUTPUTS = CHECKOUT / "outputs" / "monitor"
END_S = 5.0
KEPT, DRAWN, ROWS = (
    2400,
    240,
    12,
)  # samples of 20 minutes, of them two minutes drawn; holders listed
PROCESS = {
    "pid": "pid",
    "name": "name",
    "state": "state",
    "anonymous": "rss_anon",
    "resident": "rss",
    "swap": "swap",
    "VRAM": "vram",
    "GTT": "gtt",
}


class Monitor:
    """The last samples, the events marked on them, and whether what is shown stands still. It starts nothing itself."""

    def __init__(self, kept: int = KEPT):
        self.ring: deque[dict[str, Any]] = deque(maxlen=kept)
        self.marks: list[tuple[float, str]] = []
        self.paused = False

    def save(self, folder: Path) -> Path:
        """Keep every sample and event in a new JSON file. Raises ValueError where there is no sample yet."""
        if not self.ring:
            raise ValueError("there is no sample yet: nothing to save")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}.json"
        write_atomic(
            path,
            json.dumps(
                {
                    "schema_version": 1,
                    "kind": "monitor",
                    "samples": list(self.ring),
                    "events": [{"at": at, "says": says} for at, says in self.marks],
                }
            ),
        )
        return path

    def shares(self) -> dict[str, list[float | None]]:
        """In use, from 0 to 1, sample by sample: each GPU's VRAM, the host's RAM, and the process's own part of that."""
        drawn = list(self.ring)[-DRAWN:]
        found = {
            f"VRAM {pci}": [
                next(
                    (
                        _share(gpu.get("vram_used"), gpu.get("vram_total"))
                        for gpu in one["gpus"]
                        if gpu["pci"] == pci
                    ),
                    None,
                )
                for one in drawn
            ]
            for pci in dict.fromkeys(gpu["pci"] for one in drawn for gpu in one["gpus"])
        }
        found["host RAM"] = [_share(_host_used(one), one["host"].get("MemTotal")) for one in drawn]
        own = [
            _share((one["process"] or {}).get("rss_anon"), one["host"].get("MemTotal"))
            for one in drawn
        ]
        return {**found, **({"the process, anonymous": own} if any(own) else {})}

    def chart(self) -> str:
        """The shares over the last two minutes as one small drawing, the newest at the right, events as upright lines."""
        lines, words, at = [], [], [one["at"] for one in list(self.ring)[-DRAWN:]]
        for number, (name, shares) in enumerate(self.shares().items()):
            color, dash = SERIES[number % len(SERIES)], ("", "7 3", "2 2", "9 2 2 2")[number % 4]
            points = " ".join(
                [
                    f"{600 - 2.5 * (len(at) - i):.0f},{100 - 98 * y:.1f}"
                    for i, y in enumerate(shares)
                    if y is not None
                ]
            )
            stroke = f"fill='none' stroke='{color}' stroke-width='2' stroke-dasharray='{dash}'"
            lines.append(f"<polyline {stroke} points='{points}'/>")
            last = "not told" if not shares or shares[-1] is None else f"{100 * shares[-1]:.0f} %"
            words.append(
                f"<svg width='30' height='8'><line x2='30' y1='4' y2='4' {stroke}/></svg> {name} {last}"
            )
        marks = [
            600 - 2.5 * sum(one > when for one in at)
            for when, _ in self.marks
            if at and when >= at[0]
        ]
        lines += [
            f"<line x1='{x}' x2='{x}' y2='100' stroke='#d55e00' stroke-dasharray='3 2'/>"
            for x in marks
        ]
        return (
            f"<svg role='img' aria-label='In use, in words below' viewBox='0 0 600 101' width='600' style='max-width:100%;"
            f"display:block;border:1px solid #8a949e;border-width:1px 0'>{''.join(lines)}</svg><div>100 % is the upper "
            f"edge, two minutes the width: {' &nbsp; '.join(words)}</div>"
        )


def _share(part: int | None, whole: int | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _host_used(sample: dict[str, Any]) -> int | None:
    host = sample["host"]
    return (
        host["MemTotal"] - host["MemAvailable"]
        if {"MemTotal", "MemAvailable"} <= host.keys()
        else None
    )


def _size(value: object) -> str:
    return (
        "not told" if value is None else show_bytes(value) if isinstance(value, int) else str(value)
    )


def sample_html(sample: dict[str, Any]) -> str:
    """One sample as tables: pools, the process watched, and the largest holders."""
    columns = ("vram_used", "vram_total", "gtt_used", "gtt_total")
    pools = [
        ["host RAM", _size(_host_used(sample)), _size(sample["host"].get("MemTotal")), "", ""],
        *(
            [f"VRAM {gpu['pci']}", *(_size(gpu.get(name)) for name in columns)]
            for gpu in sample["gpus"]
        ),
    ]
    one, largest = (
        sample["process"],
        sorted(sample["holders"], key=lambda row: -(row.get("vram") or 0)),
    )
    rows = [
        [
            str(row["pid"]),
            row["name"],
            row["pci"],
            _size(row.get("vram")),
            _size(row.get("gtt")),
            row["by"],
        ]
        for row in largest[:ROWS]
    ]
    watched = (
        ""
        if not one
        else text_html(f"process {one['pid']}: {one['why']}")
        if "why" in one
        else table_html(
            [[str(one["pid"]), *(_size(one.get(key)) for key in list(PROCESS.values())[1:])]],
            list(PROCESS),
            "the process watched, from outside",
        )
    )
    more = f", the {ROWS} largest of {len(largest)}" if len(largest) > ROWS else ""
    return "".join(
        [
            table_html(
                pools, ["pool", "in use", "of", "GTT in use", "of"], "; ".join(sample["why"])
            ),
            watched,
            table_html(
                rows, ["pid", "name", "GPU", "VRAM", "GTT", "by"], "who holds GPU memory" + more
            ),
        ]
    )


class Feed:
    """The sampler as a child, and the thread that hears it. ``stop`` ends both; a kernel that dies ends the child too."""

    def __init__(
        self,
        hear: Callable[[dict[str, Any]], object],
        ended: Callable[[str], object],
        *arguments: str,
    ):
        self._hear, self._ended, self._stopped = hear, ended, False
        self.child = subprocess.Popen(
            [sys.executable, "-m", "helpers.tell.panels.sampler", *arguments],
            cwd=CHECKOUT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.thread = threading.Thread(target=self._run, name="casebook-monitor", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for line in self.child.stdout or ():
            if not self._stopped:
                self._hear(json.loads(line))
        if not self._stopped:
            self._ended(f"the sampler ended with exit code {self.child.wait()}: run the cell again")

    def watch(self, pid: int) -> None:
        """The next samples are of this process; 0 for none."""
        os.write(self.child.stdin.fileno(), b"%d\n" % pid)  # type: ignore[union-attr]

    def stop(self) -> None:
        """End the child and the thread. A child that a driver holds outlives SIGKILL: it is left behind after a while."""
        self._stopped = True
        self.child.kill()
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(END_S)
            self.thread.join(END_S)


def torch_numbers(pid: int, wait_s: float = 8.0) -> str:
    """What the allocator of a process says of itself, asked by SIGUSR1, which only one run under ``record`` gets.

    Raises ValueError where it was not: the signal would end any other.
    """
    given = dict(
        one.split(b"=", 1)
        for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"=" in one
    )
    if b"CASEBOOK_RECORD" not in given:
        raise ValueError(
            f"process {pid} was not started under record, so torch's own numbers do not show; next time: "
            "python -m helpers record --out run.pickle -- python your_program.py"
        )
    path = next(Path(json.loads(given[b"CASEBOOK_RECORD"])["folder"]).glob(f"{pid}-*.json"), None)
    row = json.loads(path.read_text()) if path else {"notes": []}
    if path is None or row["ended"] or row["signals"].get("SIGUSR1") != "recorder":
        raise ValueError(
            f"process {pid} does not listen: it has not imported torch, or handles SIGUSR1 itself"
        )
    before, until = len(row["snapshots"]), time.monotonic() + wait_s
    os.kill(pid, signal.SIGUSR1)
    while len(row["snapshots"]) <= before or not row["devices"]:
        if time.monotonic() > until:
            raise ValueError(
                f"process {pid} told no numbers within {wait_s:g} s. {' '.join(row['notes'])}"
            )
        time.sleep(0.1)
        row = json.loads(path.read_text())
    return "; ".join(
        f"device {one['index']}: torch holds {_size(one['stats'].get('reserved_bytes.all.current'))}, its tensors "
        f"{_size(one['stats'].get('allocated_bytes.all.current'))}"
        for one in row["devices"]
    )


def build(
    frame: Frame, monitor: Monitor, pid: int = 0, folder: Path = OUTPUTS, root: str = ""
) -> Sequence[Any]:
    """Which process, the buttons, the drawing and the tables, and the feed behind them."""
    make = frame.widgets.HTML
    watched = frame.field(
        "IntText", "Process (PID)", pid, tooltip="a process to watch from outside; 0 for none"
    )
    event = frame.field("Text", "Event", "", placeholder="such as: batch 2 starts")
    drawing, rows, asked = make(), make(), make()

    def hear(sample: dict[str, Any]) -> None:
        monitor.ring.append(sample)
        if not monitor.paused:
            drawing.value, rows.value = monitor.chart(), sample_html(sample)

    def pause() -> None:
        monitor.paused = not monitor.paused
        stop.description = "Go on" if monitor.paused else "Pause"
        frame.say(
            "what you see stands still; samples are still kept" if monitor.paused else "ready"
        )

    def mark() -> None:
        monitor.marks.append(
            (time.time(), event.value.strip() or f"event {len(monitor.marks) + 1}")
        )
        frame.say(f"marked: {monitor.marks[-1][1]}")

    def save() -> None:
        frame.say(f"saved {os.path.relpath(monitor.save(folder), CHECKOUT)}")

    def ask() -> None:
        asked.value = text_html(
            f"{datetime.now():%H:%M:%S}, process {watched.value}: {torch_numbers(watched.value)}"
        )

    feed = Feed(hear, frame.say, str(pid), "0.5", root)
    frame.ends.append(feed.stop)
    stop = frame.button("Pause", pause, "hold what is shown; sampling goes on")
    buttons = [
        stop,
        frame.button(
            "Mark the event", mark, "an upright line at this moment, kept with the samples"
        ),
        frame.button("Ask torch", ask, "a process run under record tells its allocator's numbers"),
        frame.button("Save as evidence", save, "a JSON file in outputs"),
    ]
    frame.changed(lambda: feed.watch(max(0, watched.value)), watched)
    return [
        watched,
        event,
        frame.widgets.HBox(buttons, layout={"flex_flow": "row wrap"}),
        drawing,
        asked,
        rows,
    ]


def show(bundle: Bundle, pid: int = 0) -> None:
    """The panel over this machine, whichever box the notebook is about; where nobody is there, that box's own moment."""
    found = gpus(bundle)
    present(
        NAME,
        lambda: [
            "One moment, as it was captured; with somebody at the keyboard this machine is sampled.",
            tables.pools_table([*found, *host_pools(bundle)], sources=False),
            tables.holders_table(found, sources=False),
        ],
        lambda frame: build(frame, Monitor(), pid),
    )
