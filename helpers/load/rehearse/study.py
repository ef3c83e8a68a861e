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

from helpers.allocator.capacity import Runs, prepared, smallest
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.load import read
from helpers.allocator.trace import TraceError
from helpers.load.record import RecordError
from helpers.load.rehearse import build
from helpers.load.rehearse.devices import Device, device
from helpers.load.rehearse.rehearse import Rehearsal, rehearse
from helpers.load.remedies import FixRow, Remedy
from helpers.load.targets import Target, torch_interpreter
from helpers.load.workloads import Workload, argv
from helpers.look.reading import show_bytes
from helpers.settings.presets import Preset, load
from helpers.settings.releases import VersionError
from helpers.settings.table import CONF_NAMES
from helpers.settings.text import SettingsError
from helpers.units import halved

AMPLE_BYTES = 4 << 40
LARGEST = 1 << 20  # of an argument; beyond it nothing is proved by more doubling
ALLOCATOR = {*CONF_NAMES, "PYTORCH_NO_CUDA_MEMORY_CACHING"}
HEADER = ["what", "card", "outcome", "peak reserved", "retries"]
ROOT = Path(__file__).resolve().parents[3]


class SearchError(ValueError):
    """Nothing can be searched: one line with what was seen, what was expected and what to do."""


@dataclass(frozen=True)
class Found:
    """``best`` is the last value that finished, ``beyond`` the first that ran out, or None; ``runs`` are all, in order."""

    best: int | None
    beyond: int | None
    runs: tuple[tuple[int, Rehearsal], ...]


class _Search:
    """Runs of a program with a value, each value once. ``run`` takes it."""

    def __init__(self, run: Callable[[int], Rehearsal]):
        self.run, self.runs = run, dict[int, Rehearsal]()

    def fits(self, value: int) -> bool:
        """Whether it finished with that value. Raises SearchError where it failed, and not for want of memory."""
        done = self.runs[value] = self.runs.get(value) or self.run(value)
        if not done.fits and not done.ooms:
            raise SearchError(
                f"with {value:,} the program ended with {done.exit_code} without running out of memory: "
                f"{done.error or 'no error was seen'}; expected one that runs; try it by itself first"
            )
        return done.fits

    def between(self, fails: int, passes: int, step: int) -> Found:
        """Halves the gap between a value that fails and one that passes, whichever is the larger, down to ``step``."""
        passes, fails = halved(self.fits, passes, fails, step)
        return self.found(passes or None, fails)

    def found(self, best: int | None, beyond: int | None) -> Found:
        return Found(best, beyond, tuple(self.runs.items()))


def find_capacity(run: Callable[[int], Rehearsal], held_bytes: int = 0) -> Found:
    """The smallest card, to 2 MiB: where the model of the allocator puts it, else by halving. ``run`` takes a card's bytes."""
    search = _Search(run)
    if not search.fits(AMPLE_BYTES):
        return search.found(None, AMPLE_BYTES)
    ample = search.runs[AMPLE_BYTES]
    if not ample.peak_reserved_bytes:
        raise SearchError("the program reserved nothing on the GPU; expected one that uses cuda")
    high, low = round_up(ample.peak_reserved_bytes, GRANULE_BYTES) + held_bytes, held_bytes
    guess = _modelled(ample, held_bytes)
    for size in (guess, guess - GRANULE_BYTES) if guess else ():
        if low < size <= high:
            low, high = (low, size) if search.fits(size) else (max(low, size), high)
    if not search.fits(high):
        # A program that looks at free memory may want more on a small card.
        low, high = high, 2 * high
    return search.between(low, high, GRANULE_BYTES)


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
    search = _Search(run)
    low, high = 0, start
    while search.fits(high):
        low, high = high, 2 * high
        if high > LARGEST:
            return search.found(low, None)
    return search.between(high, low, 1)


def with_argument(command: Sequence[str], argument: str, value: int | str) -> list[str]:
    """The command with that value after ``argument``, with or without its dashes. Raises SearchError where it is not there."""
    at, joined = _place(command, argument)
    word = f"{command[at].partition('=')[0]}={value}" if joined else str(value)
    return [*command[:at], word, *command[at + 1 :]]


def start_of(command: Sequence[str], argument: str) -> int:
    """The value that the command gives the argument. Raises SearchError where it is no whole number above 0."""
    at, joined = _place(command, argument)
    text = command[at].partition("=")[2] if joined else command[at]
    if not text.isdigit() or int(text) < 1:
        why = f"its value is {text!r}; expected a whole number above 0"
        raise SearchError(f"--find-batch {argument}: {why}")
    return int(text)


def _place(command: Sequence[str], argument: str) -> tuple[int, bool]:
    """Where the argument's value stands, and whether it stands behind an equals sign."""
    plain = argument.lstrip("-")
    for at, word in enumerate(command):
        name, joined, _ = word.partition("=")
        if name.lstrip("-") == plain and joined:
            return at, True
        if name.lstrip("-") == plain and word.startswith("-") and at + 1 < len(command):
            return at + 1, False
    raise SearchError(
        f"--find-batch {argument}: not in the command; expected it there with a value to start from, such as "
        f"-- python train.py --{plain} 8"
    )


