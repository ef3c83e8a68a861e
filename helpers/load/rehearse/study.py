"""The smallest card that a program finishes on, the largest batch that a card takes, what each preset does: by rehearsals.

Each answer is a pair of runs, one that finished and one that did not; the model of the allocator only says where to look
first. Notebooks get rows of a table, or one line that says why there are none. Nothing is installed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from helpers.allocator.capacity import Runs, smallest
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.load import read
from helpers.allocator.start import prepared
from helpers.allocator.trace import TraceError
from helpers.load.box import torch_interpreter
from helpers.load.record import RecordError
from helpers.load.rehearse import build
from helpers.load.rehearse.devices import device
from helpers.load.rehearse.rehearse import Rehearsal, rehearse
from helpers.load.remedies import FixRow, Remedy
from helpers.load.targets import Target
from helpers.load.workloads import Workload, argv
from helpers.look.reading import show_bytes
from helpers.settings.presets import Preset, load
from helpers.settings.releases import VersionError
from helpers.settings.table import CONF_NAMES
from helpers.settings.text import SettingsError

AMPLE_BYTES = 4 << 40
LARGEST = 1 << 20  # of an argument; beyond it nothing is proved by more doubling


class SearchError(ValueError):
    """Nothing can be searched: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Found:
    """``best`` is the last value that finished, ``beyond`` the first that ran out, or None; ``runs`` are all, in order."""

    best: int | None
    beyond: int | None
    runs: tuple[tuple[int, Rehearsal], ...]


def _kept(runs: list[tuple[int, Rehearsal]], value: int, run: Callable[[int], Rehearsal]) -> bool:
    """Whether the program finished with that value. Raises SearchError where it failed, and not for want of memory."""
    done = run(value)
    runs.append((value, done))
    if not done.fits and not done.ooms:
        raise SearchError(
            f"with {value:,} the program ended with {done.exit_code} without running out of memory: "
            f"{done.error or 'it said nothing'}; expected one that runs; try it by itself first"
        )
    return done.fits


def find_capacity(run: Callable[[int], Rehearsal], held_bytes: int = 0) -> Found:
    """The smallest card, to 2 MiB: where the model of the allocator puts it, else by halving. ``run`` takes a card's bytes."""
    runs: list[tuple[int, Rehearsal]] = []
    if not _kept(runs, AMPLE_BYTES, run):
        return Found(None, AMPLE_BYTES, tuple(runs))
    ample = runs[0][1]
    if not ample.peak_reserved_bytes:
        raise SearchError("the program reserved nothing on the GPU; expected one that uses cuda")
    high, low = round_up(ample.peak_reserved_bytes, GRANULE_BYTES) + held_bytes, held_bytes
    guess = _modelled(ample, held_bytes)
    for size in (guess, guess - GRANULE_BYTES) if guess else ():
        if low < size <= high and size not in [value for value, _ in runs]:
            if _kept(runs, size, run):
                high = size
            else:
                low = max(low, size)
    if high not in [value for value, _ in runs] and not _kept(runs, high, run):
        low, high = (
            high,
            2 * high,
        )  # a program that looks at free memory may want more on a small card
    return _halved(runs, low, high, GRANULE_BYTES, run)


def _modelled(ample: Rehearsal, held_bytes: int) -> int:
    """Where a replay of its trace puts the smallest card; 0 where it cannot say."""
    if ample.trace is None:
        return 0
    try:
        card = Card(AMPLE_BYTES, held_bytes, "topdown")
        stream, _, _ = prepared(read(ample.trace), card, anew=True)
        return smallest(Runs(stream, card, ample.torch), ample.conf).capacity_bytes
    except (TraceError, VersionError, SettingsError, ValueError):
        return 0  # an unknown release, or a trace cut at its start: then by halving alone


def find_batch(run: Callable[[int], Rehearsal], start: int) -> Found:
    """The largest value of an argument with which the program finishes: doubled until it runs out, then halved."""
    runs: list[tuple[int, Rehearsal]] = []
    low, high = 0, start
    while _kept(runs, high, run):
        low, high = high, 2 * high
        if high > LARGEST:
            return Found(low, None, tuple(runs))
    return _halved(runs, high, low, 1, run)


def _halved(
    runs: list[tuple[int, Rehearsal]],
    fails: int,
    passes: int,
    step: int,
    run: Callable[[int], Rehearsal],
) -> Found:
    """Halves the gap between a value that fails and one that passes, whichever is the larger, down to ``step``."""
    while abs(passes - fails) > step:
        middle = (passes + fails) // 2 // step * step
        if _kept(runs, middle, run):
            passes = middle
        else:
            fails = middle
    return Found(passes or None, fails, tuple(runs))


def with_argument(command: Sequence[str], argument: str, value: int | str) -> list[str]:
    """The command with that value after ``argument``, with or without its dashes. Raises SearchError where it is not there."""
    at, joined = _place(command, argument)
    return [
        *command[:at],
        f"{command[at].partition('=')[0]}={value}" if joined else str(value),
        *command[at + 1 :],
    ]


