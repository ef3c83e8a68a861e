"""Are the success criteria of the case studies met, by this log and this Optuna storage? One table, read-only.

The criteria are rows of criteria.json. What neither a log nor a storage can say is "not measured", with what would.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from helpers.load.log_counts import LogCounts, count_log
from helpers.load.study_counts import (
    FEWEST_TRIALS,
    MEMORY_KEYS,
    Growth,
    StudyCounts,
    growth,
    read_study,
)
from helpers.load.training import PathResult
from helpers.look.reading import show_bytes

NOT_MEASURED = "not measured because"


@dataclass(frozen=True)
class Row:
    """One criterion: the case study it is of, what it asks, what was seen, and ``met``, ``not met`` or ``not measured
    because ...``."""

    study: str
    criterion: str
    expected: str
    seen: str
    state: str


@dataclass(frozen=True)
class Criteria:
    """The checked table, and the counts that it was fed from (None: not given)."""

    rows: tuple[Row, ...]
    log: LogCounts | None
    study: StudyCounts | None
    growth: Growth | None


@lru_cache(maxsize=1)
def asked() -> tuple[Mapping[str, Any], ...]:
    """The criteria as data, in the order of the table."""
    text = Path(__file__).with_name("criteria.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["criteria"])


def criteria(log: Path | None, study: str | None) -> Criteria:
    """Check the criteria against a log and an Optuna storage: a path, or sqlite:///path; ``#name`` after it names one study.

    Neither is changed. Raises ValueError, one line, where one of them cannot be read.
    """
    counts = count_log(log) if log is not None else None
    trials = read_study(study) if study is not None else None
    found = _Found(counts, trials, growth(trials.memory) if trials else None)
    rows = [
        Row(row["case"], row["criterion"], row["expected"], *found.state(row)) for row in asked()
    ]
    return Criteria(tuple(rows), counts, trials, found.growth)


def with_runs(rows: Sequence[Row], results: Sequence[PathResult]) -> tuple[Row, ...]:
    """The rows, and what the training paths of notebook 06 show, on its small model, of those that no file measured."""
    ran = [one for one in results if one.state != "not_run"]
    failed = [one.name for one in ran if one.state == "failed"]
    resumed = [one for one in ran if one.name.startswith("resume")]
    shown = {}
    if ran:
        shown["ended"] = (f"{len(failed)} of {len(ran)} training paths failed here", not failed)
    if resumed:
        alike = all(one.equal_to_single == "bitwise" for one in resumed)
        shown["resumed"] = (f"{resumed[0].name}, small model: {resumed[0].equal_to_single}", alike)
    found = []
    for row, about in zip(rows, asked(), strict=True):
        seen, met = shown.get(about.get("runs", ""), ("", False))
        found.append(_row(row, seen, met) if seen and row.state.startswith(NOT_MEASURED) else row)
    return tuple(found)


def _row(row: Row, seen: str, met: bool) -> Row:
    return replace(row, seen=seen, state="met" if met else "not met")


@dataclass(frozen=True)
class _Found:
    """What a log and a storage say of a criterion; a method each measure: what was seen, and whether it is met, or why that
    cannot be said."""

    log: Any
    study: Any
    growth: Growth | None

    def state(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """What was seen, and the state in words."""
        lacks = {"log": self.no_log, "study": "" if self.study else "no Optuna storage was given"}
        why = row.get("never") or next(
            (lacks[name] for name in row.get("needs", ()) if lacks[name]), ""
        )
        seen, met = ("", why) if why else getattr(self, row["measure"])(row)
        return seen, f"{NOT_MEASURED} {met}" if isinstance(
            met, str
        ) else "met" if met else "not met"

    @property
    def no_log(self) -> str:
        return (
            "no log was given" if self.log is None else "" if self.log.bytes else "the log is empty"
        )

    def none_of(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        count = getattr(self.log, row["of"])
        return str(count), not count

    def epochs(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        at, of = self.log.epoch, self.log.epochs
        if not of or at is None:
            return "", 'the log has no "epoch N/M"'
        return f"epoch {at} of {of}", at >= row.get("count", of)

    def peak(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        most = max((size for _, size in self.study.memory), default=None)
        if most is None:
            return "", f"no trial has a user attribute {MEMORY_KEYS[0]}"
        return show_bytes(most), most < row["bytes"]

    def growth_of_memory(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        found, trials = self.growth, len(self.study.memory)
        if found is None:
            return (
                "",
                f"{trials} trials say their memory (user attribute {MEMORY_KEYS[0]}), expected {FEWEST_TRIALS}",
            )
        low, slope, high = (size / 1024 for size in (found.low, found.slope, found.high))
        seen = f"{slope:+.1f} KiB a trial ({low:+.1f} to {high:+.1f}), {found.total:+.1%} over {found.trials} trials"
        return seen, {"grows": False, "stable": True}.get(found.says, "the interval is too wide")

    def asserts(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        """By the outcomes of the trials where they have them, else by the log beside the number of trials."""
        outcomes = self.study.outcomes if self.study else ()
        runs = "".join("x" if one == "device_assert" else "." for one in outcomes).split("x")
        longest, bad = max(map(len, runs)), len(runs) - 1
        if bad or longest >= row["count"]:
            return f"{longest} in a row, {bad} asserts", longest >= row["count"]
        if self.no_log or self.log.asserts:
            return ("", self.no_log) if self.no_log else (f"{self.log.asserts} asserts", False)
        if not self.study:
            return "0 asserts", "no Optuna storage was given"
        done, few = (
            self.study.finished,
            f"{self.study.finished} of {row['count']} trials have finished",
        )
        return f"0 asserts, {done} trials finished", True if done >= row["count"] else few

    def resets(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        trials, resets = self.study.complete, self.log.recycled
        if trials < row["count"]:
            return str(resets), f"only {trials} trials are complete"
        return f"{resets} in {trials} trials", resets >= trials // row["count"]

    def gave_up(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        return (
            f"{self.log.restarts} restarts, gave up {self.log.exhausted} times",
            not self.log.exhausted,
        )

    def complete(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        one = self.study
        seen = f"{one.complete} complete, {one.failed} failed, {one.pruned} pruned, {one.running} running"
        return seen, one.complete >= row["count"]
