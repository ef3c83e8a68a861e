"""What each process of a rehearsal reported of itself (under_torch/witness.py writes it)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from helpers.look import files


class ValueRead(TypedDict):
    """A value of the device that an operator ``op`` read back ``times`` times.

    ``sizes``: the size of something hangs on it. ``inside``: the file of torch that read it;
    ``where``: the line of the program, empty in the backward pass. ``collective``: what gave the
    value to a rank that is alone, or empty.
    """

    op: str
    sizes: bool
    inside: str
    where: str
    collective: str
    times: int


class ProcessReport(TypedDict):
    """The report of one process: its error, its limits, and what it asked of torch and the device.

    ``counts``: what the device was asked to do, by name. ``beside``: why some small tensors could
    not be computed along. ``missing``: functions of libraries that nobody stands in for.
    ``forked``: how many processes of the whole rehearsal used the GPU after a fork.
    """

    pid: int
    parent: int
    imports_torch_as_started: bool
    has_compiler: bool
    forks: int
    frames: list[dict[str, object]]
    error: str
    message: str
    counts: Mapping[str, int]
    stopped: str
    steps: int
    step_peaks: list[tuple[int, int]]
    compiled: int
    has_buckets: bool
    bucket_bytes: int
    beside: str
    reads: list[ValueRead]
    missing: list[str]
    forked: int


Reports = Sequence[ProcessReport]


def read_reports(folder: Path) -> list[ProcessReport]:
    """The reports that a rehearsal's processes left in the folder of its record."""
    paths = sorted(folder.glob("rehearsal_*.report"))
    reports = [json.loads(path.read_text()) for path in paths]
    # Some of these processes end before they report anything.
    forked = len(list(folder.glob("*.forked")))
    for report in reports:
        missing = files.text("", f"{folder}/{report['pid']}.missing")
        report["missing"] = missing.split()
        report["forked"] = forked
    return reports


def is_exact(reports: Reports) -> bool:
    """Whether nothing that was allocated is known to hang on values that were not computed."""
    return not reads(reports, sizes=True)


def reads(reports: Reports, sizes: bool) -> list[ValueRead]:
    """Reads of unknown values, the most frequent first: those that sizes hang on, or the others."""
    rows = []
    for report in reports:
        rows += [row for row in report["reads"] if row["sizes"] is sizes]
    return sorted(rows, key=lambda row: -row["times"])


def unanswered(reports: Reports) -> list[str]:
    """The functions of libraries that were called, and that nobody stands in for."""
    names: set[str] = set()
    for report in reports:
        names.update(report["missing"])
    return sorted(names)
