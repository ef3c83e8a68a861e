"""Rehearsals of one command line, on the card and under the settings that its options name.

One command line asks for one run, for a run of each of several ranks, for a run at each end of what
depends on values, or for a run without and one with torch.compile.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from helpers.allocator.circumstances import add_to_record
from helpers.allocator.record import remove
from helpers.commands.recording import record_folder
from helpers.commands.rehearse_options import ranks
from helpers.commands.signs import print_notes, says_it_runs
from helpers.ground.units import parse_size
from helpers.look.cards import GpuCard
from helpers.rehearse import run as rehearsing
from helpers.rehearse.box_settings import settings_of
from helpers.rehearse.buckets import between_buckets
from helpers.rehearse.counterfactual import TIMES_THE_CARD
from helpers.rehearse.rehearsal import STOPPED, Rehearsal, RehearsalLimits
from helpers.rehearse.torches import Torch

NOTHING_COMPILED = "torch.compile was not called, so --compile changes nothing"


class RehearsalBench:
    """Rehearsals of one command line: on its card, under its torch, with its settings."""

    def __init__(
        self,
        arguments: Namespace,
        command: list[str],
        card: GpuCard,
        torch: Torch,
        cache: Path,
    ) -> None:
        self.arguments = arguments
        self.command = command
        self.card = card
        self.settings = settings_of(arguments.box, arguments.conf)
        values = arguments.values
        if values == "between":
            # The run with the least values is added by _limits_of_runs.
            values = "most"
        self.limits = RehearsalLimits(
            steps=arguments.steps,
            seconds=arguments.seconds,
            values=values,
            gpus=arguments.gpus,
            cudnn_bytes=parse_size(arguments.cudnn_workspace),
        )
        self._rehearse: Callable[..., Rehearsal] = partial(
            rehearsing.rehearse,
            torch=torch,
            cache=cache,
            python=arguments.torch_python,
            conf=self.settings.conf,
            extra=self.settings.extra,
            limits=self.limits,
        )

    def run(
        self,
        command: list[str],
        card: GpuCard,
        out: Path,
        name: str = "",
        **options: object,
    ) -> Rehearsal:
        """Rehearse a command, with signs of life where that takes long.

        ``name`` tells one of several runs apart. ``options`` replace what the command line says for
        ``rehearse.run.rehearse``, such as its ``limits``.

        Whether NCCL still holds the first buckets of DistributedDataParallel in the second step
        depends on timing (FirstBuckets in helpers/rehearse/under_torch/ranks.py). A program that
        fits without them is rehearsed once more with them, and the answer is a range.
        """
        first = self._watched(command, card, out, name, options)
        if not first.has_buckets or not first.fits:
            return first
        trace = record_folder(out) / "held-buckets.pickle"
        options["log"] = trace.with_suffix(".log")
        options["limits"] = replace(first.limits, holds_buckets=True)
        # On a larger card it cannot run out, so its whole peak is seen.
        ample = replace(card, total_bytes=TIMES_THE_CARD * card.total_bytes)
        with_buckets = self._watched(command, ample, trace, name, options)
        both = between_buckets(first, with_buckets)
        add_to_record(out, trust=both.trust)
        return both

    def _watched(
        self,
        command: list[str],
        card: GpuCard,
        out: Path,
        name: str,
        options: dict[str, object],
    ) -> Rehearsal:
        with says_it_runs(record_folder(out), quiet=self.arguments.json, name=name):
            return self._rehearse(command, card, out, **options)


def all_runs(bench: RehearsalBench, out: Path) -> list[Rehearsal]:
    """Rehearse the program on the card as often as the options ask, for traces at or beside
    ``out``.

    Returns the runs in the order of ``_severity``; the last one is the answer.
    """
    arguments = bench.arguments
    runs: list[Rehearsal] = []
    for limits in _limits_of_runs(bench):
        if runs and runs[-1].exit_code == STOPPED:  # SIGTERM ends all runs
            break
        if runs and arguments.values == "between" and runs[0].exact:
            break  # nothing depends on values, so the other end is the same
        if limits.compiles and not runs[0].compiled:
            print_notes(NOTHING_COMPILED)
            break
        trace = trace_of_run(out, limits, bench.limits)
        output = output_file(trace)
        if arguments.force:
            remove(trace)
        if not arguments.json:
            says = f"rehearsing on {bench.card.words}; the program's output goes to {output}"
            print_notes(says)
        runs.append(
            bench.run(bench.command, bench.card, trace, limits=limits, log=output)
        )
    return sorted(runs, key=_severity)


def worst_run(bench: RehearsalBench, folder: Path, card: GpuCard) -> Rehearsal:
    """Rehearse the program on ``card`` as often as the options ask, and return the run that is last
    by ``_severity``. Its output goes to files in ``folder``.
    """
    runs = []
    out = folder / card.name.replace("/", "-") / "run"
    out.parent.mkdir(exist_ok=True)
    for limits in _limits_of_runs(bench):
        trace = trace_of_run(out, limits, bench.limits)
        log = trace.with_suffix(".log")
        runs.append(bench.run(bench.command, card, trace, log=log, limits=limits))
    return max(runs, key=_severity)


def output_file(out: Path) -> Path:
    """Where the output of a rehearsed program is kept: in the folder of its recording."""
    return record_folder(out) / "output.txt"


def trace_of_run(out: Path, limits: RehearsalLimits, of_bench: RehearsalLimits) -> Path:
    """The trace of one of several runs: ``out`` itself for the run with the limits of the bench,
    else a name beside it that says how the run differs.
    """
    if limits == of_bench:
        return out
    name = limits.values  # least
    if limits.world:
        name = f"rank{limits.rank}"
    elif limits.compiles:
        name = "compiled"
    return out.with_name(f"{out.stem}-{name}{out.suffix}")


def _limits_of_runs(bench: RehearsalBench) -> list[RehearsalLimits]:
    """The limits of each run that the options ask for."""
    arguments = bench.arguments
    usual = bench.limits
    listed = ranks(arguments)
    if listed:
        return [replace(usual, rank=rank, world=arguments.world) for rank in listed]
    if arguments.values == "between":
        return [usual, replace(usual, values="least")]
    if arguments.compile:
        return [usual, replace(usual, compiles=True)]
    return [usual]


def _severity(run: Rehearsal) -> tuple[bool, bool, int]:
    """The key that sorts runs, the one that decides last.

    A compiled run does what the program does on a GPU, so it decides. Then a run that failed, then
    the one with the highest peak (unknown: 0).
    """
    failed = run.exit_code != 0
    peak_bytes = run.peak_reserved_bytes
    if peak_bytes is None:
        peak_bytes = 0
    return run.limits.compiles, failed, peak_bytes
