"""Functional checks of torch, each set in a child process with limits: who may be checked, how it went, as rows.

A GPU is left alone where somebody else holds memory on it or the kernel log shows a fault of it (``gate``), unless forced.
Otherwise the default checks take at most 256 MiB and 5 s of each GPU: torch's allocator is limited in the child, the clock
runs here. A context and library handles come on top of the 256 MiB; the clock starts when torch and the driver are up, which
takes no memory of a GPU.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from helpers.child import Ended, json_row, program, watch
from helpers.load.targets import Target, environment, pair_targets
from helpers.look.reading import GIB, MIB, Reading, not_available, seen
from helpers.settings.table import NO_CACHE

PROGRAM = "helpers.torchside.checks"

LOOKS = ("enumeration", "alone")
LOADS = ("matmul_fp32", "matmul_bf16", "network", "copy_pageable", "copy_pinned")
DEFAULT = LOOKS + LOADS
LADDER = ("ladder",)
PAIRS = ("peer_access", "pair_copy", "all_reduce_gloo", "all_reduce_nccl", "data_parallel")
CHECKS = DEFAULT + LADDER + PAIRS

# Less than this is too little to begin a check with: it would be stopped for no fault of its own.
LEAST_S = 0.5
# Between two checks, and for the child's own end.
TURN_S = 20.0
# With the first two, torch's memory limit does not hold (raw driver allocations); the third makes fp32 products TF32.
DROPPED = (*NO_CACHE, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
# Few threads, and the second process of a pair over the loopback alone.
SET = {
    "OMP_NUM_THREADS": "2",
    "MKL_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
}


@dataclass(frozen=True)
class Limits:
    """Limits of the checks. ``start_s``: Python, import torch, driver start; ``check_s``: each default check; ``gpu_s``: all
    default checks of one GPU together (None: no such limit; never on a CPU); ``opt_in_s``: each check asked for by name."""

    start_s: float = 60.0
    check_s: float = 20.0
    gpu_s: float | None = 5.0
    gpu_bytes: int = 256 * MIB
    opt_in_s: float = 60.0
    to_the_limit: bool = False
    grace_s: float = 5.0


# For a person who asked for the checks of a card (make check-gpu): no haste.
FORCED = Limits(check_s=60.0, gpu_s=None, gpu_bytes=GIB)


@dataclass(frozen=True)
class CheckResult:
    """One check of one target. ``state`` is passed, failed, not_run, timed_out or crashed; ``says`` is one sentence.

    ``peak_bytes`` is what torch's allocator took from the card at most, ``peak_allocated_bytes`` what tensors used of it.
    ``last_words`` is the end of the child's stderr and ``stacks`` where its threads were, where it crashed or was stopped.
    """

    check: str
    pci: str
    peer: str
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
    figures: dict[str, Any] = field(default_factory=dict)


def run_checks(
    torch_python: str,
    targets: Sequence[Target],
    names: Sequence[str] = DEFAULT,
    limits: Limits = Limits(),
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the named checks on every target, those of pairs on every pair of GPUs; sorted by GPU and check.

    Raises ValueError for a name that is no check. Nothing else is raised: what goes wrong is in the results, which
    ``on_result`` also gets one by one.
    """
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(f"check {unknown[0]!r}: expected one of {', '.join(CHECKS)}")
    missing = "" if shutil.which(torch_python) else "not run because no Python with torch was found"
    singles, paired = (
        [name for name in CHECKS if name in names and (name in PAIRS) == pair]
        for pair in (False, True)
    )
    results: list[CheckResult] = []
    stuck: dict[str, str] = {}
    for target, wanted in [(t, singles) for t in targets] + [
        (t, paired) for t in pair_targets(targets)
    ]:
        run = _Run(torch_python, target, limits, on_result)
        refused = (
            missing or target.refused or stuck.get(target.pci, "") or stuck.get(target.peer, "")
        )
        if refused:
            run.refuse(wanted, refused)
        elif wanted is singles or target.peer:
            run.run(wanted)
        else:
            run.run(
                [name for name in wanted if name == "all_reduce_gloo" and target.device == "cpu"]
            )
            run.refuse(
                [name for name in wanted if name not in run.done],
                f"not run because this box has {'no GPU' if target.device == 'cpu' else 'one GPU'}",
            )
        if run.stuck:
            stuck.update({pci: run.stuck for pci in (target.pci, target.peer) if pci})
        results += run.done.values()
    return sorted(results, key=_order)


