"""Functional checks of torch, each set in a child process with limits: who may be checked, how
it went, as rows.

A GPU is left alone where somebody else holds memory on it or the kernel log shows a fault of it
(``gate``), unless forced. Otherwise the default checks take at most 256 MiB and 5 s of each
GPU: torch's allocator is limited in the child, the clock runs here. A context and library
handles come on top of the 256 MiB; the clock starts when torch and the driver are up, which
takes no memory of a GPU.
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

LOOKS = ("enumeration", "alone")
LOADS = ("matmul_fp32", "matmul_bf16", "network", "copy_pageable", "copy_pinned")
DEFAULT = LOOKS + LOADS
CHECKS = (*DEFAULT, "ladder")

# Less than this is too little to begin a check with: it would be stopped for no fault of its own.
LEAST_S = 0.5
# Between two checks, and for the child's own end.
TURN_S = 20.0
# With the first two, torch's memory limit does not hold (raw driver allocations); the third
# makes fp32 products TF32.
DROPPED = (*NO_CACHE, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
# Few threads.
SET = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")


@dataclass(frozen=True)
class CheckLimits:
    """Limits of the checks.

    ``start_s``: Python, import torch, driver start; ``check_s``: each default check; ``gpu_s``:
    all default checks of one GPU together (None: no such limit; never on a CPU); ``opt_in_s``:
    each check asked for by name.
    """

    start_s: float = 60.0
    check_s: float = 20.0
    gpu_s: float | None = 5.0
    gpu_bytes: int = 256 * MIB
    opt_in_s: float = 60.0
    to_the_limit: bool = False


# For a person who asked for the checks of a card (make check-gpu): no haste.
FORCED = CheckLimits(check_s=60.0, gpu_s=None, gpu_bytes=GIB)


@dataclass(frozen=True)
class CheckResult:
    """One check of one target.

    ``state`` is passed, failed, not_run, timed_out or crashed; ``says`` is one sentence.

    ``peak_bytes`` is what torch's allocator took from the card at most,
    ``peak_allocated_bytes`` what tensors used of it. ``last_words`` is the end of the child's
    stderr and ``stacks`` where its threads were, where it crashed or was stopped.
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
    """Run the checks on every GPU of this box that nobody else uses, or on ``gpu`` alone and in
    any case.

    Empty for a box that is not this machine. Raises ValueError when ``gpu`` is no GPU of this box.
    """
    if not is_this_box(bundle):
        return []
    names = CHECKS if ladder else DEFAULT
    limits = FORCED if gpu else CheckLimits()
    limits = replace(limits, to_the_limit=to_the_limit)
    python = torch_python or torch_interpreter()
    return run_checks(python, targets_of(bundle, gpu), names, limits, on_result)


