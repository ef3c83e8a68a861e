"""What each process of a rehearsal reported of itself (under_torch/witness.py writes it)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from helpers.look import files

Report = Mapping[str, Any]
"""What Witness.report says of a process, and two things that read_reports adds: ``missing``,
functions of libraries that were called and have no stand-in, and ``forked``, how many processes of
the whole rehearsal used the GPU after a fork.
"""
Reports = Sequence[Report]
ValueRead = Mapping[str, Any]
"""One of a report's ``reads``: a value of the card that an operator ``op`` read back ``times``
times although it was not computed. ``sizes``: the size of a result depends on it; ``inside``: the
file of torch that read it; ``where``: the line of the program, empty in the backward pass;
``collective``: the one by which a rank without the others got it, else empty.
"""


def read_reports(folder: Path) -> list[Report]:
    """The reports that a rehearsal's processes left in the folder of its record."""
    paths = sorted(folder.glob("rehearsal_*.report"))
    reports = [json.loads(path.read_text()) for path in paths]
    forked = len(list(folder.glob("*.forked")))  # some end before they report anything
    for report in reports:
        missing = files.text("", f"{folder}/{report['pid']}.missing")
        report["missing"] = missing.split()
        report["forked"] = forked
    return reports


def is_exact(reports: Reports) -> bool:
    """Whether nothing that was allocated is known to depend on values that were not computed."""
    return not reads(reports, sizes=True)


def reads(reports: Reports, sizes: bool) -> list[ValueRead]:
    """Reads of unknown values, the most frequent first: those on which the size of a result
    depends, or the others.
    """
    rows = chain.from_iterable(report["reads"] for report in reports)
    wanted = [row for row in rows if row["sizes"] is sizes]
    return sorted(wanted, key=lambda row: -row["times"])


def unanswered(reports: Reports) -> list[str]:
    """The functions of libraries that were called and have no stand-in."""
    names = chain.from_iterable(report["missing"] for report in reports)
    return sorted(set(names))
