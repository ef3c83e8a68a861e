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
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.child import CHECKOUT
from helpers.load.targets import is_this_box
from helpers.look.bundle import Bundle
from helpers.look.files import write_atomic
from helpers.look.reading import show_bytes
from helpers.run.kernel import environment
from helpers.tell.sheet import SERIES
from helpers.tell.shown import Column, Shown

from .frame import Frame, Panel, Part, parts_html, text_html

OUTPUTS = CHECKOUT / "outputs" / "monitor"
END_S = 5.0
KEPT, DRAWN, ROWS = 2400, 240, 12
"""Samples of 20 minutes, of them two minutes drawn; holders listed."""
DASHES = ("", "7 3", "2 2", "9 2 2 2")
PROCESS = {"anonymous": "rss_anon", "resident": "rss", "swap": "swap", "VRAM": "vram", "GTT": "gtt"}
"""The sizes of the process watched, by their headings."""


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
        kept = {"schema_version": 1, "kind": "monitor", "samples": list(self.ring)}
        kept["events"] = [{"at": at, "says": says} for at, says in self.marks]
        write_atomic(path, json.dumps(kept))
        return path

    def shares(self) -> dict[str, list[float | None]]:
        """In use, from 0 to 1, sample by sample: each GPU's VRAM, the host's RAM, and the process's own part of that."""
        drawn = list(self.ring)[-DRAWN:]
        lines: dict[str, list[float | None]] = {}
        for pci in dict.fromkeys(gpu["pci"] for one in drawn for gpu in one["gpus"]):
            of: list[Any] = [
                next((gpu for gpu in one["gpus"] if gpu["pci"] == pci), {}) for one in drawn
            ]
            used = [_share(gpu.get("vram_used"), gpu.get("vram_total")) for gpu in of]
            lines[f"VRAM {pci}"] = used
        whole = [one["host"].get("MemTotal") for one in drawn]
        own = [(one["process"] or {}).get("rss_anon") for one in drawn]
        lines["host RAM"] = list(map(_share, map(_host_used, drawn), whole))
        if any(own):
            lines["the process, anonymous"] = list(map(_share, own, whole))
        return lines

    def chart(self) -> str:
        """The shares over the last two minutes as one small drawing, the newest at the right, events as upright lines."""
        lines, words, at = [], [], [one["at"] for one in list(self.ring)[-DRAWN:]]
        step = 600 / DRAWN  # points a sample, the newest at 600
        for number, (name, shares) in enumerate(self.shares().items()):
            color, dash = SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
            stroke = f"fill='none' stroke='{color}' stroke-width='2' stroke-dasharray='{dash}'"
            known = [(i, share) for i, share in enumerate(shares) if share is not None]
            places = [
                f"{600 - step * (len(at) - i):.0f},{100 - 98 * share:.1f}" for i, share in known
            ]
            lines.append(f"<polyline {stroke} points='{' '.join(places)}'/>")
            last = shares[-1] if shares else None
            now = "not known" if last is None else f"{100 * last:.0f} %"
            key = f"<svg width='30' height='8'><line x2='30' y1='4' y2='4' {stroke}/></svg>"
            words.append(f"{key} {name} {now}")
        for when in (when for when, _ in self.marks if at and when >= at[0]):
            x = 600 - step * sum(one > when for one in at)
            lines.append(
                f"<line x1='{x}' x2='{x}' y2='100' stroke='#d55e00' stroke-dasharray='3 2'/>"
            )
        return (
            f"<svg role='img' aria-label='In use, in words below' viewBox='0 0 600 101' width='600' style='max-width:100%;"
            f"display:block;border:1px solid #8a949e;border-width:1px 0'>{''.join(lines)}</svg><div>100 % is the upper "
            f"edge, two minutes the width: {' &nbsp; '.join(words)}</div>"
        )


