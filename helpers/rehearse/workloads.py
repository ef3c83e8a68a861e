"""Workloads of a trial, rehearsed on a card that is not there."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.allocator.record import RecordError
from helpers.ground.child import CHECKOUT, json_row
from helpers.ground.units import show_bytes
from helpers.look import files
from helpers.look.cards import GpuCard, find_card
from helpers.rehearse import build, run, torches
from helpers.rehearse.rehearsal import UNLIMITED, Limits, Rehearsal
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.targets import Target
from helpers.trials.workload import Workload, argv

HEADER = ["what", "card", "outcome", "peak reserved", "retries"]


def command(workload: Workload, python: str, seed: int = 0) -> list[str]:
    """The command line of a workload on a GPU, to be rehearsed.

    It imports helpers from this checkout wherever it is run.
    """
    target = Target(device="cuda:0", pci="0000:01:00.0")
    words = argv(workload, python, seed, target)
    return words if workload.command else ["env", "-C", str(CHECKOUT), *words]


class Bench:
    """Rehearsals of workloads under the torch that is installed, in a scratch folder that goes.

    Nothing is installed. Raises NotReady.
    """

    def __init__(self, folder: str, python: str = "", limits: Limits = UNLIMITED):
        build.tools()
        self.folder = Path(folder)
        self.python = python or torch_interpreter()
        self.limits = limits
        torch, _ = torches.find_torch(self.python, "", torches.cache_folder())
        if torch is None:
            how = f"run: python3 -m helpers rehearse --setup ({torches.SIZE_WORDS})"
            raise torches.NotReady(f"no CUDA build of torch is set up for rehearsals; {how}")
        self.torch = torch

    def rehearse(
        self, workload: Workload, card: GpuCard, conf: str | None, extra: Mapping[str, str]
    ) -> Rehearsal:
        """One workload on one card; a workload that refuses ends with 1 and says why."""
        log = self.folder / "log"
        rehearsal = run.rehearse(
            command(workload, self.python),
            card,
            Path(tempfile.mkdtemp(dir=self.folder)) / "run",
            torch=self.torch,
            cache=torches.cache_folder(),
            conf=conf,
            extra=extra,
            python=self.python if workload.command else "",
            log=log,
            limits=self.limits,
        )
        if workload.command:
            return rehearsal
        for row in map(json_row, files.text("", str(log)).splitlines()):
            if "why" in row:
                return replace(rehearsal, exit_code=1, error=str(row["why"]))
        return rehearsal


def on_cards(workloads: Mapping[str, Workload], cards: Sequence[str]) -> list[list[str]]:
    """Each workload on each card, as rows with the header first.

    Where nothing can be rehearsed, one row says why.
    """
    rows = [HEADER]
    try:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            bench = Bench(folder)
            for name, card in itertools.product(workloads, cards):
                rehearsal = bench.rehearse(workloads[name], find_card(card), None, {})
                outcome = rehearsal.outcome
                if rehearsal.failed_otherwise:
                    outcome += f": {rehearsal.error}"
                peak = show_bytes(rehearsal.peak_reserved_bytes)
                rows.append([name, rehearsal.device.words, outcome, peak, str(rehearsal.retries)])
    except (torches.NotReady, RecordError) as error:
        rows.append(["all", "-", f"not run because {error}", "-", "-"])
    return rows