def start_of(command: Sequence[str], argument: str) -> int:
    """The value that the command gives the argument. Raises SearchError where it is no whole number above 0."""
    at, joined = _place(command, argument)
    text = command[at].partition("=")[2] if joined else command[at]
    if not text.isdigit() or int(text) < 1:
        raise SearchError(
            f"--find-batch {argument}: its value is {text!r}; expected a whole number above 0"
        )
    return int(text)


def _place(command: Sequence[str], argument: str) -> tuple[int, bool]:
    """Where the argument's value stands, and whether it stands behind an equals sign."""
    for at, word in enumerate(command):
        name, joined, _ = word.partition("=")
        if name.lstrip("-") == argument.lstrip("-") and (joined or word.startswith("-")):
            if joined or at + 1 < len(command):
                return (at, True) if joined else (at + 1, False)
    raise SearchError(
        f"--find-batch {argument}: not in the command; expected it there with a value to start from, such as "
        f"-- python train.py --{argument.lstrip('-')} 8"
    )


def against(
    run: Callable[[str, Mapping[str, str]], Rehearsal], presets: Sequence[Preset]
) -> dict[str, Rehearsal]:
    """A rehearsal for each preset, and one with default settings under the name ``none``. ``run`` takes a setting and more
    environment; a preset for ROCm's allocator is given to the CUDA build under its name there."""
    found = {"none": run("", {})}
    for preset in presets:
        conf = next((preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)), "")
        found[preset.name] = run(
            conf, {key: value for key, value in preset.environ.items() if key not in CONF_NAMES}
        )
    return found


def measured_words(control: Rehearsal, treated: Rehearsal) -> str:
    """One rehearsal beside another in the words of the fix table's measured column."""

    def one(run: Rehearsal) -> str:
        how = "passes" if run.fits else "runs out" if run.ooms else f"ends with {run.exit_code}"
        return (
            f"{how} with {show_bytes(run.peak_reserved_bytes)}"
            + f", {run.retries} retries" * bool(run.retries)
        )

    return (
        f"{one(treated)}; default {one(control)}; measured by the real allocator, rehearsed on {treated.device.name} "
        f"{show_bytes(treated.device.total_bytes)}"
    )


def measured_column(wanted: Sequence[Remedy], runs: Mapping[str, Rehearsal]) -> dict[str, str]:
    """Remedy to its words, for each whose preset was rehearsed (``runs`` of `against`)."""
    return {
        one.id: measured_words(runs["none"], runs[one.preset])
        for one in wanted
        if one.preset in runs and one.preset
    }


def with_measured(rows: Sequence[FixRow], column: Mapping[str, str]) -> list[FixRow]:
    """The fix table with what rehearsals measured in its measured column; a trial's own words stay before it."""
    return [
        replace(row, measured=column[row.remedy])
        if row.remedy in column and row.memory is None
        else row
        for row in rows
    ]


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
        raise build.NotReady(
            f"no CUDA build of torch is set up for rehearsals; run: python -m helpers rehearse --setup "
            f"({build.SIZE_WORDS})"
        )
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
                    done = rehearse(
                        command(work, python),
                        device(card),
                        out,
                        torch=torch,
                        cache=build.cache(),
                        log=out.with_suffix(".log"),
                    )
                    peak = show_bytes(done.peak_reserved_bytes)
                    rows.append([name, done.device.words, _outcome(done), peak, str(done.retries)])
    except (build.NotReady, RecordError) as error:
        rows.append(["all", "-", f"not run because {error}", "-", "-"])
    return rows


def measured_rows(
    rows: Sequence[FixRow], wanted: Sequence[Remedy], work: Workload, capacity_bytes: int
) -> list[FixRow]:
    """The fix table with its measured column filled by the real allocator: ``work`` on a card of that size, once per preset.

    Settings of the allocator alone: what another vendor's programs read does nothing to a card that is not there.
    """
    others = {row.remedy for row in rows if "not for this box" in row.predicted}
    wanted = [
        one
        for one in wanted
        if one.how == "predicted"
        and one.preset
        and one.id not in others
        and ALLOCATOR & load(one.preset).environ.keys()
    ]
    try:
        torch, python = ready()
        presets = [load(one.preset) for one in wanted]
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            one = partial(
                rehearse,
                command(work, python),
                device("", str(capacity_bytes)),
                torch=torch,
                cache=build.cache(),
                log=Path(folder, "log"),
            )
            names = iter(range(1 << 20))
            runs = against(
                lambda conf, extra: one(Path(folder, f"run{next(names)}"), conf=conf, extra=extra),
                presets,
            )
    except (build.NotReady, RecordError) as error:
        why = f"not rehearsed because {error}"
        return with_measured(rows, {one.id: why for one in wanted})
    return with_measured(rows, measured_column(wanted, runs))


def _outcome(done: Rehearsal) -> str:
    return (
        "fits"
        if done.fits
        else "runs out"
        if done.ooms
        else f"ended with {done.exit_code}: {done.error}"
    )
