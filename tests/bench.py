"""Figures of the workbook itself, as ratios within one run: ``casebook bench``. Nothing here is a test."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20


def _timed(argv: list[str]) -> tuple[float, int]:
    """Wall seconds and peak resident bytes of one command; RuntimeError with its last words where it fails."""
    program = (
        "import json, resource, subprocess, sys, time; began = time.perf_counter(); "
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE); "
        "print(json.dumps([time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, "
        "done.returncode, done.stderr.decode()[-300:]]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, check=True
    ).stdout
    seconds, peak, code, words = json.loads(out)
    if code:
        raise RuntimeError(f"{' '.join(argv)}: exit {code}: {words}")
    return seconds, peak


def capture() -> list[dict]:
    """A tree with 1,000 processes and 5,000 GPU device files, beside one with 100 and 500 (what a start of Python costs)."""
    sys.path.insert(0, str(ROOT / "tests"))
    from trees import make_tree

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        figures = {}
        for name, processes, files in (("small", 100, 500), ("large", 1000, 5000)):
            root = Path(folder, name)
            make_tree(root, processes=processes, device_files=files, amd=2)
            out = str(Path(folder, name + ".tar.gz"))
            runs = [
                _timed(
                    [
                        sys.executable,
                        "-m",
                        "helpers",
                        "capture",
                        "--root",
                        str(root),
                        "--force",
                        "--out",
                        out,
                    ]
                )
                for _ in range(3)
            ]
            figures[name] = min(runs)
        (small_s, small_bytes) = figures["small"]
        (large_s, large_bytes) = figures["large"]
        tenth = "the same, a tenth as many"
        rows.append(
            row("capture, 1000 processes, 5000 device files", large_s, "s", tenth, small_s, "< 2 s")
        )
        rows.append(
            row("its peak memory", large_bytes / MIB, "MiB", tenth, small_bytes / MIB, "< 150 MB")
        )
    return rows


def imports() -> list[dict]:
    """``import helpers`` beside an empty Python."""
    empty = min(_timed([sys.executable, "-c", ""]) for _ in range(5))[0]
    package = min(_timed([sys.executable, "-c", "import helpers"]) for _ in range(5))[0]
    return [row("import helpers", package - empty, "s", "starting Python", empty, "< 0.3 s")]


def judge() -> list[dict]:
    """One message, and a recorded box, diagnosed by a fresh Python without packages, beside an empty one: best of five."""
    message = (
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.56 "
        b"GiB of which 512.00 MiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 300.00 MiB is "
        b"reserved by PyTorch but unallocated.\n"
    )
    plain = [sys.executable, "-I", "-S"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "error.txt")
        file.write_bytes(message)
        asked = {
            "one message diagnosed": ["--message", str(file)],
            "one bundle diagnosed": [str(ROOT / "env/boxes/strix-halo-1-found")],
        }
        took = {name: [] for name in ("", *asked)}
        for _ in range(5):
            took[""].append(_timed([*plain, "-c", ""])[0])
            for name, words in asked.items():
                took[name].append(
                    _timed([*plain, str(ROOT / "helpers/__main__.py"), "diagnose", *words])[0]
                )
    empty = min(took.pop(""))
    return [
        row(name, min(seconds), "s", "starting Python", empty, "< 2 s")
        for name, seconds in took.items()
    ]


def batch() -> list[dict]:
    """The quick plan on a recorded box, beside one start of Python with the same packages."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "helpers",
                "run",
                str(ROOT / "notebooks/plans/quick.yaml"),
                "--box",
                "rx7900xt-container",
                "--out",
                folder,
            ],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        took = time.perf_counter() - began
    base = _timed([sys.executable, "-c", "import papermill, matplotlib.figure, mistune"])[0]
    return [
        row("quick plan on a recorded box", took, "s", "importing what it uses", base, "< 60 s")
    ]


def replay() -> list[dict]:
    """The allocator compiled and in plain Python, on a trace of a real program; the grid of a what-if; the first answers."""
    from helpers.allocator.driver import Card
    from helpers.allocator.oracle_lines import from_oracle
    from helpers.allocator.replay import replay as run
    from helpers.allocator.whatif import whatif
    from helpers.settings.in_force import grid
    from helpers.settings.releases import behaviour
    from tests.oracle import speed

    loop = ROOT / "env/traces/growing-loop.parquet"
    asked = (
        [sys.executable, "-m", "helpers", "replay", str(loop)],
        [
            sys.executable,
            "-c",
            "from helpers.allocator.study import open_study; from helpers.allocator.views.studies import view; "
            "view(open_study('growing-loop'))",
        ],
    )
    with tempfile.TemporaryDirectory() as empty:  # no machine code is kept there
        took_first = []
        for argv in asked:
            began = time.perf_counter()
            subprocess.run(
                argv,
                check=True,
                capture_output=True,
                cwd=ROOT,
                env={**os.environ, "NUMBA_CACHE_DIR": empty},
            )
            took_first.append(time.perf_counter() - began)
    ops = list(speed.operations(speed.trace()))
    trace = from_oracle(map(json.dumps, ops))
    figures = {}
    for engine in ("compiled", "plain"):
        figures[engine] = min(
            _seconds(lambda name=engine: run(trace, "", Card(8 << 30), engine=name))
            for _ in range(3)
        )
    rate = len(trace) / figures["compiled"]
    part = from_oracle(map(json.dumps, ops[:100_000]))
    confs = list(grid(behaviour("2.14.1")))
    took = _seconds(lambda: whatif(part, Card(8 << 30), confs=confs))
    return [
        row(
            "replay, 200,000 events",
            rate,
            "events/s",
            "the same in plain Python",
            len(trace) / figures["plain"],
            ">= 550,000 (the real allocator under Python: `make oracle ARGS=--speed`)",
        ),
        row(
            f"what-if, {len(confs)} settings, 100,000 events",
            took,
            "s",
            "one replay",
            figures["compiled"] / 2,
            "< 10 s",
        ),
        row(
            "first replay, 6,000 events, nothing compiled yet",
            took_first[0],
            "s",
            "one compiled",
            figures["compiled"],
            "< 3 s",
        ),
        row(
            "first study in a new process",
            took_first[1],
            "s",
            "one replay",
            figures["compiled"],
            "< 30 s",
        ),
    ]


def vpoc() -> list[dict]:
    """Volume profiles: the fused pass beside the read limit and the usual ways."""
    sys.path.insert(0, str(ROOT / "tests"))
    from vpoc_figures import in_memory

    with tempfile.TemporaryDirectory(prefix="casebook-bench-") as folder:
        return [*in_memory(Path(folder))]


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def row(name: str, value: float, unit: str, ratio_to: str, base: float, goal: str) -> dict:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "ratio_to": ratio_to,
        "ratio": round(value / base, 2),
        "goal": goal,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def monitor() -> list[dict]:
    """The live monitor over 500 processes, in CPU seconds a second."""
    from tests.monitor_cost import measure

    return measure()


FIGURES = {
    "capture": capture,
    "imports": imports,
    "judge": judge,
    "batch": batch,
    "replay": replay,
    "vpoc": vpoc,
    "monitor": monitor,
}


def measure(names: list[str]) -> list[dict]:
    """The named figures, or all; KeyError names an unknown one."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    return [row for name in names or FIGURES for row in FIGURES[name]()]
