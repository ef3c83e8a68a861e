"""The live monitor: VRAM, GTT and host memory, the processes that hold them, and one process that
is watched from outside, sampled twice a second.

helpers/look/sampler.py takes the samples as a program of its own, so this process needs no GPU
context, and a driver that hangs does not hang it. The panel of JupyterLab (``monitor``) and a
terminal (``terminal``) show the same rows. The standard library is enough.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from helpers.ground.child import CHECKOUT
from helpers.ground.workbook_process import environment
from helpers.tell.shown import Shown
from helpers.tell.values import Column

if TYPE_CHECKING:
    from helpers.look.sampler import Row

END_S = 5.0
"""Seconds for the end of the sampler: one that a driver holds does not end."""
EVERY_S = 0.5
"""Seconds between samples: a process takes and gives back memory about as fast."""
DRAWN = 240
"""Samples of the chart: two minutes."""
MOST_HOLDERS = 12
"""Holders that are listed, so that a terminal of 25 lines shows them all."""
DASHES = ("", "7 3", "2 2", "9 2 2 2")
"""Lines differ by their dashes, too, in pixels as SVG has them: none is told by colour alone."""
WIDTH = 600
HEIGHT = 100
"""Size of the chart in pixels."""
PROCESS = {
    "anonymous": "rss_anon",
    "resident": "rss",
    "swap": "swap",
    "VRAM": "vram",
    "GTT": "gtt",
}
"""The sizes of the watched process: their headings, and their names in a sample."""


def shares_of(samples: Sequence[Row]) -> dict[str, list[float | None]]:
    """Lines of a chart by their names: the VRAM of each GPU, the host's RAM, and the part of it
    that the watched process holds.

    A line has for each sample the share that is in use, from 0 to 1; None where it is not known.
    """
    shares_by_sample = [_vram_shares(sample) for sample in samples]
    # A GPU may be missing in some samples, so its name comes from any of them.
    lines: dict[str, list[float | None]] = {}
    for vram_shares in shares_by_sample:
        lines.update(dict.fromkeys(vram_shares, []))
    for name in lines:
        lines[name] = [vram_shares.get(name) for vram_shares in shares_by_sample]
    host = []
    anonymous = []
    for sample in samples:
        total = sample["host"].get("MemTotal")
        host.append(_share(_host_used(sample), total))
        process = sample["process"] or {}
        anonymous.append(_share(process.get("rss_anon"), total))
    lines["host RAM"] = host
    if any(anonymous):  # a process is watched, and what it holds was read
        lines["the process, anonymous"] = anonymous
    return lines


def _vram_shares(sample: Row) -> dict[str, float | None]:
    """The share of its VRAM that is in use, for each GPU of a sample by the name of its line."""
    shares = {}
    for gpu in sample["gpus"]:
        share = _share(gpu.get("vram_used"), gpu.get("vram_total"))
        shares[f"VRAM {gpu['pci']}"] = share
    return shares


def chart(samples: Sequence[Row]) -> str:
    """The shares over the last DRAWN samples as one small SVG, the newest at the right, and below
    it a legend with the newest shares. A moment of which a share is not known has no point.
    """
    from helpers.tell.figure_style import SERIES

    lines = []
    legend = []
    step = WIDTH / DRAWN
    for number, (name, shares) in enumerate(shares_of(samples).items()):
        color = SERIES[number % len(SERIES)]
        dash = DASHES[number % len(DASHES)]
        stroke = (
            f"fill='none' stroke='{color}' stroke-width='2' stroke-dasharray='{dash}'"
        )
        points = []
        for place, share in enumerate(shares):
            if share is not None:
                x = WIDTH - step * (len(shares) - place)
                # A line of 2 pixels at 100 % is still whole at 98 % of the height.
                y = HEIGHT - 0.98 * HEIGHT * share
                points.append(f"{x:.0f},{y:.1f}")
        lines.append(f"<polyline {stroke} points='{' '.join(points)}'/>")
        key = f"<svg width='30' height='8'><line x2='30' y1='4' y2='4' {stroke}/></svg>"
        legend.append(f"{key} {name} {percent(shares[-1])}")
    view_box = f"0 0 {WIDTH} {HEIGHT + 1}"  # 1: the lower half of a line at 0 %
    return (
        f"<svg role='img' aria-label='In use, in words below' viewBox='{view_box}' width='{WIDTH}' "
        "style='max-width:100%;display:block;border:1px solid #8a949e;border-width:1px 0'>"
        f"{''.join(lines)}</svg><div>100 % is the upper edge, two minutes the width: "
        f"{' &nbsp; '.join(legend)}</div>"
    )


def percent(share: float | None) -> str:
    """A share of 1 in whole percent, or that it is not known."""
    if share is None:
        return "not known"
    return f"{100 * share:.0f} %"


def _share(part: int | None, total: int | None) -> float | None:
    """The share that a part has of a total, at most 1, as the two may be read at different moments;
    None where either is not known.
    """
    if part is None or not total:
        return None
    return min(1.0, part / total)


def _host_used(sample: Row) -> int | None:
    """Bytes of RAM in use: all but what programs can still get; None where that is not known."""
    host = sample["host"]
    if not {"MemTotal", "MemAvailable"} <= host.keys():
        return None
    return int(host["MemTotal"] - host["MemAvailable"])


def _values_or_not_known(row: Row, *names: str) -> list[object]:
    """The values of a row, "not known" for those that it lacks."""
    values = []
    for name in names:
        value = row.get(name)
        if value is None:
            value = "not known"
        values.append(value)
    return values


def views(sample: Row) -> list[str | Shown]:
    """One sample as tables: the pools, the watched process, and the largest holders. In place of
    the process is a sentence where it could not be read, and nothing where none is watched.
    """
    tables: list[str | Shown] = [_pools(sample)]
    process = sample["process"]
    if process and "why" in process:
        tables.append(f"process {process['pid']}: {process['why']}")
    elif process:
        columns = ["pid", "name", "state", *(Column(name, "bytes") for name in PROCESS)]
        cells = _values_or_not_known(process, "name", "state", *PROCESS.values())
        row = [str(process["pid"]), *cells]
        tables.append(Shown("the process watched, from outside", columns, [row]))
    return [*tables, _holders(sample["holders"])]


def _pools(sample: Row) -> Shown:
    """How much of the RAM and of each GPU's memory is in use; the title says what cannot be seen."""
    host = {"used": _host_used(sample), "total": sample["host"].get("MemTotal")}
    rows = [["host RAM", *_values_or_not_known(host, "used", "total"), "", ""]]
    for gpu in sample["gpus"]:
        sizes = _values_or_not_known(
            gpu, "vram_used", "vram_total", "gtt_used", "gtt_total"
        )
        rows.append([f"VRAM {gpu['pci']}", *sizes])
    heads = ("in use", "of", "GTT in use", "of GTT")
    columns = ["pool", *(Column(name, "bytes") for name in heads)]
    return Shown("; ".join(sample["why"]), columns, rows)


