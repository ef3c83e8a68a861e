"""The live monitor: VRAM, GTT, host memory, who holds them, and one process from outside,
sampled twice a second.

The samples are taken by a program of its own (``sampler``), so no GPU context of this process
is in the way, and a driver that hangs hangs that program. The panel of JupyterLab (``monitor``)
and a terminal (``terminal``) show the same rows. Standard library alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from helpers.ground.child import CHECKOUT
from helpers.ground.workbook_process import environment
from helpers.tell.shown import Shown
from helpers.tell.values import Column

END_S = 5.0
DRAWN = 240
"""Samples of two minutes."""
ROWS = 12
"""Holders listed."""
DASHES = ("", "7 3", "2 2", "9 2 2 2")
PROCESS = {
    "anonymous": "rss_anon",
    "resident": "rss",
    "swap": "swap",
    "VRAM": "vram",
    "GTT": "gtt",
}
"""The sizes of the process watched, by their headings."""


def shares_of(samples: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """In use, from 0 to 1, sample by sample: each GPU's VRAM, the host's RAM, and the
    process's own part of that.
    """
    lines: dict[str, list[float | None]] = {}
    for sample in samples:
        for gpu in sample["gpus"]:
            lines[f"VRAM {gpu['pci']}"] = []
    for sample in samples:
        used = {
            f"VRAM {gpu['pci']}": _share(gpu.get("vram_used"), gpu.get("vram_total"))
            for gpu in sample["gpus"]
        }
        for name in lines:
            lines[name].append(used.get(name))
    totals = [sample["host"].get("MemTotal") for sample in samples]
    anonymous = [(sample["process"] or {}).get("rss_anon") for sample in samples]
    lines["host RAM"] = list(map(_share, map(_host_used, samples), totals))
    if any(anonymous):
        lines["the process, anonymous"] = list(map(_share, anonymous, totals))
    return lines


def chart(samples: Sequence[dict[str, Any]]) -> str:
    """The shares over the last two minutes as one small SVG, the newest at the right."""
    from helpers.tell.figure_style import SERIES

    lines = []
    words = []
    step = 600 / DRAWN  # points a sample, the newest at 600
    for number, (name, shares) in enumerate(shares_of(samples).items()):
        color = SERIES[number % len(SERIES)]
        dash = DASHES[number % len(DASHES)]
        stroke = (
            f"fill='none' stroke='{color}' stroke-width='2' stroke-dasharray='{dash}'"
        )
        places = [
            f"{600 - step * (len(shares) - at):.0f},{100 - 98 * share:.1f}"
            for at, share in enumerate(shares)
            if share is not None
        ]
        lines.append(f"<polyline {stroke} points='{' '.join(places)}'/>")
        key = f"<svg width='30' height='8'><line x2='30' y1='4' y2='4' {stroke}/></svg>"
        words.append(f"{key} {name} {percent(shares[-1:])}")
    return (
        "<svg role='img' aria-label='In use, in words below' viewBox='0 0 600 101' width='600' "
        "style='max-width:100%;display:block;border:1px solid #8a949e;border-width:1px 0'>"
        f"{''.join(lines)}</svg><div>100 % is the upper edge, two minutes the width: "
        f"{' &nbsp; '.join(words)}</div>"
    )


def percent(newest: Sequence[float | None]) -> str:
    """The last share of a list in words; "not known" where there is none."""
    if not newest or newest[-1] is None:
        return "not known"
    return f"{100 * newest[-1]:.0f} %"


def _share(part: int | None, total: int | None) -> float | None:
    if part is None or not total:
        return None
    return min(1.0, part / total)


def _host_used(sample: dict[str, Any]) -> int | None:
    host = sample["host"]
    if not {"MemTotal", "MemAvailable"} <= host.keys():
        return None
    return int(host["MemTotal"] - host["MemAvailable"])


def _cells(row: dict[str, Any], *names: str) -> list[Any]:
    """Values of a row; what is absent is said to be."""
    return ["not known" if row.get(name) is None else row[name] for name in names]


def views(sample: dict[str, Any]) -> list[str | Shown]:
    """One sample as tables: pools, the process watched, and the largest holders."""
    tables: list[str | Shown] = [_pools(sample)]
    process = sample["process"]
    if process and "why" in process:
        tables.append(f"process {process['pid']}: {process['why']}")
    elif process:
        columns = ["pid", "name", "state", *(Column(name, "bytes") for name in PROCESS)]
        row = [
            str(process["pid"]),
            *_cells(process, "name", "state", *PROCESS.values()),
        ]
        tables.append(Shown("the process watched, from outside", columns, [row]))
    return [*tables, _holders(sample["holders"])]


def _pools(sample: dict[str, Any]) -> Shown:
    host = {"used": _host_used(sample), "total": sample["host"].get("MemTotal")}
    rows = [["host RAM", *_cells(host, "used", "total"), "", ""]]
    for gpu in sample["gpus"]:
        sizes = _cells(gpu, "vram_used", "vram_total", "gtt_used", "gtt_total")
        rows.append([f"VRAM {gpu['pci']}", *sizes])
    heads = ("in use", "of", "GTT in use", "of GTT")
    columns = ["pool", *(Column(name, "bytes") for name in heads)]
    return Shown("; ".join(sample["why"]), columns, rows)


def _holders(holders: list[dict[str, Any]]) -> Shown:
    largest = sorted(holders, key=lambda row: row.get("vram") or 0, reverse=True)
    title = "who uses GPU memory"
    if len(largest) > ROWS:
        title += f", the {ROWS} largest of {len(largest)}"
    rows = [
        [
            str(row["pid"]),
            row["name"],
            row["pci"],
            *_cells(row, "vram", "gtt"),
            row["by"],
        ]
        for row in largest[:ROWS]
    ]
    columns = [
        "pid",
        "name",
        "GPU",
        Column("VRAM", "bytes"),
        Column("GTT", "bytes"),
        "by",
    ]
    return Shown(title, columns, rows)


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
        self.thread = threading.Thread(
            target=self._run, name="casebook-monitor", daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        for line in self.child.stdout or ():
            if not self._stopped:
                self._hear(json.loads(line))
        if not self._stopped:
            self._ended(
                f"the sampler ended with exit code {self.child.wait()}: start it again"
            )

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
