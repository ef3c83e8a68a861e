"""What does an Optuna storage say of its trials, read-only, and does memory grow from one trial to the next?"""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.load.effect import student

MEMORY_KEYS = ("peak_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "memory_bytes")
FEWEST_TRIALS = 8
LEAST_GROWTH = 0.02


@dataclass(frozen=True)
class Growth:
    """Memory per trial by least squares over the trials' numbers: ``slope`` in bytes a trial with its 95 % interval.

    ``total`` is the growth over all trials as a share of where the line begins. ``says``: grows (the interval is above 0 and
    the total above 2 %), stable (not even the interval's upper end makes 2 %) or unclear.
    """

    trials: int
    slope: float
    low: float
    high: float
    total: float
    says: str


@dataclass(frozen=True)
class StudyCounts:
    """Trials of one study by state; ``memory`` is (trial number, bytes) of the finished trials that say it.

    ``outcomes``: of the finished trials that have a user attribute ``outcome``, in the order of their numbers.
    """

    name: str
    complete: int
    failed: int
    pruned: int
    running: int
    waiting: int
    memory: tuple[tuple[int, int], ...] = ()
    outcomes: tuple[str, ...] = ()

    @property
    def finished(self) -> int:
        return self.complete + self.failed + self.pruned


def read_study(url: str) -> StudyCounts:
    """The trials of one study in an Optuna SQLite storage (its tables as of Optuna 2 to 5), opened read-only.

    Raises ValueError, one line: no such file, not an Optuna storage, several studies and none named.
    """
    where, _, name = url.partition("#")
    if "://" in where and not where.startswith("sqlite:///"):
        raise ValueError(
            f"{where.partition(':')[0]}: only Optuna storages in SQLite are read; give sqlite:///FILE or a path"
        )
    path = Path(where.removeprefix("sqlite:///")).absolute()
    if not path.is_file():
        raise ValueError(
            f"{path}: there is no such file; give an Optuna storage, as a path or sqlite:///FILE"
        )
    try:
        try:
            return _read(path, name)
        except sqlite3.OperationalError as error:
            if "readonly" not in str(error) and "unable to open" not in str(error):
                raise
        # Its last writer was killed in the middle: undoing that needs a writer, so it is done to a copy.
        with tempfile.TemporaryDirectory(prefix="casebook-study-") as folder:
            for one in (path, *(Path(f"{path}{end}") for end in ("-journal", "-wal"))):
                if one.exists():
                    shutil.copy2(one, folder)
            return _read(Path(folder) / path.name, name, "rw")
    except (sqlite3.Error, OSError) as error:
        raise ValueError(
            f"{path}: no Optuna storage that can be read ({error}); expected a SQLite file with trials"
        ) from None


def _read(path: Path, name: str, mode: str = "ro") -> StudyCounts:
    with closing(
        sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=5.0)
    ) as database:
        studies = dict(database.execute("SELECT study_name, study_id FROM studies").fetchall())
        if name not in studies and (name or len(studies) != 1):
            known = ", ".join(sorted(studies)[:8]) or "none"
            raise ValueError(
                f"{path}: expected {'study ' + name if name else 'one study'}, seen {known}; give {path}#NAME"
            )
        key = studies[name] if name else next(iter(studies.values()))
        trials = database.execute(
            "SELECT trial_id, number, state FROM trials WHERE study_id = ? ORDER BY number", (key,)
        ).fetchall()
        wanted = ("outcome", *MEMORY_KEYS)
        attributes: dict[int, dict[str, Any]] = {}
        for trial, what, value in database.execute(
            "SELECT a.trial_id, a.key, a.value_json FROM trial_user_attributes a JOIN trials t ON t.trial_id = a.trial_id "
            f"WHERE t.study_id = ? AND a.key IN ({','.join('?' * len(wanted))})",
            (key, *wanted),
        ):
            attributes.setdefault(trial, {})[what] = json.loads(value)
    states = Counter(state for _, _, state in trials)
    ended = [
        (number, attributes.get(trial, {}))
        for trial, number, state in trials
        if state in ("COMPLETE", "FAIL", "PRUNED")
    ]
    memory = next(
        (
            found
            for what in MEMORY_KEYS
            if (
                found := tuple(
                    (number, int(said[what]))
                    for number, said in ended
                    if isinstance(said.get(what), (int, float))
                )
            )
        ),
        (),
    )
    return StudyCounts(
        name or next(iter(studies)),
        states["COMPLETE"],
        states["FAIL"],
        states["PRUNED"],
        states["RUNNING"],
        states["WAITING"],
        memory,
        tuple(str(said["outcome"]) for _, said in ended if "outcome" in said),
    )


def growth(memory: Sequence[tuple[float, float]]) -> Growth | None:
    """Does memory grow from trial to trial? None with fewer than FEWEST_TRIALS trials, or all of one number."""
    n = len(memory)
    if n < FEWEST_TRIALS or len({at for at, _ in memory}) < 3:
        return None
    at_mean, mean = (math.fsum(one[side] for one in memory) / n for side in (0, 1))
    spread = math.fsum((at - at_mean) ** 2 for at, _ in memory)
    slope = math.fsum((at - at_mean) * (size - mean) for at, size in memory) / spread
    rest = math.fsum((size - mean - slope * (at - at_mean)) ** 2 for at, size in memory)
    # Beyond 400 the quantile no longer moves in its third digit, and working it out takes the longer.
    half = student(0.95, min(n - 2, 400)) * math.sqrt(rest / (n - 2) / spread)
    first, last = min(at for at, _ in memory), max(at for at, _ in memory)
    begin = max(mean + slope * (first - at_mean), 1.0)
    total, most = slope * (last - first) / begin, (slope + half) * (last - first) / begin
    says = (
        "grows"
        if slope - half > 0 and total > LEAST_GROWTH
        else "stable"
        if most <= LEAST_GROWTH
        else "unclear"
    )
    return Growth(n, slope, slope - half, slope + half, total, says)