def _share(part: int | None, whole: int | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _host_used(sample: dict[str, Any]) -> int | None:
    host = sample["host"]
    if not {"MemTotal", "MemAvailable"} <= host.keys():
        return None
    return int(host["MemTotal"] - host["MemAvailable"])


def _known(row: dict[str, Any], *names: str) -> list[Any]:
    """Values of a row; what is absent is said to be."""
    return ["not known" if row.get(name) is None else row[name] for name in names]


def views(sample: dict[str, Any]) -> list[Part]:
    """One sample as tables: pools, the process watched, and the largest holders."""
    host, one = sample["host"], sample["process"]
    ram = {"used": _host_used(sample), "total": host.get("MemTotal")}
    pools = [["host RAM", *_known(ram, "used", "total"), "", ""]]
    names = ("vram_used", "vram_total", "gtt_used", "gtt_total")
    pools += [[f"VRAM {gpu['pci']}", *_known(gpu, *names)] for gpu in sample["gpus"]]
    heads = ("in use", "of", "GTT in use", "of GTT")
    columns = ["pool", *(Column(name, "bytes") for name in heads)]
    shown: list[Part] = [Shown("; ".join(sample["why"]), columns, pools)]
    if one and "why" in one:
        shown.append(f"process {one['pid']}: {one['why']}")
    elif one:
        columns = ["pid", "name", "state", *(Column(name, "bytes") for name in PROCESS)]
        row = [str(one["pid"]), *_known(one, "name", "state", *PROCESS.values())]
        shown.append(Shown("the process watched, from outside", columns, [row]))
    largest = sorted(sample["holders"], key=lambda row: -(row.get("vram") or 0))
    rows = [
        [str(row["pid"]), row["name"], row["pci"], *_known(row, "vram", "gtt"), row["by"]]
        for row in largest[:ROWS]
    ]
    more = f", the {ROWS} largest of {len(largest)}" if len(largest) > ROWS else ""
    columns = ["pid", "name", "GPU", Column("VRAM", "bytes"), Column("GTT", "bytes"), "by"]
    return [*shown, Shown("who holds GPU memory" + more, columns, rows)]


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
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    given = dict(one.split(b"=", 1) for one in lines if b"=" in one)
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
                f"process {pid} gave no numbers within {wait_s:g} s. {' '.join(row['notes'])}"
            )
        time.sleep(0.1)
        row = json.loads(path.read_text())
    return "; ".join(_device_words(one["index"], one["stats"]) for one in row["devices"])


def _device_words(index: int, stats: dict[str, int]) -> str:
    keys = ("reserved_bytes.all.current", "allocated_bytes.all.current")
    held, live = ("not known" if stats.get(k) is None else show_bytes(stats[k]) for k in keys)
    return f"device {index}: torch holds {held}, its tensors {live}"


@dataclass(frozen=True)
class Watch:
    """A captured box, the process to watch on this machine (0: none), where samples are kept, and the root that is sampled."""

    bundle: Bundle | None = None
    pid: int = 0
    folder: Path = OUTPUTS
    root: str = ""
    monitor: Monitor = field(default_factory=Monitor)

    @property
    def here(self) -> bool:
        """Whether this machine is the box, so that watching it shows the box."""
        return self.bundle is None or is_this_box(self.bundle)

    def parts(self) -> list[Part]:
        """One sentence: a page has no live monitor."""
        if self.here:
            return [
                "The live monitor samples this machine twice a second while a notebook is open."
            ]
        box = self.bundle.box if self.bundle else ""
        return [f"No live monitor: this machine is not {box}, which was recorded. Give box = live."]


def build(frame: Frame, watch: Watch) -> Sequence[Any]:
    """Which process, the buttons, the drawing and the tables, and the feed behind them."""
    make, monitor = frame.widgets.HTML, watch.monitor
    if not watch.here:
        return [make(parts_html(watch.parts()))]
    tip = "a process to watch from outside; 0 for none"
    watched = frame.field("IntText", "Process (PID)", watch.pid, tooltip=tip)
    event = frame.field("Text", "Event", "", placeholder="such as: batch 2 starts")
    drawing, rows, asked = make(), make(), make()

    def hear(sample: dict[str, Any]) -> None:
        monitor.ring.append(sample)
        if not monitor.paused:
            drawing.value, rows.value = monitor.chart(), parts_html(views(sample))

    def pause() -> None:
        monitor.paused = not monitor.paused
        stop.description = "Go on" if monitor.paused else "Pause"
        stands = "what you see stands still; samples are still kept"
        frame.say(stands if monitor.paused else "ready")

    def mark() -> None:
        says = event.value.strip() or f"event {len(monitor.marks) + 1}"
        monitor.marks.append((time.time(), says))
        frame.say(f"marked: {says}")

    def save() -> None:
        frame.say(f"saved {os.path.relpath(monitor.save(watch.folder), CHECKOUT)}")

    def ask() -> None:
        said = torch_numbers(watched.value)
        asked.value = text_html(f"{datetime.now():%H:%M:%S}, process {watched.value}: {said}")

    feed = Feed(hear, frame.say, str(watch.pid), "0.5", watch.root)
    frame.ends.append(feed.stop)
    stop = frame.button("Pause", pause, "hold what is shown; sampling goes on")
    torch = "a process run under record tells its allocator's numbers"
    buttons = [
        stop,
        frame.button("Mark the event", mark, "an upright line now, kept with the samples"),
        frame.button("Ask torch", ask, torch),
        frame.button("Save as evidence", save, "a JSON file in outputs"),
    ]
    frame.changed(lambda: feed.watch(max(0, watched.value)), watched)
    return [watched, event, frame.row(*buttons), drawing, asked, rows]


PANEL = Panel("Live monitor", Watch, build)
show = PANEL.show