def _holders(holders: list[Row]) -> Shown:
    """The processes that hold GPU memory, the largest first."""
    largest = sorted(holders, key=_vram_bytes, reverse=True)
    title = "who uses GPU memory"
    if len(largest) > MOST_HOLDERS:
        title += f", the {MOST_HOLDERS} largest of {len(largest)}"
    rows = []
    for row in largest[:MOST_HOLDERS]:
        sizes = _values_or_not_known(row, "vram", "gtt")
        rows.append([str(row["pid"]), row["name"], row["pci"], *sizes, row["by"]])
    sizes_heads = [Column("VRAM", "bytes"), Column("GTT", "bytes")]
    return Shown(title, ["pid", "name", "GPU", *sizes_heads, "by"], rows)


def _vram_bytes(holder: Row) -> int:
    """The VRAM that a process holds, 0 where the driver does not say it."""
    size = holder.get("vram")
    if size is None:
        return 0
    return int(size)


class Feed:
    """The sampler as a child process, and the thread that reads its samples.

    ``stop`` ends both. When a kernel dies, the end of its standard input ends the child.
    """

    def __init__(
        self,
        hear: Callable[[Row], object],
        ended: Callable[[str], object],
        *arguments: str,
    ):
        """Call ``hear`` with each sample, and ``ended`` with a sentence where the sampler ends by
        itself; ``arguments`` are those of the sampler.
        """
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
        """Pass samples on until the sampler ends; the work of the thread."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if not self._stopped:
                self._hear(json.loads(line))
        if not self._stopped:
            self._ended(
                f"the sampler ended with exit code {self.child.wait()}: start it again"
            )

    def watch(self, pid: int) -> None:
        """Watch this process from the next sample on; 0 for none."""
        assert self.child.stdin is not None
        os.write(self.child.stdin.fileno(), b"%d\n" % pid)

    def stop(self) -> None:
        """End the child and the thread.

        A child that waits within a driver outlives SIGKILL: it is left behind after END_S.
        """
        self._stopped = True
        self.child.kill()
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(END_S)
            self.thread.join(END_S)
