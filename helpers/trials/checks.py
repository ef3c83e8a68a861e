"""Runs functional checks of torch on the GPUs of this box, in child processes with limits.

A GPU is left alone if another program has memory on it or the kernel log shows a fault of it
(``targets.gate``), unless a person names it. The default checks take at most 256 MiB and 5 s of
each GPU: the child limits torch's allocator, and the time is measured here. The context and library
handles come on top of the 256 MiB; the time starts when torch and the driver are up, which takes no
memory of a GPU. The check "ladder", which finds the largest single allocation, takes more, and runs
only if it is asked for.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from helpers.ground.child import Ended, json_row, program, watch
from helpers.ground.shapes import Reading, not_available, seen
from helpers.ground.units import GIB, MIB
from helpers.look.boxes import is_this_box
from helpers.look.bundle import Bundle
from helpers.settings.table import NO_CACHE
from helpers.trials.interpreter import torch_interpreter
from helpers.trials.targets import Target, environment, targets_of

PROGRAM = "helpers.trials.under_torch.checks"

# The checks of under_torch/checks.py, in the order in which they run.
LOOKS = ("enumeration", "alone")
LOADS = ("matmul_fp32", "matmul_bf16", "network", "copy_pageable", "copy_pinned")
DEFAULT = LOOKS + LOADS
CHECKS = (*DEFAULT, "ladder")

LEAST_S = 0.5
"""With less time a check is not started: it would be stopped without a fault of its own."""
TURN_S = 20.0
"""Time for a child between two checks, and to end itself after the last."""
LONGEST_MESSAGE = 400
NO_LIMIT_S = 1e9
"""JSON has no infinity; this is more than thirty years."""
DROPPED = (*NO_CACHE, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
"""Settings that a child does not get: with NO_CACHE torch's memory limit would not hold, as each
tensor is taken from the driver; the last computes fp32 products in TF32.
"""
SET = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
"""Threads of a child: checks must not slow down other programs of the box."""


@dataclass(frozen=True)
class CheckLimits:
    """Limits of the checks, in seconds and bytes.

    ``start_s`` is for the start of Python, torch and the driver, and for a check of LOOKS;
    ``check_s`` for each of LOADS; ``gpu_s`` for all of LOADS on one GPU together (None: no such
    limit; a CPU has none); ``opt_in_s`` for the ladder. torch may take ``gpu_bytes`` of the GPU.
    ``to_the_limit``: the ladder takes all memory that it gets.
    """

    start_s: float = 60.0
    check_s: float = 20.0
    gpu_s: float | None = 5.0
    gpu_bytes: int = 256 * MIB
    opt_in_s: float = 60.0
    to_the_limit: bool = False


FORCED = CheckLimits(check_s=60.0, gpu_s=None, gpu_bytes=GIB)
"""For a card that a person names (make check-gpu), and so lends to the checks."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check on one target.

    ``state`` is passed, failed, not_run, timed_out or crashed; ``says`` is one sentence.
    ``max_error`` is the largest relative error, of checks that compute. ``peak_bytes`` is the most
    that torch's allocator took from the card, ``peak_allocated_bytes`` the most that tensors used
    of it. If the child crashed or was stopped, ``last_words`` is the end of its stderr, and
    ``stacks`` says where its threads were.
    """

    check: str
    pci: str
    device: str
    state: str
    says: str
    seconds: float
    peak_bytes: Reading
    peak_allocated_bytes: Reading
    max_error: float | None = None
    message: str = ""
    last_words: str = ""
    stacks: str = ""
    figures: dict[str, object] = field(default_factory=dict)


def check_box(
    bundle: Bundle,
    *,
    gpu: str = "",
    ladder: bool = False,
    to_the_limit: bool = False,
    torch_python: str = "",
    on_result: Callable[[CheckResult], None] = lambda _: None,
) -> list[CheckResult]:
    """Run the checks on every GPU of this box that nobody else uses, or only on ``gpu`` (a PCI
    address), whoever uses it.

    Returns no result for a box that is not this machine. Raises ValueError if this box has no such
    GPU.
    """
    if not is_this_box(bundle):
        return []
    names: tuple[str, ...] = DEFAULT
    if ladder:
        names = CHECKS
    limits = CheckLimits(to_the_limit=to_the_limit)
    if gpu:
        limits = replace(FORCED, to_the_limit=to_the_limit)
    python = torch_python or torch_interpreter()
    return run_checks(python, targets_of(bundle, gpu), names, limits, on_result)


def check_rows(
    bundle: Bundle, wanted: bool, *, gpu: str, ladder: bool, torch_python: str
) -> list[list[str]]:
    """Run the checks if they are ``wanted``, and return a table: its header, then a row for each
    check or one that says why none was run.
    """
    if wanted and is_this_box(bundle):
        return as_rows(
            check_box(bundle, gpu=gpu, ladder=ladder, torch_python=torch_python)
        )
    why = "not asked for"
    if wanted:
        why = f"because {bundle.box} is not this machine, or it booted since"
    return [["GPU", "check", "state", "says"], ["-", "all", "not run", why]]


def run_checks(
    torch_python: str,
    targets: Sequence[Target],
    names: Sequence[str] = DEFAULT,
    limits: CheckLimits = CheckLimits(),
    on_result: Callable[[CheckResult], None] = lambda _: None,
) -> list[CheckResult]:
    """Run the named checks on every target; returns the results by GPU and in the order of CHECKS.

    ``on_result`` also gets each as it comes. Raises ValueError for an unknown name; what else goes
    wrong is in the results.
    """
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(f"check {unknown[0]!r}: expected one of {', '.join(CHECKS)}")
    missing = ""
    if not shutil.which(torch_python):
        missing = "not run because no Python with torch was found"
    wanted = [name for name in CHECKS if name in names]
    results: list[CheckResult] = []
    for target in targets:
        run = _Run(torch_python, target, limits, on_result)
        why_not = missing or target.refused
        if why_not:
            run.refuse(wanted, why_not)
        else:
            run.run(wanted)
        results += run.done.values()
    return sorted(results, key=lambda row: (row.pci, CHECKS.index(row.check)))


def as_rows(results: Sequence[CheckResult]) -> list[list[str]]:
    """The results as a table, header first."""
    more = ["seconds", "torch took at most", "largest error", "message"]
    rows = [["GPU", "check", "state", "says", *more]]
    for result in results:
        peak = ""
        if result.peak_bytes.ok:
            peak = result.peak_bytes.show()
        error = ""
        if result.max_error is not None:
            error = f"{result.max_error:.1e}"
        check = result.check.replace("_", " ")
        state = result.state.replace("_", " ")
        row = [result.pci, check, state, result.says, f"{result.seconds:.2f}"]
        rows.append([*row, peak, error, result.message])
    return rows


class _Run:
    """The checks of one target, in as many children as are needed; no check is started twice.

    ``done`` has the results by the name of the check. Of the present child ``ready`` says whether
    torch is up, ``current`` which check is running (empty: none), ``began`` when it or the child
    started, and ``no_torch`` is the row that says why torch cannot be imported. ``used_up`` is what
    a check says that does not run because LOADS have no time left.
    """

    def __init__(
        self,
        torch_python: str,
        target: Target,
        limits: CheckLimits,
        on_result: Callable[[CheckResult], None],
    ):
        self.torch_python = torch_python
        self.target = target
        self.limits = limits
        self.on_result = on_result
        self.done: dict[str, CheckResult] = {}
        self.ready = False
        self.current = ""
        self.began = 0.0
        self.no_torch: Mapping[str, Any] = {}
        self.used_up = (
            f"not run because the {limits.gpu_s or 0:g} s "
            "that the checks may take of one GPU are used up"
        )

    def run(self, names: Sequence[str]) -> None:
        """Run the checks; if one ends its child, the rest run in a new one."""
        while left := self._undone(names):
            done_before = len(self.done)
            ended = self._child(left)
            left = self._undone(left)
            has_started = self.ready or self.current
            # Each branch gives at least one check a result, so that the loop ends.
            if left and not has_started:
                self._torch_did_not_start(left, ended)
            elif self.current:
                self._child_ended_in(self.current, ended)
            elif len(self.done) == done_before:  # it ended before its first check
                self._child_ended_in(left[0], ended)
            if ended.left_pids:  # SIGKILL does not end them
                pids = ", ".join(map(str, ended.left_pids))
                stuck = f"a child that waits in the kernel still holds this GPU (pid {pids})"
                self.refuse(left, f"not run because {stuck}")
            if self._left_s() < LEAST_S:
                self.refuse([name for name in left if name in LOADS], self.used_up)

    def _child(self, names: Sequence[str]) -> Ended:
        """Run a child for these checks to its end; ``_take_line`` takes what it tells."""
        self.ready = False
        self.current = ""
        self.began = time.monotonic()
        self.no_torch = {}
        spec = {
            **asdict(self.limits),
            "device": self.target.device,
            "pci": self.target.pci,
            "several": self.target.several,
            "gpu_s": min(self._left_s(), NO_LIMIT_S),
            "names": names,
            "least_s": LEAST_S,
            "used_up": self.used_up,
        }
        argv = program(self.torch_python, PROGRAM, json.dumps(spec))
        with tempfile.TemporaryDirectory(prefix="casebook-checks-") as scratch:
            env = environment(self.target, DROPPED, {**SET, "TMPDIR": scratch})
            return watch(
                argv, self.limits.start_s, on_line=self._take_line, cwd=scratch, env=env
            )

    def refuse(self, names: Sequence[str], says: str) -> None:
        """Give those of these checks that have no result yet the state not_run."""
        for name in self._undone(names):
            self._add(name, "not_run", says, {})

    def _undone(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.done]

    def _left_s(self) -> float:
        """The seconds that are left for LOADS on this target."""
        if self.limits.gpu_s is None or self.target.device == "cpu":
            return math.inf
        loads = (result for name, result in self.done.items() if name in LOADS)
        return self.limits.gpu_s - sum(result.seconds for result in loads)

    def _take_line(self, text: str) -> float | None:
        """Take a line of the child; returns the seconds until its next one must come, None for a
        line that is none of its rows, which changes nothing.
        """
        row = json_row(text)
        if not row:
            return None
        event = row.get("event")
        name = str(row.get("check"))
        # A check that has a result already is not taken again.
        if event == "start" and name in self._undone(CHECKS):
            self.current = name
            self.began = time.monotonic()
            if name in LOADS:
                return min(self.limits.check_s, max(LEAST_S, self._left_s()))
            if name in LOOKS:
                return self.limits.start_s
            return self.limits.opt_in_s
        if event == "end" and name == self.current:
            self.current = ""
            self._add(name, row["state"], row["says"], row)
        elif event == "no_torch":
            self.no_torch = row
        elif event == "ready":
            self.ready = True
        return TURN_S

    def _torch_did_not_start(self, left: list[str], ended: Ended) -> None:
        """The first of the checks that are left failed because of torch, unless there is no torch
        or a check was done before; the others are not run.
        """
        why = "torch did not start"
        if self.no_torch.get("missing"):
            why = "this Python has no torch"
        elif self.no_torch:
            why = "torch cannot be imported"
            self._add(left[0], "failed", why, self.no_torch)
        elif self.done:
            why = "torch did not start again"
        else:
            self._child_ended_in(left[0], ended, "torch did not start: ")
        self.refuse(left, f"not run because {why}")

    def _child_ended_in(self, name: str, ended: Ended, prefix: str = "") -> None:
        """The result of a check whose child ended before the check did."""
        row = {
            "seconds": round(time.monotonic() - self.began, 3),
            "message": _last_message(ended.last_words),
            "last_words": ended.last_words,
            "stacks": ended.stacks,
        }
        state = "crashed"
        if ended.how in ("timed_out", "stuck"):
            state = "timed_out"
        self._add(name, state, f"{prefix}the child {ended.fate}", row)

    def _add(self, name: str, state: str, says: str, row: Mapping[str, Any]) -> None:
        """Keep a result; ``row`` has what the child told of it."""
        why = "the check did not end"  # why its peaks are not known, if the child told none
        if state == "not_run":
            why = "not run"
        elif self.target.device == "cpu":
            why = "memory of the CPU is not counted"
        result = CheckResult(
            check=name,
            pci=self.target.pci,
            device=self.target.device,
            state=state,
            says=says,
            seconds=row.get("seconds", 0.0),
            peak_bytes=_peak(row, "reserved", why),
            peak_allocated_bytes=_peak(row, "allocated", why),
            max_error=row.get("max_error"),
            message=row.get("message", ""),
            last_words=row.get("last_words", ""),
            stacks=row.get("stacks", ""),
            figures=row.get("figures", {}),
        )
        self.done[name] = result
        self.on_result(result)


def _peak(row: Mapping[str, Any], kind: str, why: str) -> Reading:
    """The most bytes that torch's allocator counted as ``kind`` (reserved, allocated), or why it
    did not count.
    """
    size = row.get(f"{kind}_bytes")
    if size is None:
        return not_available(why, "bytes", "torch.cuda.memory_stats")
    return seen(size, "bytes", f"torch.cuda.max_memory_{kind}")


def _last_message(last_words: str) -> str:
    """One line of the last words: faulthandler's "Fatal Python error" after the line before it,
    which often says why; else the last line.
    """
    lines = [line.strip() for line in last_words.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if line.startswith("Fatal Python error"):
            with_the_one_before = lines[max(0, number - 1) : number + 1]
            return "; ".join(with_the_one_before)[:LONGEST_MESSAGE]
    return "".join(lines[-1:])[:LONGEST_MESSAGE]
