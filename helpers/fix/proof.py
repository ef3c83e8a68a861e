"""Whether a changed program computes what it did: both run on the CPU, with smaller numbers."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from helpers.fix.change import Change, Results, edited
from helpers.fix.notebook import CELLS, Notebook
from helpers.fix.program import Program, changed_command, changed_files
from helpers.ground.child import watch
from helpers.rehearse.counterfactual import UPLOADS_OFF
from helpers.rehearse.forks import Forks
from helpers.rehearse.scratch import copied, in_copy
from helpers.rehearse.torches import NEEDS, Torch
from helpers.trials.user_program import PYTHON, script_of

ON_CPU = Path(__file__).parent / "under_torch" / "on_cpu.py"
SECONDS = 15
"""Seconds of the processor that each program may use."""
IN_ALL_S = 60.0
"""Seconds that all runs for one change may take: a third of the time of a search (SearchLimits)."""
AS_IT_IS = (1, 0, False)
"""The divisor that leaves all numbers of a program as they are."""
DIVISORS = ((8, 64, True), (8, 256, False), (2, 256, False), AS_IT_IS)
"""Ways to make the numbers of both programs smaller, the fastest first; the first with which both
run is taken. Each: the divisor, the least number that is divided, and whether lists are cut short,
too.
"""
LEAST_STEPS = 2
"""Steps of an optimizer that a comparison needs where no number was printed and no value seen: the
weights of the second step show whether the first one did the same.
"""
STEPS_ALIKE = 3
"""In so many first steps gradients are compared up to rounding; in later ones it has grown."""
ROUNDING = 1e-3
"""How much the lengths of tensors that are the same up to rounding may differ, as a share. This and
the next three are our choice: well above float32's 1e-7 for sums in another order, and below what
we expect a wrong gradient to differ by.
"""
ROUNDING_OF_SUMS = 10 * ROUNDING
"""The same for sums with changing signs, in which large terms cancel each other."""
PRINTED_ROUNDING = 1e-2
"""The same for printed numbers, which may come after many steps and have few digits."""
PRINTED_AS_ZERO = 1e-4
"""Printed numbers that differ by no more are alike, however small they are."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
"""A number in a printed line."""
GRAPH = re.compile(r",?\s*(?:grad_fn=<[^>]*>|requires_grad=True)")
"""What torch prints of a tensor's graph. It is no result: a change may detach a tensor."""
Seen = Sequence[Any]
"""A thing that was seen of a program: its kind (CpuRun.of), then its values. A list of
``gradients`` or ``buffers`` has the length and the signed sum of each tensor (size_of in
under_torch/on_cpu.py).
"""
Runnable = tuple[list[str], Mapping[str, bytes]]
"""A command from its script on, and the files of its folder that have other bytes, by name."""


@dataclass(frozen=True)
class Proof:
    """What running a program and the changed program side by side showed."""

    results: Results | None
    """What the change does to what is computed; None where that could not be measured."""
    says: str
    """What was compared, or why nothing could be."""
    differs: bool = False
    """The two computed different results with smaller numbers, which may be due to the numbers."""
    loses_gradients: bool = False
    """Weights that had a gradient have none with the change."""
    to_its_end: bool = False
    """Both programs came to their ends."""


@dataclass(frozen=True)
class CpuRun:
    """What a program did on the CPU, in order. ``error``: the one that it ended with, else empty;
    ``ended``: it came to its end.
    """

    seen: Sequence[Seen]
    error: str = ""
    ended: bool = False

    def of(self, kind: str) -> list[Seen]:
        """The values that were seen of a kind: "print", "value" (a loss, or what is saved),
        "gradients", "weights" or "buffers". ("failed" and "end" are what error and ended show.)
        """
        return [values for name, *values in self.seen if name == kind]


