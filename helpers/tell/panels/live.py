"""The live monitor: VRAM, GTT, host memory, who holds them, and one process from outside,
sampled twice a second.

The samples are taken by a program of its own (``sampler``), so no GPU context of this process
is in the way, and a driver that hangs hangs that program. Of torch's own numbers nothing shows
from outside; a process run under ``record`` tells them if asked. The panel of JupyterLab
(``monitor``) and a terminal (``terminal``) show the same rows. Standard library alone, rich
where it is.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from helpers.batch.kernel import environment
from helpers.ground.child import CHECKOUT, OUTPUTS
from helpers.ground.units import cut, plain, show_bytes
from helpers.look.files import write_atomic
from helpers.tell.shown import Shown
from helpers.tell.values import Column

END_S = 5.0
KEPT = 2400
DRAWN = 240
ROWS = 12
"""Samples of 20 minutes, of them two minutes drawn; holders listed."""
DASHES = ("", "7 3", "2 2", "9 2 2 2")
PROCESS = {"anonymous": "rss_anon", "resident": "rss", "swap": "swap", "VRAM": "vram", "GTT": "gtt"}
"""The sizes of the process watched, by their headings."""


class Monitor:
    """The last samples, the events marked on them, and whether what is shown stands still.

    It starts nothing itself.
    """

    def __init__(self, kept: int = KEPT):
        self.ring: deque[dict[str, Any]] = deque(maxlen=kept)
        self.marks: list[tuple[float, str]] = []
        self.paused = False

    def save(self, folder: Path) -> Path:
        """Keep every sample and event in a new JSON file.

        Raises ValueError where there is no sample yet.
        """
        if not self.ring:
            raise ValueError("there is no sample yet: nothing to save")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}.json"
        kept = {"schema_version": 1, "kind": "monitor", "samples": list(self.ring)}
        kept["events"] = [{"at": at, "says": says} for at, says in self.marks]
        write_atomic(path, json.dumps(kept))
        return path

    def mark(self, says: str = "") -> str:
        """Mark this moment; what is said of it."""
        self.marks.append((time.time(), says or f"event {len(self.marks) + 1}"))
        return f"marked: {self.marks[-1][1]}"

    def pause(self) -> str:
        """Hold what is shown, or go on; what is said of it, nothing where it goes on."""
        self.paused = not self.paused
        return "what you see stands still; samples are still kept" * self.paused

    def shares(self) -> dict[str, list[float | None]]:
        """In use, from 0 to 1, sample by sample: each GPU's VRAM, the host's RAM, and the
        process's own part of that.
        """
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
        """The shares over the last two minutes as one small bare, the newest at the right,
        events as upright lines.
        """
        from helpers.tell.sheet import SERIES

        lines = []
        words = []
        at = [one["at"] for one in list(self.ring)[-DRAWN:]]
        step = 600 / DRAWN  # points a sample, the newest at 600
        for number, (name, shares) in enumerate(self.shares().items()):
            color = SERIES[number % len(SERIES)]
            dash = DASHES[number % len(DASHES)]
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


def views(sample: dict[str, Any]) -> list[str | Shown]:
    """One sample as tables: pools, the process watched, and the largest holders."""
    host = sample["host"]
    one = sample["process"]
    ram = {"used": _host_used(sample), "total": host.get("MemTotal")}
    pools = [["host RAM", *_known(ram, "used", "total"), "", ""]]
    names = ("vram_used", "vram_total", "gtt_used", "gtt_total")
    pools += [[f"VRAM {gpu['pci']}", *_known(gpu, *names)] for gpu in sample["gpus"]]
    heads = ("in use", "of", "GTT in use", "of GTT")
    columns = ["pool", *(Column(name, "bytes") for name in heads)]
    shown: list[str | Shown] = [Shown("; ".join(sample["why"]), columns, pools)]
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
    """The sampler as a child, and the thread that hears it.

    ``stop`` ends both; a kernel that dies ends the child too.
    """

    def __init__(
        self,
        hear: Callable[[dict[str, Any]], object],
        ended: Callable[[str], object],
        *arguments: str,
    ):
        self._hear = hear
        self._ended = ended
        self._stopped = False
        self.child = subprocess.Popen(
            [sys.executable, "-m", "helpers.look.sampler", *arguments],
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
            self._ended(f"the sampler ended with exit code {self.child.wait()}: start it again")

    def watch(self, pid: int) -> None:
        """The next samples are of this process; 0 for none."""
        os.write(self.child.stdin.fileno(), b"%d\n" % pid)  # type: ignore[union-attr]

    def stop(self) -> None:
        """End the child and the thread.

        A child that a driver holds outlives SIGKILL: it is left behind after a while.
        """
        self._stopped = True
        self.child.kill()
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(END_S)
            self.thread.join(END_S)


def torch_numbers(pid: int, wait_s: float = 8.0) -> str:
    """What the allocator of a process says of itself, asked by SIGUSR1, which only one run
    under ``record`` gets.

    Raises ValueError where it was not: the signal would end any other.
    """
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    given = dict(one.split(b"=", 1) for one in lines if b"=" in one)
    if b"CASEBOOK_RECORD" not in given:
        raise ValueError(
            f"process {pid} was not started under record, so torch's own numbers do not show; next time: "
            "python3 -m helpers record --out run.pickle -- python your_program.py"
        )
    path = next(Path(json.loads(given[b"CASEBOOK_RECORD"])["folder"]).glob(f"{pid}-*.json"), None)
    row = json.loads(path.read_text()) if path else {"notes": []}
    if path is None or row["ended"] or row["signals"].get("SIGUSR1") != "recorder":
        raise ValueError(
            f"process {pid} does not listen: it has not imported torch, or handles SIGUSR1 itself"
        )
    before = len(row["snapshots"])
    until = time.monotonic() + wait_s
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


# In a terminal.

KEYS = "q quits, m marks this moment, s saves what was seen, p holds the picture"
BARS = " ▁▂▃▄▅▆▇█"
SCREEN = "\x1b[?1049h\x1b[?25l"
BACK = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"


def picture(monitor: Monitor, says: str, columns: int, rows: int) -> list[str]:
    """The lines of one screen: the keys, what is in use over the last minutes, and the tables
    of the newest sample.
    """
    lines = [cut(f"{datetime.now():%H:%M:%S}  {says}", columns), ""]
    shares = monitor.shares()
    wide = max(10, columns - 48)
    for name, share in shares.items():
        bars = "".join("?" if one is None else BARS[round(8 * one)] for one in share[-wide:])
        now = "not known" if share[-1] is None else f"{100 * share[-1]:.0f} %"
        lines.append(cut(f"{name:<32} {now:>9}  {bars}", columns))
    for part in views(monitor.ring[-1]):
        words = [part] if isinstance(part, str) else [part.title, *part.text().splitlines()]
        lines += ["", *(cut(plain(line), columns) for line in words if line)]
    return lines[: rows - 1]


def line_of(sample: dict[str, Any]) -> str:
    """One sample in one line, for what is not a terminal: the pools, the process watched, the
    holders.
    """
    words = [f"{datetime.fromtimestamp(sample['at']):%H:%M:%S}"]
    for part in views(sample):
        rows = [{"": part}] if isinstance(part, str) else part.rows
        for row in rows:
            known = {name: one for name, one in row.items() if one != ""}
            sized = {name: show_bytes(v) if isinstance(v, int) else v for name, v in known.items()}
            words.append(" ".join(f"{name} {one}" for name, one in sized.items()).strip())
    return "; ".join([*words, *sample["why"]])


def terminal(pid: int, every_s: float, count: int | None, as_json: bool) -> int:
    """Show the samples until ``q``, Ctrl-C, a closed terminal or ``count`` samples; lines where
    the output is no terminal.
    """
    monitor = Monitor()
    ended: list[str] = []
    bare = getattr(sys.stdout, "drawn", sys.stdout)
    drawn = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    feed = Feed(monitor.ring.append, ended.append, str(pid), str(every_s))
    says = KEYS
    before = None
    seen = 0
    old = termios.tcgetattr(0) if drawn else None
    handlers = {one: signal.signal(one, _end) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if drawn:
            tty.setcbreak(0)
            print(SCREEN, end="", file=bare)
        while not ended and (count is None or seen < count):
            ready = select.select([0] if drawn else [], [], [], 0.1)[0]
            key = os.read(0, 1) if ready else b" "
            if key in (b"q", b""):
                break
            says = _pressed(key, monitor) or says
            newest = monitor.ring[-1] if monitor.ring else None
            if newest is None or (newest is before and key == b" "):
                continue
            seen = seen + (newest is not before)
            before = newest
            if not drawn:
                print(json.dumps(newest) if as_json else line_of(newest), flush=True)
            elif not monitor.paused or key != b" ":
                lines = picture(monitor, says, *shutil.get_terminal_size())
                print(HOME + "\x1b[K\n".join(lines) + "\x1b[J", end="", file=bare, flush=True)
    except KeyboardInterrupt:
        pass
    finally:
        feed.stop()
        for one, handler in handlers.items():
            signal.signal(one, handler)
        if old is not None:
            with suppress(OSError, termios.error):  # a terminal that is gone takes nothing back
                termios.tcsetattr(0, termios.TCSADRAIN, old)
                print(BACK, end="", file=bare, flush=True)
    print("".join(f"{one}\n" for one in [*ended, *([says] if says != KEYS else [])]), end="")
    return int(bool(ended))


def _end(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _pressed(key: bytes, monitor: Monitor) -> str:
    """Do what a key asks for; what is said of it, or nothing."""
    if key == b"m":
        return f"{monitor.mark()}; {KEYS}"
    if key == b"s" and monitor.ring:
        return f"saved {monitor.save(OUTPUTS / 'monitor')}"
    if key == b"p":
        return monitor.pause() or KEYS
    return ""
