"""Rehearsals as notebooks ask for them: rows of a table, or one line that says why there are none. Nothing is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from helpers.load.box import torch_interpreter
from helpers.load.record import RecordError
from helpers.load.rehearse import build, search
from helpers.load.rehearse.devices import device
from helpers.load.rehearse.rehearse import Rehearsal, rehearse
from helpers.load.remedies import FixRow, Remedy
from helpers.load.targets import Target
from helpers.load.workloads import Workload, argv
from helpers.look.reading import show_bytes
from helpers.settings.presets import load
from helpers.settings.table import CONF_NAMES

HEADER = ["what", "card", "outcome", "peak reserved", "retries"]
ALLOCATOR = {*CONF_NAMES, "PYTORCH_NO_CUDA_MEMORY_CACHING"}
ROOT = Path(__file__).resolve().parents[3]


def command(wanted: Workload, python: str, seed: int = 0) -> list[str]:
    """The command line of a workload on a GPU, to be rehearsed; it imports helpers from this checkout wherever it is run."""
    words = argv(wanted, python, seed, Target(device="cuda:0", pci="0000:01:00.0"), None)
    return words if wanted.command else ["env", "-C", str(ROOT), *words]


def ready(python: str = "", version: str = "") -> tuple[build.Torch, str]:
    """The torch that is there to rehearse under, and its Python. Raises NotReady with the command that sets it up."""
    build.tools()
    python = python or torch_interpreter()
    torch, _ = build.find(python, version, build.cache())
    if torch is None:
        raise build.NotReady(f"no CUDA build of torch is set up for rehearsals; run: python -m helpers rehearse --setup "
                             f"({build.SIZE_WORDS})")
    return torch, python


def on_cards(wanted: Mapping[str, Workload], cards: Sequence[str]) -> list[list[str]]:
    """Each workload on each card, the header first; where nothing can be rehearsed, one row says why."""
    rows = [HEADER]
    try:
        torch, python = ready()
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            for name, work in wanted.items():
                for card in cards:
                    out = Path(folder, f"run{len(rows)}")
                    done = rehearse(command(work, python), device(card), out, torch=torch, cache=build.cache(),
                                    log=out.with_suffix(".log"))
                    peak = show_bytes(done.peak_reserved_bytes)
                    rows.append([name, done.device.words, _outcome(done), peak, str(done.retries)])
    except (build.NotReady, RecordError) as error:
        rows.append(["all", "-", f"not run because {error}", "-", "-"])
    return rows


def measured_rows(rows: Sequence[FixRow], wanted: Sequence[Remedy], work: Workload, capacity_bytes: int) -> list[FixRow]:
    """The fix table with its measured column filled by the real allocator: ``work`` on a card of that size, once per preset.

    Settings of the allocator alone: what another vendor's programs read does nothing to a card that is not there.
    """
    others = {row.remedy for row in rows if "not for this box" in row.predicted}
    wanted = [one for one in wanted if one.how == "predicted" and one.preset and one.id not in others
              and ALLOCATOR & load(one.preset).environ.keys()]
    try:
        torch, python = ready()
        presets = [load(one.preset) for one in wanted]
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            one = partial(rehearse, command(work, python), device("", str(capacity_bytes)), torch=torch, cache=build.cache(),
                          log=Path(folder, "log"))
            names = iter(range(1 << 20))
            runs = search.against(lambda conf, extra: one(Path(folder, f"run{next(names)}"), conf=conf, extra=extra), presets)
    except (build.NotReady, RecordError) as error:
        why = f"not rehearsed because {error}"
        return search.with_measured(rows, {one.id: why for one in wanted})
    return search.with_measured(rows, search.measured_column(wanted, runs))


def _outcome(done: Rehearsal) -> str:
    return "fits" if done.fits else "runs out" if done.ooms else f"ended with {done.exit_code}: {done.error}"
