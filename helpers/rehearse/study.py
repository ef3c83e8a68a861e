"""The smallest card that a program finishes on, the largest batch that a card takes, what each
preset does: by rehearsals.

Each answer is a pair of runs, one that finished and one that did not; the model of the
allocator only says where to look first. Notebooks get rows of a table, or one line that says
why there are none. Nothing is installed.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from helpers.allocator.capacity import Runs, prepared, smallest
from helpers.allocator.driver import GRANULE_BYTES, Card, round_up
from helpers.allocator.load import read
from helpers.allocator.record import RecordError
from helpers.allocator.recorded import AMPLE_BYTES
from helpers.ground.child import CHECKOUT, json_row
from helpers.ground.units import halved, show_bytes
from helpers.look import files
from helpers.look.cards import GpuCard, find_card
from helpers.rehearse import build
from helpers.rehearse.rehearse import STOPPED, UNLIMITED, Limits, Rehearsal, rehearse
from helpers.settings.presets import Preset
from helpers.settings.table import CONF_NAMES
from helpers.trials.fixplan import Arm
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.remedies import FixRow, Remedy, beside_control
from helpers.trials.targets import Target
from helpers.trials.workload import Workload, argv

LARGEST = 1 << 20  # of an argument; beyond it nothing is proved by more doubling
ALLOCATOR = {*CONF_NAMES, *build.WORDS["decides"]}
HEADER = ["what", "card", "outcome", "peak reserved", "retries"]


class SearchError(ValueError):
    """Nothing can be searched: one line with what was seen, what was expected and what to do."""


@dataclass
class Search:
    """Runs of a program with a value, each value once, in order. ``run`` takes it.

    ``best`` is the last value that finished, ``beyond`` the first that ran out, or None.
    """

    run: Callable[[int], Rehearsal]
    done: dict[int, Rehearsal] = field(default_factory=dict)
    best: int | None = None
    beyond: int | None = None

    def fits(self, value: int) -> bool:
        """Whether it finished with that value.

        Raises SearchError where it failed, and not for want of memory.
        """
        done = self.done[value] = self.done.get(value) or self.run(value)
        if done.exit_code == STOPPED or not (done.fits or done.ooms):
            ended = f"with {value:,} the program ended with {done.exit_code} without running out of memory"
            why = done.error or "no error was seen"
            raise SearchError(f"{ended}: {why}; expected one that runs; try it by itself first")
        return done.fits

    def between(self, fails: int, passes: int, step: int) -> Search:
        """Halves the gap between a value that fails and one that passes, whichever is the
        larger, down to ``step``.
        """
        passes, self.beyond = halved(self.fits, passes, fails, step)
        self.best = passes or None
        return self


def find_capacity(run: Callable[[int], Rehearsal], held_bytes: int = 0) -> Search:
    """The smallest card, to 2 MiB: where the model of the allocator puts it, else by halving.

    ``run`` takes a card's bytes.
    """
    search = Search(run)
    if not search.fits(AMPLE_BYTES):
        search.beyond = AMPLE_BYTES
        return search
    ample = search.done[AMPLE_BYTES]
    if not ample.peak_reserved_bytes:
        raise SearchError("the program reserved nothing on the GPU; expected one that uses cuda")
    high = round_up(ample.peak_reserved_bytes, GRANULE_BYTES) + held_bytes
    low = held_bytes
    guess = _modelled(ample, held_bytes)
    for size in (guess, guess - GRANULE_BYTES) if guess else ():
        if low < size <= high:
            low, high = (low, size) if search.fits(size) else (max(low, size), high)
    if not search.fits(high):
        # A program that looks at free memory may want more on a small card.
        low = high
        high = 2 * high
    return search.between(low, high, GRANULE_BYTES)


def _modelled(ample: Rehearsal, held_bytes: int) -> int:
    """Where a replay of its trace puts the smallest card; 0 where it cannot say."""
    if ample.trace is None:
        return 0
    try:
        card = Card(AMPLE_BYTES, held_bytes, "topdown")
        stream, _, _ = prepared(read(ample.trace), card, anew=True)
        return smallest(Runs(stream, card, ample.torch), ample.conf)
    except ValueError:
        return 0  # an unknown release, or a trace cut at its start: then by halving alone


def find_batch(run: Callable[[int], Rehearsal], start: int) -> Search:
    """The largest value of an argument with which the program finishes: doubled until it runs
    out, then halved.
    """
    search = Search(run)
    low = 0
    high = start
    while search.fits(high):
        low = high
        high = 2 * high
        if high > LARGEST:
            search.best = low
            return search
    return search.between(high, low, 1)


def with_argument(command: Sequence[str], argument: str, value: int | str) -> list[str]:
    """The command with that value after ``argument``, with or without its dashes.

    Raises SearchError where it is not there.
    """
    at, before, _ = _place(command, argument)
    return [*command[:at], f"{before}{value}", *command[at + 1 :]]


def start_of(command: Sequence[str], argument: str) -> int:
    """The value that the command gives the argument.

    Raises SearchError where it is no whole number above 0.
    """
    text = _place(command, argument)[2]
    if not text.isdigit() or int(text) < 1:
        raise SearchError(f"--find-batch {argument} {text!r}: expected a whole number above 0")
    return int(text)


def _place(command: Sequence[str], argument: str) -> tuple[int, str, str]:
    """Which word has the argument's value, what stands before it in that word (``--name=`` or
    nothing), and the value.
    """
    plain = argument.lstrip("-")
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name.lstrip("-") == plain and equals:
            return at, name + equals, value
        if name.lstrip("-") == plain and word.startswith("-") and at + 1 < len(command):
            return at + 1, "", command[at + 1]
    expected = f"expected it there with a value to start from, such as --{plain} 8"
    raise SearchError(f"--find-batch {argument}: not in the command; {expected}")


def settings_of(preset: Preset) -> tuple[str, dict[str, str]]:
    """What a preset sets of the allocator, under whatever name (a CUDA build reads it under its
    own), and its other variables.
    """
    confs = [preset.environ[name] for name in CONF_NAMES if preset.environ.get(name)]
    other = {key: value for key, value in preset.environ.items() if key not in CONF_NAMES}
    return confs[0] if confs else "", other


def command(wanted: Workload, python: str, seed: int = 0) -> list[str]:
    """The command line of a workload on a GPU, to be rehearsed; it imports helpers from this
    checkout wherever it is run.
    """
    words = argv(wanted, python, seed, Target(device="cuda:0", pci="0000:01:00.0"), None)
    return words if wanted.command else ["env", "-C", str(CHECKOUT), *words]


class _Bench:
    """Rehearsals of workloads under the torch that is there, in a scratch folder that goes.

    Raises NotReady.
    """

    def __init__(self, folder: str, python: str = "", limits: Limits = UNLIMITED):
        build.tools()
        self.folder = Path(folder)
        self.python = python or torch_interpreter()
        torch, _ = build.find(self.python, "", build.cache())
        if torch is None:
            how = f"run: python3 -m helpers rehearse --setup ({build.SIZE_WORDS})"
            raise build.NotReady(f"no CUDA build of torch is set up for rehearsals; {how}")
        self.run: Callable[..., Rehearsal] = partial(rehearse, torch=torch, limits=limits)
        self.run = partial(self.run, cache=build.cache(), log=self.folder / "log")

    def rehearse(
        self, work: Workload, card: GpuCard, conf: str | None, extra: Mapping[str, str]
    ) -> Rehearsal:
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "run"
        own = self.python if work.command else ""
        done = self.run(command(work, self.python), card, out, conf=conf, extra=extra, python=own)
        log = "" if own else files.text("", str(self.folder / "log"))
        refused = next((row for row in map(json_row, log.splitlines()) if "why" in row), None)
        return replace(done, exit_code=1, error=str(refused["why"])) if refused else done


def on_cards(wanted: Mapping[str, Workload], cards: Sequence[str]) -> list[list[str]]:
    """Each workload on each card, the header first; where nothing can be rehearsed, one row
    says why.
    """
    rows = [HEADER]
    try:
        with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
            bench = _Bench(folder)
            for name, card in itertools.product(wanted, cards):
                done = bench.rehearse(wanted[name], find_card(card), None, {})
                failed = f": {done.error}" * (not done.ooms and not done.fits)
                figures = show_bytes(done.peak_reserved_bytes), str(done.retries)
                rows.append([name, done.device.words, done.outcome + failed, *figures])
    except (build.NotReady, RecordError) as error:
        rows.append(["all", "-", f"not run because {error}", "-", "-"])
    return rows


def arms(wanted: Sequence[Remedy]) -> dict[str, tuple[Arm, Arm]]:
    """What a rehearsal can try of these remedies, each beside its control: changes of the work,
    and settings of the allocator.

    What another part of the stack reads does nothing to a card that is not there, what is
    argued no run decides, and processes beside or after each other would each have that card to
    themselves.
    """
    tried = [one for one in wanted if one.how != "argued" and one.needs != "cpu"]
    pairs = [one.pair() for one in tried if not one.unrehearsed]
    sets = [(of, of.treated.preset) for of in pairs]
    acts = [of for of, own in sets if not own.environ or own.unknown or ALLOCATOR & {*own.environ}]
    return {of.name: (of.control, of.treated) for of in acts}


def rehearsed_arms(
    wanted: Mapping[str, tuple[Arm, Arm]], card: GpuCard, seconds: float = math.inf, **how: Any
) -> Iterator[tuple[str, Rehearsal, Rehearsal]]:
    """Each pair rehearsed on that card, an arm that several share once; none begins after so
    many ``seconds``.

    The traces are gone when the next one is asked for. ``how``: python, and limits of each.
    Raises NotReady and RecordError.
    """
    until = time.monotonic() + seconds
    done = dict[str, Rehearsal]()
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        bench = _Bench(folder, **how)
        for name, both in wanted.items():
            if time.monotonic() > until:
                return
            for arm in both:
                conf, extra = settings_of(arm.preset)
                if arm.name not in done:
                    done[arm.name] = bench.rehearse(arm.workload, card, conf, extra)
            yield name, done[both[0].name], done[both[1].name]


def left(rows: Sequence[FixRow], wanted: Sequence[Remedy]) -> dict[str, tuple[Arm, Arm]]:
    """The arms of those remedies that are for the table's box, as far as no trial has measured
    them.
    """
    untried = (row for row in rows if row.memory is None)
    names = {row.remedy for row in untried if "not for this box" not in row.predicted}
    return {name: both for name, both in arms(wanted).items() if name in names}


def measured_rows(
    rows: Sequence[FixRow], wanted: Sequence[Remedy], card: GpuCard, seconds: float = math.inf
) -> list[FixRow]:
    """The fix table with what the real allocator showed of each remedy that can be rehearsed on
    that card.

    What a trial measured stays; what the ``seconds`` did not suffice for says so.
    """
    tried = left(rows, wanted)
    found = {row.remedy: row for row in rows}
    words = dict.fromkeys(tried, f"not rehearsed because its {seconds:.0f} s were over")
    try:
        for name, *both in rehearsed_arms(tried, card, seconds):
            found[name], words[name] = measured(found[name], *both), measured_words(*both)
    except (build.NotReady, RecordError) as error:
        words = dict.fromkeys(tried, f"not rehearsed because {error}")
    found |= {name: replace(found[name], measured=why) for name, why in words.items()}
    return list(found.values())


def measured(row: FixRow, *both: Rehearsal) -> FixRow:
    """A row with what two rehearsals, the control's first, showed: unless an audit settled it,
    its effect too, as ``predicted``.
    """
    row = replace(row, measured=measured_words(*both))
    ends = [
        SimpleNamespace(passes=one.fits, peak_reserved_high_bytes=one.peak_reserved_bytes, flags=())
        for one in both
        if (one.fits or one.ooms) and not one.between and one.peak_reserved_bytes
    ]
    if row.audited or len(ends) < len(both) or both[0].stopped != both[1].stopped:
        return replace(row, why=row.measured if row.verdict == "not_enough_evidence" else row.why)
    told = beside_control(ends[0], ends[1], both[0].device.total_bytes)
    row = replace(row, guess=told.verdict, saves=told.saves, why=told.why)
    return replace(row, verdict="predicted", rehearsed=True)


def measured_words(control: Rehearsal, treated: Rehearsal) -> str:
    """One rehearsal beside another in the words of the fix table's measured column."""

    def one(run: Rehearsal) -> str:
        how = {"fits": "passes"}.get(run.outcome, run.outcome)
        retries = f", {run.retries} retries" * bool(run.retries)
        peak = f" with {show_bytes(run.peak_reserved_bytes)}{retries}"
        return how + (peak if run.fits or run.ooms else f": {run.error}")

    both = f"{one(treated)}; default {one(control)}"
    return f"{both}; measured by the real allocator, {treated.label}"