@dataclass(frozen=True)
class Prover:
    """Runs programs on the CPU and compares them.

    ``folder``: of the program; ``python``: runs it, with the ``torch`` of its rehearsals;
    ``preload``: their stand-ins for the vendor's libraries; ``forks``: the Python of which
    rehearsals are forks.
    """

    folder: Path
    python: str
    torch: Torch
    preload: Sequence[Path]
    forks: Forks | None = None

    def prove(self, program: Program, change: Change) -> Proof:
        """Run a program in a copy of its folder, and with a change in another; compare them."""
        ends_at = time.monotonic() + IN_ALL_S
        unchanged, changed = _side_by_side(program, change)
        words, _ = unchanged
        if not words:
            return Proof(None, "only a command that starts Python is run on the CPU")
        proof = compared(*self.runs([unchanged, changed]))
        # No second run is needed: smaller numbers take no gradient away, and of a change whose rule
        # says that results differ a difference is no surprise.
        is_sure = proof.loses_gradients or change.results is Results.OTHER
        if is_sure or proof.results is not Results.OTHER:
            return proof
        # Smaller numbers may themselves make them differ, and some programs never do the same
        # twice.
        left_s = ends_at - time.monotonic()
        if left_s < SECONDS:
            says = "with smaller numbers it differs, and no time was left for its own"
            return Proof(None, says, differs=True)
        programs = [unchanged, unchanged, changed]
        before, again, after = self.runs(programs, (AS_IT_IS,), left_s)
        if compared(before, again).results is Results.OTHER:
            says = "on the CPU the unchanged program differs from run to run"
            return Proof(None, says)
        as_is = compared(before, after)
        if as_is.results is None:  # it finished no step in the time that was left
            return proof
        return as_is

    def runs(
        self,
        programs: Sequence[Runnable],
        divisors: Sequence[tuple[int, int, bool]] = DIVISORS,
        limit_s: float = IN_ALL_S,
    ) -> list[CpuRun]:
        """Run programs side by side, each in a copy of the folder with its files, and read what
        was seen of them.
        """
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="fix-")
            scratch = Path(stack.enter_context(folder))
            records = []
            jobs = []  # what on_cpu.py reads of each program
            for number, (words, files) in enumerate(programs):
                copy = stack.enter_context(copied(self.folder))
                for name, text in files.items():
                    (copy / name).write_bytes(text)
                words = in_copy(words, self.folder, copy)
                record = scratch / str(number)
                records.append(record)
                job = {"folder": str(copy), "words": words, "record": str(record)}
                jobs.append(job)
            work = {"programs": jobs, "seconds": SECONDS, "divisors": divisors}
            argv = [self.python, str(ON_CPU), json.dumps(work)]
            words, environment = self._started(argv)
            ended = watch(words, limit_s, env=environment)
            return [_read(record, ended.last_line) for record in records]

    def _started(self, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        """The words and the environment with which a command starts: as a fork if that is possible."""
        if self.forks is not None:
            variables = self.forks.without_gpu()
            before = self.forks.before(argv, variables)
            if before:
                return [*before, *argv], {**os.environ, **variables}
        return argv, self._environment

    @property
    def _environment(self) -> dict[str, str]:
        """The environment of a Python that finds no GPU."""
        variables = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0", **UPLOADS_OFF}
        if not self.torch.is_users:
            folder = self.torch.folder
            paths = [str(folder), os.environ.get("PYTHONPATH", ""), str(folder / NEEDS)]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            variables["LD_PRELOAD"] = " ".join(map(str, self.preload))
            variables["FAKE_DEVICES"] = "0"
        return {**os.environ, **variables}


def _side_by_side(program: Program, change: Change) -> tuple[Runnable, Runnable]:
    """A program and the changed program, ready to run; of a notebook its cells as one script."""
    notebook = program.sources[0]
    if isinstance(notebook, Notebook):
        edits = [edit for edit in change.edits if edit.name == notebook.name]
        changed = edited(notebook.text, edits)
        return ([CELLS], {CELLS: notebook.text}), ([CELLS], {CELLS: changed})
    changed_words = _script(changed_command(program, change))
    return (_script(program.command), {}), (
        changed_words,
        changed_files(program, change),
    )


def compared(before: CpuRun, after: CpuRun) -> Proof:
    """What two runs say of the results of a change, as far as both came."""
    if before.error:
        return Proof(None, f"on the CPU it fails: {before.error}")
    if after.error:
        says = f"on the CPU only the changed one fails: {after.error}"
        return Proof(Results.OTHER, says)
    lost = _lost_gradients(before, after)
    if lost:
        says = f"{lost} weights that have a gradient in your program would have none"
        return Proof(Results.OTHER, says, loses_gradients=True)
    return _Comparison(*_with_equal_weights(before, after)).proof()


class _Comparison:
    """The values, weights and printed lines of both programs, in pairs."""

    def __init__(self, before: CpuRun, after: CpuRun) -> None:
        self.before = before
        self.after = after
        self.values = _pairs(before, after, "value")
        self.weights = _pairs(before, after, "weights")
        self.printed = _printed_pairs(before, after)
        self.both_ended = before.ended and after.ended

    def proof(self) -> Proof:
        """The strongest statement about their results that what was seen allows."""
        numbers = [line for line, _ in self.printed if NUMBER.search(line)]
        # Lines without a number, such as "Training", are the same whatever it computes.
        if len(self.weights) < LEAST_STEPS and not numbers and not self.values:
            return Proof(None, "the comparison on the CPU finished no step in its time")
        seen = f"{len(self.weights)} steps"
        if not self.weights:
            seen = f"{len(numbers)} printed lines of numbers, {len(self.values)} saved tensors"
        where = f"measured on the CPU over {seen}"
        if not self.both_ended:
            where += ", not to its end"
        elif _counts(self.before) != _counts(self.after):
            return Proof(Results.OTHER, f"it does not print and step as often, {where}")
        results, says = self._results()
        return Proof(results, f"{says}, {where}", to_its_end=self.both_ended)

    def _results(self) -> tuple[Results, str]:
        """What the change does to the results, by what was seen, and the words for it."""
        steps = [*self.values, *self.weights]
        same_steps = all(value == other for value, other in steps)
        same_prints = all(line == other for line, other in self.printed)
        alike_prints = all(_prints_alike(line, other) for line, other in self.printed)
        if same_steps and same_prints and (self.weights or self.values):
            return Results.SAME, "the same to the bit"
        if same_steps and same_prints:
            return Results.SAME, "all that it prints is the same"
        if same_steps and self.weights and alike_prints:
            says = (
                "losses and weights the same to the bit, printed numbers up to rounding"
            )
            return Results.SAME, says
        if alike_prints and self._tensors_alike():
            return Results.ROUNDED, "the same up to rounding"
        return Results.OTHER, "other numbers"

    def _tensors_alike(self) -> bool:
        """Whether gradients and buffers of the first steps are the same up to rounding.

        Losses and saved tensors count only where no optimizer stepped: a change may compute one
        loss as several parts.
        """
        tensors = _pairs(self.before, self.after, "gradients")[:STEPS_ALIKE]
        tensors += _pairs(self.before, self.after, "buffers")[:STEPS_ALIKE]
        if not self.weights:
            # Of a value's digest and size the size alone, as if it were the only gradient.
            tensors += [([value[1:]], [other[1:]]) for value, other in self.values]
        return all(_alike(sizes[0], others[0]) for sizes, others in tensors)


def _lost_gradients(before: CpuRun, after: CpuRun) -> int:
    """How many weights have a gradient in a step of the unchanged program, and none in that step of
    the changed one; of the step in which they are most.
    """
    lost = 0
    for (_, had), (_, have) in _pairs(before, after, "gradients"):
        if len(had) == len(have):
            both = zip(had, have, strict=True)
            missing = [pair for pair in both if pair == (True, False)]
            lost = max(lost, len(missing))
    return lost


def _with_equal_weights(before: CpuRun, after: CpuRun) -> tuple[CpuRun, CpuRun]:
    """Two runs that can be compared weight by weight. Where an optimizer of one has more weights,
    both are without those that get no gradient, which no step changes.
    """
    pairs = _pairs(before, after, "gradients")
    if all(len(sizes) == len(others) for (sizes, _), (others, _) in pairs):
        return before, after
    return _without_idle_weights(before), _without_idle_weights(after)


def _without_idle_weights(run: CpuRun) -> CpuRun:
    """What was seen of a run, without the weights whose gradient was 0 or missing in a step."""
    seen: list[Seen] = []
    is_updated: list[bool] = []  # of each weight, in the step whose gradients came last
    for kind, *values in run.seen:
        if kind == "gradients":
            is_updated = [length > 0 for length, _ in values[0]]
        if kind in ("gradients", "weights"):
            values[0] = list(compress(values[0], is_updated))
        seen.append([kind, *values])
    return replace(run, seen=seen)


def _counts(run: CpuRun) -> tuple[int, int]:
    """How many steps and how many printed lines were seen."""
    return len(run.of("weights")), len(run.of("print"))


def _pairs(before: CpuRun, after: CpuRun, kind: str) -> list[tuple[Seen, Seen]]:
    """What was seen of a kind in both programs, one beside the other, as far as both came."""
    return list(zip(before.of(kind), after.of(kind), strict=False))


def _printed_pairs(before: CpuRun, after: CpuRun) -> list[tuple[str, str]]:
    """Printed lines of both programs, without what torch prints of graphs."""
    return [
        (GRAPH.sub("", line), GRAPH.sub("", other))
        for (line,), (other,) in _pairs(before, after, "print")
    ]


def _alike(sizes: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    """Whether tensors have the same lengths and signed sums, up to rounding. What rounding does to
    the longest tensor is allowed, in small, to each.
    """
    if len(sizes) != len(others):
        return False
    longest = max((length for length, _ in sizes), default=0.0)
    for (length, total), (other_length, other_total) in zip(sizes, others, strict=True):
        scale = length + ROUNDING * longest
        lengths_alike = abs(length - other_length) <= ROUNDING * scale
        sums_alike = abs(total - other_total) <= ROUNDING_OF_SUMS * scale
        # Not a number (nan) is not alike, either.
        if not lengths_alike or not sums_alike:
            return False
    return True


def _prints_alike(line: str, other: str) -> bool:
    """Whether two printed lines differ at most by the rounding of their numbers."""
    if NUMBER.sub("#", line) != NUMBER.sub("#", other):
        return False
    numbers = zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)
    is_close = partial(math.isclose, rel_tol=PRINTED_ROUNDING, abs_tol=PRINTED_AS_ZERO)
    return all(is_close(float(number), float(after)) for number, after in numbers)


def _script(command: Sequence[str]) -> list[str]:
    """A command from its script or its ``-m`` on, without Python, ``uv run`` or ``accelerate
    launch`` before it; empty where it starts no script or module of Python.
    """
    words = list(command)
    if words[:2] == ["uv", "run"]:
        words = words[2:]
    script = script_of(words)
    if words[:2] == ["accelerate", "launch"] and script:
        words = words[words.index(script) :]
    if words and PYTHON.fullmatch(os.path.basename(words[0])):
        words = words[1:]
        # Options of Python without a value of their own.
        while words and re.fullmatch(r"-[uBOsEI]+", words[0]):
            words = words[1:]
    if words and words[0].endswith(".py"):
        return words
    if len(words) > 1 and words[0] == "-m":
        return words
    return []


def _read(record: Path, last_line: str) -> CpuRun:
    """What a record has of a run; ``last_line``: the error of a run that did not begin its record."""
    if not record.is_file():
        return CpuRun((), last_line)
    lines = record.read_text().splitlines()
    # The last line is not whole where the program was ended while it wrote.
    seen = [json.loads(line) for line in lines if line.endswith("]")]
    errors = [str(values[0]) for kind, *values in seen if kind == "failed"]
    ended = any(kind == "end" for kind, *_ in seen)
    return CpuRun(seen, "".join(errors[:1]), ended)
