"""What the live monitor costs: CPU seconds a second, of the sampler and of the panel that draws what it says.

``python tests/monitor_cost.py`` prints the rows; ``casebook bench monitor`` measures them with the others. Nothing
here is a test.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
SETTLE_S = 3.0
MEASURED_S = 12.0
PROCESSES = 500
TICK = os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


def _own_cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _shares(root: str) -> tuple[float, float, float, int]:
    """CPU seconds a second of the sampler and of this process, of all wake-ups the samples a second, and how many came."""
    from helpers.tell.panels import live, monitor
    from helpers.tell.panels.frame import open_panel

    watch = monitor.Watch(pid=os.getpid(), root=root)
    frame = open_panel(monitor.PANEL.name, lambda made: monitor.build(made, watch))
    feed = next(end.__self__ for end in frame.ends)  # type: ignore[attr-defined]
    hear = feed._hear
    samples: list[Any] = []
    feed._hear = lambda sample: (samples.append(sample), hear(sample))
    time.sleep(SETTLE_S)
    feed._hear = hear
    for _ in range(live.DRAWN):  # as after two minutes: the drawing is at its largest
        hear(samples[-1])
    seen: list[Any] = []
    frame.box.children[3].observe(lambda change: seen.append(1), names="value")
    before = _cpu_s(feed.child.pid)
    own = _own_cpu_s()
    began = time.monotonic()
    time.sleep(MEASURED_S)
    took = time.monotonic() - began
    sampler = (_cpu_s(feed.child.pid) - before) / took
    panel = (_own_cpu_s() - own) / took
    frame.close()
    return sampler, panel, len(seen) / took, len(seen)


def measure() -> list[dict]:
    """The monitor at 2 Hz over 500 real processes, and over a tree of 500 of which 50 hold 1,000 GPU files on two cards."""
    from trees import make_tree

    rows = []
    sleepers = [subprocess.Popen(["sleep", "120"]) for _ in range(PROCESSES)]
    try:
        rows += _rows(f"monitor, {PROCESSES} real processes", *_shares(""))
    finally:
        for one in sleepers:
            one.kill()
        for one in sleepers:
            one.wait()
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), processes=PROCESSES, device_files=1000, amd=2)
        rows += _rows(f"monitor, a tree of {PROCESSES}, 50 holders", *_shares(folder))
    return rows


def _rows(name: str, sampler: float, panel: float, hertz: float, samples: int) -> list[dict]:
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    hz = f"one second of a core, {hertz:.1f} samples a second"
    common = {"unit": "% of a core", "ratio_to": hz, "machine": machine}
    parts = {"sampler": sampler, "panel in the kernel": panel, "both": sampler + panel}
    return [
        {"name": f"{name}: {part}", "value": round(100 * share, 3), "ratio": round(share, 4)}
        | {"goal": "" if share is panel else "< 1 %", **common}
        for part, share in parts.items()
    ]


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