def check_rows(
    bundle: Bundle, wanted: bool, *, gpu: str, ladder: bool, torch_python: str
) -> list[list[str]]:
    """The checks as a table with its header first, or one row that says why none was run."""
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
    """Run the named checks on every target; sorted by GPU and check.

    Raises ValueError for a name that is no check. Nothing else is raised: what goes wrong is in
    the results, which ``on_result`` also gets one by one.
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
        refused = missing or target.refused
        if refused:
            run.refuse(wanted, refused)
        else:
            run.run(wanted)
        results += run.done.values()
    return sorted(results, key=lambda row: (row.pci, CHECKS.index(row.check)))


def as_rows(results: Sequence[CheckResult]) -> list[list[str]]:
    """The results as a table, header first."""
    more = ["seconds", "torch took at most", "largest error", "message"]
    rows = [["GPU", "check", "state", "says", *more]]
    for result in results:
        rows.append(
            [
                result.pci,
                result.check.replace("_", " "),
                result.state.replace("_", " "),
                result.says,
                f"{result.seconds:.2f}",
                result.peak_bytes.show() if result.peak_bytes.ok else "",
                "" if result.max_error is None else f"{result.max_error:.1e}",
                result.message,
            ]
        )
    return rows


class _Run:
    """The checks of one target: as many children as it takes, each check started at most once."""

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
        """Run the checks; where one ends its child, the rest run in a fresh one."""
        while left := self._undone(names):
            before = len(self.done)
            ended = self._child(left)
            left = self._undone(left)
            if left and not (self.current or self.ready):
                self._torch_did_not_start(left, ended)
            elif self.current or len(self.done) == before:
                self._bad(self.current or left[0], ended)
            if ended.left_pids:
                pids = ", ".join(map(str, ended.left_pids))
                stuck = f"a child that waits in the kernel still holds this GPU (pid {pids})"
                self.refuse(left, f"not run because {stuck}")
            if self._left_s() < LEAST_S:
                self.refuse([name for name in left if name in LOADS], self.used_up)

    def _child(self, names: Sequence[str]) -> Ended:
        """One child for these checks; ``ready``, ``current``, ``began`` and ``no_torch`` are of it:
        whether torch is up, the check under way, since when, and why there is no torch.
        """
        self.ready = False
        self.current = ""
        self.began = time.monotonic()
        self.no_torch = {}
        spec = {
            **asdict(self.limits),
            "device": self.target.device,
            "pci": self.target.pci,
            "several": self.target.several,
            "gpu_s": min(self._left_s(), 1e9),
            "names": names,
            "least_s": LEAST_S,
            "used_up": self.used_up,
        }
        argv = program(self.torch_python, PROGRAM, json.dumps(spec))
        with tempfile.TemporaryDirectory(prefix="casebook-checks-") as scratch:
            env = environment(self.target, DROPPED, {**SET, "TMPDIR": scratch})
            return watch(
                argv, self.limits.start_s, on_line=self._line, cwd=scratch, env=env
            )

    def refuse(self, names: Sequence[str], says: str) -> None:
        """Those of these checks that have no result are not run, and why."""
        for name in self._undone(names):
            self._add(name, "not_run", says, {})

    def _undone(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.done]

    def _left_s(self) -> float:
        """The seconds that the checks which load this target may still take."""
        if self.limits.gpu_s is None or self.target.device == "cpu":
            return math.inf
        loads = (result for name, result in self.done.items() if name in LOADS)
        return self.limits.gpu_s - sum(result.seconds for result in loads)

    def _line(self, text: str) -> float | None:
        """Take one line of the child; returns how long the child has from now on."""
        row = json_row(text)
        if not row:
            return None
        event = row.get("event")
        name = str(row.get("check"))
        if event == "start" and name in self._undone(CHECKS):
            self.current = name
            self.began = time.monotonic()
            if name in LOADS:
                return min(self.limits.check_s, max(LEAST_S, self._left_s()))
            return self.limits.start_s if name in LOOKS else self.limits.opt_in_s
        if event == "end" and name == self.current:
            self.current = ""
            self._add(name, row["state"], row["says"], row)
        elif event == "no_torch":
            self.no_torch = row
        elif event == "ready":
            self.ready = True
        return TURN_S

    def _torch_did_not_start(self, left: list[str], ended: Ended) -> None:
        why = "torch did not start"
        if self.no_torch.get("missing"):
            why = "this Python has no torch"
        elif self.no_torch:
            why = "torch cannot be imported"
            self._add(left[0], "failed", why, self.no_torch)
        elif self.done:
            why = "torch did not start again"
        else:
            self._bad(left[0], ended, "torch did not start: ")
        self.refuse(left, f"not run because {why}")

    def _bad(self, name: str, ended: Ended, prefix: str = "") -> None:
        """The result of a check whose child ended before the check did."""
        row = {
            "seconds": round(time.monotonic() - self.began, 3),
            "message": _last_message(ended.last_words),
            "last_words": ended.last_words,
            "stacks": ended.stacks,
        }
        state = "timed_out" if ended.how in ("timed_out", "stuck") else "crashed"
        self._add(name, state, f"{prefix}the child {ended.fate}", row)

    def _add(self, name: str, state: str, says: str, row: Mapping[str, Any]) -> None:
        """Keep a result: what the child told of it is in ``row``."""
        why = "the check did not end"
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
    """What torch's allocator counted at most, or why it did not count."""
    size = row.get(f"{kind}_bytes")
    if size is None:
        return not_available(why, "bytes", "torch.cuda.memory_stats")
    return seen(size, "bytes", f"torch.cuda.max_memory_{kind}")


def _last_message(last_words: str) -> str:
    """One line of the last words: what stands before faulthandler's "Fatal Python error", with
    it; else the last line.
    """
    lines = [line.strip() for line in last_words.splitlines() if line.strip()]
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("Fatal Python error"):
            return "; ".join(filter(None, [before, line]))[:400]
    return "".join(lines[-1:])[:400]
