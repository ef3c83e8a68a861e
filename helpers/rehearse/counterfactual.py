"""What else would have happened to a program that ran out of memory: rehearsed once more without
a limit, and once more with expandable segments.

By count these two alone tell capacity, a leak and fragmentation apart. The repeats run in a copy
of the working folder, with uploads off.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from helpers.allocator.record import under
from helpers.ground.units import MIB, show_bytes
from helpers.look.cards import GpuCard
from helpers.rehearse.rehearsal import Limits, Rehearsal

BUDGET_S = 60.0
TIMES_THE_CARD = 16
"""A growth that would never end is ended at so many times the card."""
MOST_BYTES = 256 * MIB
MOST_FILES = 20_000
UPLOADS_OFF = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_START_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "WANDB_MODE": "offline",
}
"""What keeps the trackers that programs report to from sending anything (their documentations)."""
MAY_WRITE = (
    "the repeats ran in a copy of this folder, with uploads to trackers off; what the program "
    "writes to absolute paths, it wrote again"
)

Run = Callable[..., Rehearsal]
"""A rehearsal of a command on a card, kept at a path (rehearse.run.rehearse)."""


@dataclass(frozen=True)
class Repeat:
    """One repeat: on how large a card, with which settings, and how it ended.

    ``stopped``: by which limit, so that the peaks are those reached until then. ``trace`` is its
    recording, None where it left none.
    """

    capacity_bytes: int
    conf: str
    fits: bool
    ooms: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    seconds: float
    stopped: str
    trace: Path | None


@dataclass(frozen=True)
class Counterfactual:
    """The repeats of a rehearsal that ran out of memory; None with ``why_not`` where one was
    left out.
    """

    without_limit: Repeat | None = None
    expandable: Repeat | None = None
    why_not: str = ""
    says: str = ""

    def as_shape(self) -> dict[str, Any]:
        """As it stands in record.json."""
        return asdict(self)


def why_no_repeats(first: Rehearsal, folder: Path) -> str:
    """Why a rehearsal is not repeated; empty where it is."""
    if not first.ooms:
        return "it did not run out of memory"
    if first.failed_otherwise or first.stopped:
        return "it was ended before it ran to its end"
    if 3 * first.seconds > BUDGET_S:
        return f"three runs would take more than {BUDGET_S:.0f} s"
    return _why_not_copied(folder)


def _why_not_copied(folder: Path) -> str:
    """Why the working folder is too much to be copied; empty where it is not."""
    size = 0
    for number, path in enumerate(folder.rglob("*"), 1):
        if path.is_file() and not path.is_symlink():
            size += path.stat().st_size
        if size > MOST_BYTES or number > MOST_FILES:
            most = f"{show_bytes(MOST_BYTES)} or {MOST_FILES:,} files"
            return f"the working folder has more than {most}, too much to be copied"
    return ""


def repeat(
    run: Run,
    command: list[str],
    first: Rehearsal,
    out: Path,
    *,
    python: str = "",
    limits: Limits,
) -> Counterfactual:
    """Rehearse the command twice more, and keep the recordings in the folder ``out``.

    Raises RecordError where the command cannot be started again.
    """
    why = why_no_repeats(first, Path.cwd())
    if why:
        return Counterfactual(why_not=why)
    ends_at = time.monotonic() + BUDGET_S - first.seconds
    words = under(python, command)
    ample = replace(first.device, total_bytes=TIMES_THE_CARD * first.device.total_bytes)
    expandable = ",".join(filter(None, [first.conf, "expandable_segments:True"]))

    def once(name: str, card: GpuCard, conf: str) -> Repeat | None:
        left_s = ends_at - time.monotonic()
        if left_s < first.seconds:
            return None
        with copied(Path.cwd()) as folder:
            again = run(
                ["env", "-C", str(folder), *words],
                card,
                out / f"{name}.pickle",
                conf=conf,
                extra=UPLOADS_OFF,
                log=out / f"{name}.log",
                limits=replace(limits, seconds=left_s),
            )
        return _repeat(again)

    return Counterfactual(
        without_limit=once("without-limit", ample, first.conf),
        expandable=once("expandable", first.device, expandable),
        says=MAY_WRITE,
    )


def _repeat(again: Rehearsal) -> Repeat:
    return Repeat(
        capacity_bytes=again.device.total_bytes,
        conf=again.conf,
        fits=again.fits,
        ooms=again.ooms,
        peak_allocated_bytes=again.peak_allocated_bytes,
        peak_reserved_bytes=again.peak_reserved_bytes,
        seconds=again.seconds,
        stopped=again.stopped,
        trace=again.trace,
    )


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy of a folder, which goes at the end; links stay links."""
    with tempfile.TemporaryDirectory(prefix="repeat-") as scratch:
        copy = Path(scratch) / folder.name
        shutil.copytree(folder, copy, symlinks=True, ignore_dangling_symlinks=True)
        yield copy