def against(
    run: Callable[[str, Mapping[str, str]], Rehearsal], presets: Sequence[Preset]
) -> dict[str, Rehearsal]:
    """A rehearsal for each preset, and one with default settings under the name ``none``. ``run`` takes a setting and more
    environment; a preset for ROCm's allocator is given to the CUDA build under its name there."""
    found = {"none": run("", {})}
    for preset in presets:
        confs = [preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)]
        other = {key: value for key, value in preset.environ.items() if key not in CONF_NAMES}
        found[preset.name] = run(confs[0] if confs else "", other)
    return found


def command(wanted: Workload, python: str, seed: int = 0) -> list[str]:
    """The command line of a workload on a GPU, to be rehearsed; it imports helpers from this checkout wherever it is run."""
    words = argv(wanted, python, seed, Target(device="cuda:0", pci="0000:01:00.0"), None)
    return words if wanted.command else ["env", "-C", str(ROOT), *words]


class _Bench:
    """Rehearsals of workloads under the torch that is there, in a scratch folder that goes. Raises NotReady."""

    def __init__(self, folder: str):
        build.tools()
        self.folder, self.python, self.count = Path(folder), torch_interpreter(), 0
        torch, _ = build.find(self.python, "", build.cache())
        if torch is None:
            why = f"run: python -m helpers rehearse --setup ({build.SIZE_WORDS})"
            raise build.NotReady(f"no CUDA build of torch is set up for rehearsals; {why}")
        self.run = partial(rehearse, torch=torch, cache=build.cache(), log=self.folder / "log")

    def rehearse(
        self, work: Workload, card: Device, conf: str | None, extra: Mapping[str, str]
    ) -> Rehearsal:
        self.count += 1
        out = self.folder / f"run{self.count}"
        return self.run(command(work, self.python), card, out, conf=conf, extra=extra)


def on_cards(wanted: Mapping[str, Workload], cards: Sequence[str]) -> list[list[str]]:
    """Each workload on each card, the header first; where nothing can be rehearsed, one row says why."""
    rows = [HEADER]
    try:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            bench = _Bench(folder)
            for name, work in wanted.items():
                for card in cards:
                    done = bench.rehearse(work, device(card), None, {})
                    outcome = done.outcome if done.ooms or done.fits else _failed(done)
                    peak = show_bytes(done.peak_reserved_bytes)
                    rows.append([name, done.device.words, outcome, peak, str(done.retries)])
    except (build.NotReady, RecordError) as error:
        rows.append(["all", "-", f"not run because {error}", "-", "-"])
    return rows


def _failed(done: Rehearsal) -> str:
    return f"{done.outcome}: {done.error}"


def measured_rows(
    rows: Sequence[FixRow], wanted: Sequence[Remedy], work: Workload, capacity_bytes: int
) -> list[FixRow]:
    """The fix table with its measured column filled by the real allocator: ``work`` on a card of that size, once per preset.

    Settings of the allocator alone: what another vendor's programs read does nothing to a card that is not there. What a
    trial measured stays.
    """
    others = {row.remedy for row in rows if "not for this box" in row.predicted}
    predicted = [one for one in wanted if one.how == "predicted" and one.id not in others]
    presets = {one.id: load(one.preset) for one in predicted if one.preset}
    presets = {name: one for name, one in presets.items() if ALLOCATOR & one.environ.keys()}
    try:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            bench, card = _Bench(folder), device("", str(capacity_bytes))
            run = partial(bench.rehearse, work, card)
            runs = against(run, list(presets.values()))
        words = {
            name: measured_words(runs["none"], runs[one.name]) for name, one in presets.items()
        }
    except (build.NotReady, RecordError) as error:
        words = dict.fromkeys(presets, f"not rehearsed because {error}")
    open_rows = {row.remedy for row in rows if row.memory is None} & words.keys()
    return [
        replace(row, measured=words[row.remedy]) if row.remedy in open_rows else row for row in rows
    ]


def measured_words(control: Rehearsal, treated: Rehearsal) -> str:
    """One rehearsal beside another in the words of the fix table's measured column."""

    def one(run: Rehearsal) -> str:
        how = {"fits": "passes", "runs out": "runs out"}.get(run.outcome)
        retries = f", {run.retries} retries" * bool(run.retries)
        how = how or f"ends with {run.exit_code}"
        return f"{how} with {show_bytes(run.peak_reserved_bytes)}{retries}"

    card = f"{treated.device.name} {show_bytes(treated.device.total_bytes)}"
    how = f"measured by the real allocator, rehearsed on {card}"
    return f"{one(treated)}; default {one(control)}; {how}"