def as_rows(results: Sequence[CheckResult], people: bool = False) -> list[list[str]]:
    """The results as a table, header first, sorted by GPU and check; without times, versions or paths unless for ``people``."""
    rows = [
        ["GPU", "check", "state", "says"]
        + ["seconds", "torch took at most", "largest error", "message"] * people
    ]
    for r in sorted(results, key=_order):
        row = [" and ".join(filter(None, [r.pci, r.peer])), r.check, r.state, r.says]
        if people:
            row += [
                f"{r.seconds:.2f}",
                r.peak_bytes.show() if r.peak_bytes.ok else "",
                "" if r.max_error is None else f"{r.max_error:.1e}",
                r.message,
            ]
        rows.append(row)
    return rows


def _order(result: CheckResult) -> tuple[str, str, int]:
    return result.pci, result.peer, CHECKS.index(result.check)


class _Run:
    """The checks of one target: as many children as it takes, each check started at most once."""

    def __init__(
        self,
        torch_python: str,
        target: Target,
        limits: Limits,
        on_result: Callable[[CheckResult], None] | None,
    ):
        self.torch_python, self.target, self.limits, self.on_result = (
            torch_python,
            target,
            limits,
            on_result,
        )
        self.done: dict[str, CheckResult] = {}
        self.stuck = ""
        self.left_s = (
            limits.gpu_s if limits.gpu_s is not None and target.device != "cpu" else float("inf")
        )
        self.used_up = f"not run because the {limits.gpu_s or 0:g} s that the checks may take of one GPU are used up"

    def run(self, names: Sequence[str]) -> None:
        """Run the checks; where one ends its child, the rest run in a fresh one."""
        left = list(names)
        while left:
            # Of the child that runs now: is torch up or why not, the check under way, since when and for how long at most.
            self.ready, self.current = False, ""
            self.no_torch: dict[str, Any] = {}
            self.began, self.limit_s = time.monotonic(), self.limits.start_s
            known = len(self.done)
            with tempfile.TemporaryDirectory(prefix="casebook-checks-") as scratch:
                env = environment(self.target, DROPPED, {**SET, "TMPDIR": scratch})
                ended = watch(
                    program(self.torch_python, PROGRAM, json.dumps(self._spec(left))),
                    self.limit_s,
                    cwd=scratch,
                    env=env,
                    on_line=self._line,
                    grace_s=self.limits.grace_s,
                )
            left = self._undone(left)
            if ended.left_pids:
                pids = ", ".join(map(str, ended.left_pids))
                self.stuck = f"not run because a child that waits in the kernel still holds this GPU (pid {pids})"
            if self.current:
                self._spend()
                self._bad(self.current, ended)
            elif left and not self.ready:
                self._torch_did_not_start(left, ended)
            elif len(self.done) == known:
                self._bad(left[0], ended)
            elif ended.how != "exited":
                last = list(self.done)[-1]
                self.done[last] = replace(
                    self.done[last],
                    message=f"afterwards the child {_fate(ended, self.limit_s)}",
                    last_words=ended.last_words,
                    stacks=ended.stacks,
                )
            if self.stuck:
                self.refuse(self._undone(left), self.stuck)
            if self.left_s < LEAST_S:
                self.refuse([name for name in self._undone(left) if name in LOADS], self.used_up)
            left = self._undone(left)

    def refuse(self, names: Sequence[str], says: str) -> None:
        """These checks are not run, and why."""
        for name in names:
            self._add(name, "not_run", says)

    def _undone(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self.done]

    def _spec(self, names: Sequence[str]) -> dict[str, Any]:
        target, limits = self.target, self.limits
        return {
            "names": names,
            "device": target.device,
            "pci": target.pci,
            "peer": target.peer,
            "several": target.several,
            "start_s": limits.start_s,
            "check_s": limits.check_s,
            "opt_in_s": limits.opt_in_s,
            "least_s": LEAST_S,
            "gpu_s": min(self.left_s, 1e9),
            "gpu_bytes": limits.gpu_bytes,
            "used_up": self.used_up,
            "to_the_limit": limits.to_the_limit,
        }

    def _line(self, text: str) -> float | None:
        """Take one line of the child; returns how long the child has from now on."""
        message = json_row(text)
        if not message:
            return None
        event, name = message.get("event"), str(message.get("check"))
        if event == "start" and name in self._undone(CHECKS):
            self.current, self.began, self.limit_s = name, time.monotonic(), self._limit(name)
            return self.limit_s
        if event == "end" and name == self.current:
            self._spend()
            self.current = ""
            self._add(name, message["state"], message["says"], message)
        elif event == "ready":
            self.ready = True
        elif event == "no_torch":
            self.no_torch = message
        self.limit_s = TURN_S
        return TURN_S

    def _limit(self, name: str) -> float:
        if name in LOADS:
            return min(self.limits.check_s, max(LEAST_S, self.left_s))
        return self.limits.start_s if name in LOOKS else self.limits.opt_in_s

    def _spend(self) -> None:
        if self.current in LOADS:
            self.left_s -= time.monotonic() - self.began

    def _torch_did_not_start(self, left: list[str], ended: Ended) -> None:
        if self.no_torch.get("missing"):
            self.refuse(left, "not run because this Python has no torch")
            return
        if self.no_torch:
            self._add(left[0], "failed", "torch cannot be imported", self.no_torch)
        elif not self.done:
            self._bad(left[0], ended, "torch did not start: ")
        self.refuse(
            self._undone(left),
            f"not run because torch {'cannot be imported' if self.no_torch else 'did not start'}"
            + (" again" if len(self.done) > 1 and not self.no_torch else ""),
        )

    def _bad(self, name: str, ended: Ended, prefix: str = "") -> None:
        """The result of a check whose child did not live to tell it."""
        state = "timed_out" if ended.how in ("timed_out", "stuck") else "crashed"
        self._add(
            name,
            state,
            f"{prefix}the child {_fate(ended, self.limit_s)}",
            {
                "message": _telling(ended.last_words),
                "seconds": round(time.monotonic() - self.began, 3),
            },
            ended,
        )

    def _add(
        self,
        name: str,
        state: str,
        says: str,
        told: Mapping[str, Any] | None = None,
        ended: Ended | None = None,
    ) -> None:
        told = told or {}
        why = (
            "memory of the CPU is not counted"
            if self.target.device == "cpu"
            else "the check did not end"
        )
        peaks = [
            seen(told[key], "bytes", f"torch.cuda.max_memory_{key.partition('_')[0]}")
            if key in told
            else not_available(
                "not run" if state == "not_run" else why, "bytes", "torch.cuda.memory_stats"
            )
            for key in ("reserved_bytes", "allocated_bytes")
        ]
        result = CheckResult(
            name,
            self.target.pci,
            self.target.peer,
            self.target.device,
            state,
            says,
            told.get("seconds", 0.0),
            peaks[0],
            peaks[1],
            told.get("max_error"),
            told.get("message", ""),
            ended.last_words if ended else "",
            ended.stacks if ended else "",
            told.get("figures") or {},
        )
        self.done[name] = result
        if self.on_result:
            self.on_result(result)


def _fate(ended: Ended, limit_s: float) -> str:
    if ended.how == "stuck":
        return f"did not end within {limit_s:.3g} s and cannot be killed: it waits in the kernel"
    if ended.how == "timed_out":
        return f"did not end within {limit_s:.3g} s"
    return (
        f"died of {ended.signal}"
        if ended.signal
        else f"ended without a result, with exit code {ended.exit_code}"
    )


def _telling(last_words: str) -> str:
    """One line of the last words: what stands before faulthandler's "Fatal Python error", with it; else the last line."""
    lines = [line.strip() for line in last_words.splitlines() if line.strip()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    chosen = lines[-1:] if fatal is None else lines[max(0, fatal - 1) : fatal + 1]
    return "; ".join(chosen)[:400]
