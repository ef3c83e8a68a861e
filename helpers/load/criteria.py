"""Are the success criteria of the case studies met, by this log and this Optuna storage? One table, read-only.

The criteria are those of three case studies: volume profiles and training on two Radeon cards, multi-GPU training on ROCm, and
a tuning run on one 24 GB card. What neither a log nor a storage can say is "not measured", with what would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.load.log_counts import LogCounts, count_log
from helpers.load.study_counts import FEWEST_TRIALS, MEMORY_KEYS, Growth, StudyCounts, growth, read_study
from helpers.load.training import PathResult
from helpers.look.reading import show_bytes

PEAK_LIMIT_BYTES = 18_000_000_000
ASSERT_FREE, ALL_TRIALS, RESET_EVERY = 500, 5000, 50
NOT_MEASURED = "not measured because"
CRASHES, SAVED = "it ends without a crash", "the model's files are saved and load again"


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


def criteria(log: Path | None, study: str | None) -> Criteria:
    """Check the criteria against a log and an Optuna storage: a path, or sqlite:///path; ``#name`` after it names one study.

    Neither is changed. Raises ValueError, one line, where one of them cannot be read.
    """
    counts = count_log(log) if log is not None else None
    trials = read_study(study) if study is not None else None
    grown = growth(trials.memory) if trials else None
    return Criteria(tuple(_rows(counts, trials, grown)), counts, trials, grown)


def with_runs(rows: Sequence[Row], results: Sequence[PathResult]) -> tuple[Row, ...]:
    """The rows, and what the training paths of notebook 06 show, on its small model, of those that no file measured."""
    ran = [one for one in results if one.state != "not_run"]
    failed = [one.name for one in ran if one.state == "failed"]
    resumed = [one for one in ran if one.name.startswith("resume")]
    shown = {}
    if ran:
        shown[CRASHES] = (f"{len(failed)} of {len(ran)} training paths failed here", not failed)
    if resumed:
        shown[SAVED] = (f"{resumed[0].name}, small model: {resumed[0].equal_to_single}",
                        all(one.equal_to_single == "bitwise" for one in resumed))
    return tuple(replace(row, seen=shown[row.criterion][0], state="met" if shown[row.criterion][1] else "not met")
                 if row.criterion in shown and row.state.startswith(NOT_MEASURED) else row for row in rows)


def _rows(log: LogCounts | None, study: StudyCounts | None, grown: Growth | None) -> list[Row]:
    profile, several, tuning = "volume profiles on two cards", "multi-GPU training", "tuning run"
    no_log = f"not measured because {'no log was given' if log is None else 'the log is empty'}"
    no_study = "not measured because no Optuna storage was given"
    log = log if log is not None and log.bytes else None

    def counted(count: int | None, none: str = no_log) -> tuple[str, str]:
        return ("", none) if count is None else (str(count), "not met" if count else "met")

    def epochs(all_of_them: bool) -> tuple[str, str]:
        if log is None or not log.epochs or log.epoch is None:
            return "", no_log if log is None else 'not measured because the log has no "epoch N/M"'
        wanted = log.epochs if all_of_them else 1
        return f"epoch {log.epoch} of {log.epochs}", "met" if log.epoch >= wanted else "not met"

    def peak() -> tuple[str, str]:
        if study is None or not study.memory:
            return "", no_study if study is None else f"not measured because no trial has a user attribute {MEMORY_KEYS[0]}"
        most = max(size for _, size in study.memory)
        return show_bytes(most), "met" if most < PEAK_LIMIT_BYTES else "not met"

    def stable() -> tuple[str, str]:
        if study is None:
            return "", no_study
        if grown is None:
            return "", (f"not measured because {len(study.memory)} trials say their memory (user attribute {MEMORY_KEYS[0]}), "
                        f"expected {FEWEST_TRIALS}")
        seen = (f"{grown.slope / 1024:+.1f} KiB a trial ({grown.low / 1024:+.1f} to {grown.high / 1024:+.1f}), "
                f"{grown.total:+.1%} over {grown.trials} trials")
        return seen, {"grows": "not met", "stable": "met"}.get(grown.says, "not measured because the interval is too wide")

    def no_asserts() -> tuple[str, str]:
        runs = "".join("x" if one == "device_assert" else "." for one in study.outcomes).split("x") if study else []
        if study and study.outcomes:
            longest = max(map(len, runs))
            bad = study.outcomes.count("device_assert")
            if longest >= ASSERT_FREE or bad:
                return f"{longest} in a row, {bad} asserts", "met" if longest >= ASSERT_FREE else "not met"
        if log is None:
            return "", no_log
        if log.asserts:
            return f"{log.asserts} asserts", "not met"
        done = study.finished if study else 0
        return f"0 asserts, {done} trials finished", "met" if done >= ASSERT_FREE else (
            f"not measured because {done} of {ASSERT_FREE} trials have finished" if study else no_study)

    def resets() -> tuple[str, str]:
        if log is None or study is None:
            return "", no_log if log is None else no_study
        due = study.complete // RESET_EVERY
        return (f"{log.recycled} in {study.complete} trials", "met" if log.recycled >= due else "not met") if due else (
            f"{log.recycled}", f"not measured because only {study.complete} trials are complete")

    def all_trials() -> tuple[str, str]:
        if study is None:
            return "", no_study
        seen = f"{study.complete} complete, {study.failed} failed, {study.pruned} pruned, {study.running} running"
        return seen, "met" if study.complete >= ALL_TRIALS else "not met"

    gave_up = (("", no_log) if log is None else
               (f"{log.restarts} restarts, gave up {log.exhausted} times", "not met" if log.exhausted else "met"))
    files = ("", "not measured because neither a log nor a storage shows files: load them with torch.load")
    profiles = ("", "not measured because a log does not tell a hang: notebook 04 runs the profiles with a time limit")
    return [Row(*row) for row in (
        (profile, "the volume profiles are computed to the end", "no hang", *profiles),
        (profile, "the model and its description are written", "files that load", *files),
        (profile, "training goes through every epoch", "the last epoch", *epochs(True)),
        (profile, "no out of memory of the GPU", "0 messages", *counted(log.oom if log else None)),
        (profile, "memory of each GPU stays low", f"below {PEAK_LIMIT_BYTES // 10**9} GB", *peak()),
        (several, "a first epoch ends (a log does not say on which data)", "1 epoch", *epochs(False)),
        (several, CRASHES, "0 tracebacks or faults", *counted(log.crashes if log else None)),
        (several, "all of several epochs end", "the last epoch", *epochs(True)),
        (several, SAVED, "files that load", *files),
        (several, "several GPUs, stable; larger data; easy to repeat", "no figure is named",
         "", "not measured because the case study names no figure: notebook 06 runs each way to train"),
        (tuning, f"{ASSERT_FREE} trials in a row without a device-side assert", f"{ASSERT_FREE} in a row", *no_asserts()),
        (tuning, "memory does not grow from trial to trial", "no growth above 2 %", *stable()),
        (tuning, f"the GPU's memory is reset every {RESET_EVERY} trials", f"1 per {RESET_EVERY} trials", *resets()),
        (tuning, "the supervisor does not run out of restarts", "never gives up", *gave_up),
        (tuning, f"{ALL_TRIALS} trials without anybody's help", f"{ALL_TRIALS} complete", *all_trials()),
    )]
