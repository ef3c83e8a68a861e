"""Are the success criteria of the case studies met, by this log and this Optuna storage?

One table, read-only.

The criteria, and the lines of a supervisor that count, are rows of criteria.json. A log of any
size is read in one pass with bounded memory; what a message of memory means is the judge's
reading (helpers/look/messages.py), and lines alike but for their numbers are read once. What
neither a log nor a storage can say is "not measured", with what would.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sqlite3
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from helpers.ground import child
from helpers.ground.units import show_bytes
from helpers.look import wordings
from helpers.look.files import opened, whole
from helpers.look.message import of_device, of_host
from helpers.look.messages import read_message
from helpers.trials.effect import student
from helpers.trials.targets import torch_files, torch_interpreter
from helpers.trials.training import PathResult

NOT_MEASURED = "not measured because"
_DATA = json.loads(Path(__file__).with_name("criteria.json").read_text(encoding="utf-8"))
ASKED: tuple[Mapping[str, Any], ...] = tuple(_DATA["criteria"])
"""The criteria as data, in the order of the table."""


# What a log says.

LOG_LIMIT_BYTES = 64 << 30
BLOCK_BYTES = 4 << 20
LINE_BYTES = 1 << 20
GROUP_BYTES = 8 << 10
APART_BYTES = 400
"""Lines of a message that stand further apart than this are two messages."""
KERNEL_ASSERT = "torch-kernel-assert"
"""The row of the line that each thread of a kernel prints; the error itself follows."""


def _anchors() -> Iterator[tuple[bytes, bool]]:
    """What a line has that is worth a look, and whether it is one of the judge's messages."""
    rows: tuple[wordings.Row | wordings.Line, ...] = (*wordings.rows(), *wordings.lines(True))
    events = {row.event for row in rows if of_device(row) or of_host(row) or row.event == "assert"}
    for anchor in wordings.plain_anchors(tuple(sorted(events))):
        yield anchor.encode(), True
    for row in _DATA["lines"]:
        for anchor in row["anchors"]:
            yield anchor.encode(), False


_ANCHORS = tuple(_anchors())
_LINES = tuple(
    (row["counts"], *(re.compile(row.get(key, "(?!)").encode()) for key in ("text", "unless")))
    for row in _DATA["lines"]
)
# A line with one of these begins a message; another that the judge's anchors hit goes on with
# the one before it.
_HEAD = re.compile("|".join(_DATA["heads"]).encode())
_EPOCH, _TIME, _SHARE = (re.compile(_DATA[name].encode()) for name in ("epoch", "time", "share"))
_NUMBERS = re.compile(rb"(?<![0-9])(?<!errno )[0-9]+")
"""Numbers that lines may differ by and still say the same; that of an error of the system is
not one.
"""


@dataclass(frozen=True)
class LogCounts:
    """Messages in a log.

    ``oom`` is of a GPU, ``host_memory`` of the host; ``asserts`` are device-side assert errors;
    a burst of the kernel's own lines, one a thread, that no error follows counts once.
    ``crashes``: tracebacks, kills, aborts and faults.

    ``epoch`` and ``epochs``: the highest "epoch 3/10" seen. ``exhausted``: a supervisor said
    that it gave up restarting. ``ended``: a line says that the run came to its end, and none
    after it that it died. ``seconds``: from the first to the last line that has a time.
    ``percent``: of the data, as the log says it.
    """

    bytes: int
    oom: int
    host_memory: int
    asserts: int
    restarts: int
    exhausted: int
    recycled: int
    crashes: int
    profiles: int = 0
    epoch: int | None = None
    epochs: int | None = None
    ended: bool = False
    seconds: float | None = None
    percent: float | None = None


class _Messages:
    """The judge's messages, which may go over several lines; each is counted when the next one
    begins.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lines = bytearray()
        self.end = 0
        self.burst = False

    def add(self, at: int, line: bytes) -> None:
        """The next line, with its place in the file."""
        if self.burst and at - self.end > GROUP_BYTES:
            self._end_burst()
        full = len(self.lines) + len(line) > GROUP_BYTES
        if full or at - self.end > APART_BYTES or _HEAD.search(line):
            self._count()
        self.lines += line[:GROUP_BYTES] + b"\n"
        self.end = at + len(line)

    def close(self) -> None:
        self._count()
        self._end_burst()

    def _count(self) -> None:
        if self.lines:
            found = _judge(_NUMBERS.sub(b"0", bytes(self.lines)))
            self.lines.clear()
            self.burst = (self.burst or found["burst"] > 0) and not found["asserts"]
            self.counts.update(found)

    def _end_burst(self) -> None:
        self.counts["asserts"] += self.burst
        self.burst = False


@lru_cache(4096)
def _judge(text: bytes) -> Mapping[str, int]:
    """Messages of the GPU's and the host's memory, assert errors, and lines of a kernel's own
    assertion.
    """
    found = read_message(text.decode("utf-8", "replace")).messages
    asserts = [one.row for one in found if one.event == "assert"]
    burst = asserts.count(KERNEL_ASSERT)
    return {
        "oom": sum(map(of_device, found)),
        "host_memory": sum(map(of_host, found)),
        "asserts": len(asserts) - burst,
        "burst": burst,
    }


def count_log(path: Path, exit_code: int | None = None) -> LogCounts:
    """Count what a log says; ``exit_code``: how the run ended, where that is known.

    Raises OSError where it cannot be read.
    """
    messages = _Messages()
    size = 0
    epoch = (0, 0)
    last = {"ended": -1, "crashes": -1}
    times = list[tuple[bytes, bytes]]()
    percent = None
    for base, data in _blocks(path):
        size = base + len(data)
        epoch = max([epoch, *{(int(one), int(of)) for one, of in _EPOCH.findall(data)}])
        ends = (_TIME.findall(data[:TIMES_BYTES]), _TIME.findall(data[-TIMES_BYTES:]))
        times += [*ends[0][:1], *ends[1][-1:]]
        percent = next((float(one) for one in _SHARE.findall(data)), percent)
        for start, end, judged, own in _hits(data):
            line = data[start:end]
            if judged:
                messages.add(base + start, line)
            for counts, text, unless in _LINES if own else ():
                if text.search(line) and not unless.search(line):
                    messages.counts[counts] += 1
                    last[counts] = base + start
    messages.close()
    at, of = epoch if epoch[1] else (None, None)
    counted = {name: messages.counts[name] for name in _COUNTED}
    ended = last["ended"] > last["crashes"] and not counted["asserts"]
    if exit_code is not None:
        counted["crashes"] = max(counted["crashes"], int(exit_code != 0))
        ended = exit_code == 0
    return LogCounts(
        size, **counted, epoch=at, epochs=of, ended=ended, seconds=_lasted(times), percent=percent
    )


TIMES_BYTES = 64 << 10
_COUNTED = "oom host_memory asserts restarts exhausted recycled crashes profiles".split()


def _lasted(times: Sequence[tuple[bytes, bytes]]) -> float | None:
    """Seconds from the first to the last of some days and times of day; None where there is no
    such span.
    """
    try:
        begin, end = (datetime.fromisoformat(b" ".join(t).decode()) for t in (times[0], times[-1]))
    except (ValueError, LookupError):
        return None
    return (end - begin).total_seconds() if end > begin else None


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file in blocks of whole lines, lower case, each with its place; a line of more than
    LINE_BYTES is read in pieces.
    """
    base = 0
    rest = b""
    with opened(path) as file:
        while data := file.read(BLOCK_BYTES):
            if base > LOG_LIMIT_BYTES:
                raise OSError(0, f"larger than {show_bytes(LOG_LIMIT_BYTES)}", str(path))
            data = rest + data.replace(b"\r", b"\n").lower()
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) > LINE_BYTES else 0)
            if cut:
                yield base, data[:cut]
            base = base + cut
            rest = data[cut:]
    yield base, rest


def _hits(data: bytes) -> list[tuple[int, int, bool, bool]]:
    """Beginning and end of each line that has an anchor: one of the judge's, one of this
    table's own.
    """
    ends: dict[int, int] = {}
    starts: dict[bool, set[int]] = {True: set(), False: set()}
    for anchor, judged in _ANCHORS:
        at = data.find(anchor)
        while at >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            end = ends.get(start) or data.find(b"\n", at)
            ends[start] = end = end if end >= 0 else len(data)
            starts[judged].add(start)
            at = data.find(anchor, end)
    return [(at, ends[at], at in starts[True], at in starts[False]) for at in sorted(ends)]


# What an Optuna storage says.

MEMORY_KEYS = ("peak_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "memory_bytes")
FEWEST_TRIALS = 8
LEAST_GROWTH = 0.02
MOST_FREEDOM = 400
"""Degrees of freedom beyond which the quantile no longer moves in its third digit, and working
it out takes the longer.
"""


@dataclass(frozen=True)
class StudyCounts:
    """Trials of one study by state; ``memory`` is (trial number, bytes) of the finished trials
    that say it.

    ``outcomes``: of the finished trials that have a user attribute ``outcome``, in the order of
    their numbers.
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
    """The trials of one study in an Optuna SQLite storage (its tables as of Optuna 2 to 5),
    opened read-only.

    ``url``: a path or sqlite:///PATH, with #NAME where it has several studies. Raises
    ValueError, one line: no such file, not an Optuna storage, several studies and none named.
    """
    where, _, name = url.partition("#")
    path = Path(where.removeprefix("sqlite:///")).absolute()
    expected = "expected sqlite:///FILE or a path"
    if "://" in where and not where.startswith("sqlite:///"):
        raise ValueError(f"{url}: {expected}: only Optuna storages in SQLite are read")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; {expected} of an Optuna storage")
    try:
        try:
            return _read(path, name)
        except sqlite3.OperationalError as error:
            if "readonly" not in str(error) and "unable to open" not in str(error):
                raise
        # Its last writer was killed in the middle: undoing that needs a writer, so it is done
        # to a copy.
        with tempfile.TemporaryDirectory(prefix="casebook-study-") as folder:
            for one in (path, *(Path(f"{path}{end}") for end in ("-journal", "-wal"))):
                if one.exists():
                    shutil.copy2(one, folder)
            return _read(Path(folder) / path.name, name, "rw")
    except (sqlite3.Error, OSError) as error:
        why = f"no Optuna storage that can be read ({error})"
        raise ValueError(f"{path}: {why}; expected a SQLite file with trials") from None


ATTRIBUTES = f"""SELECT trial_id, key, value_json FROM trial_user_attributes
WHERE key IN {("outcome", *MEMORY_KEYS)}"""


def _read(path: Path, name: str, mode: str = "ro") -> StudyCounts:
    address = f"{path.as_uri()}?mode={mode}"
    with closing(sqlite3.connect(address, uri=True, timeout=5.0)) as database:
        studies = dict(database.execute("SELECT study_name, study_id FROM studies").fetchall())
        if name not in studies and (name or len(studies) != 1):
            seen = ", ".join(sorted(studies)[:8]) or "none"
            expected = f"study {name}" if name else "one study"
            raise ValueError(f"{path}: expected {expected}, seen {seen}; give {path}#NAME")
        name = name or next(iter(studies))
        of = "SELECT trial_id, state, number FROM trials WHERE study_id = ? ORDER BY number"
        trials = database.execute(of, (studies[name],)).fetchall()
        attributes: dict[int, dict[str, Any]] = defaultdict(dict)
        for trial, key, value in database.execute(ATTRIBUTES):
            attributes[trial][key] = json.loads(value)
    states = Counter(state for _, state, _ in trials)
    done = ("COMPLETE", "FAIL", "PRUNED")
    ended = [(number, attributes[trial]) for trial, state, number in trials if state in done]
    by_key = (
        tuple((at, int(has[key])) for at, has in ended if isinstance(has.get(key), (int, float)))
        for key in MEMORY_KEYS
    )
    outcomes = tuple(str(has["outcome"]) for _, has in ended if "outcome" in has)
    complete, failed, pruned = (states[state] for state in done)
    running = states["RUNNING"]
    waiting = states["WAITING"]
    memory = next(filter(None, by_key), ())
    return StudyCounts(name, complete, failed, pruned, running, waiting, memory, outcomes)


@dataclass(frozen=True)
class Growth:
    """Memory per trial by least squares over the trials' numbers: ``slope`` in bytes a trial
    with its 95 % interval.

    ``total`` is the growth over all trials as a share of where the line begins. ``says``: grows
    (the interval is above 0 and the total above 2 %), stable (not even the interval's upper end
    makes 2 %) or unclear.
    """

    trials: int
    slope: float
    low: float
    high: float
    total: float
    says: str


def growth(memory: Sequence[tuple[float, float]]) -> Growth | None:
    """Does memory grow from trial to trial?

    None with fewer than FEWEST_TRIALS trials, or all of one number.
    """
    n = len(memory)
    numbers = [at for at, _ in memory]
    if n < FEWEST_TRIALS or len(set(numbers)) < 3:
        return None
    slope, intercept = statistics.linear_regression(numbers, [size for _, size in memory])
    rest = math.fsum((size - intercept - slope * at) ** 2 for at, size in memory)
    error = math.sqrt(rest / (n - 2) / (n - 1) / statistics.variance(numbers))
    half = student(0.95, min(n - 2, MOST_FREEDOM)) * error
    first = min(numbers)
    last = max(numbers)
    over = (last - first) / max(intercept + slope * first, 1.0)
    says = "stable" if (slope + half) * over <= LEAST_GROWTH else "unclear"
    if slope - half > 0 and slope * over > LEAST_GROWTH:
        says = "grows"
    return Growth(n, slope, slope - half, slope + half, slope * over, says)


# The table.


@dataclass(frozen=True)
class Row:
    """One criterion: the case study it is of, what it asks, what was seen, and ``met``, ``not
    met`` or ``not measured because ...``.
    """

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


def criteria(
    log: Path | None,
    study: str | None,
    *,
    exit_code: int | None = None,
    files: Sequence[str] = (),
    card_bytes: int = 0,
) -> Criteria:
    """Check the criteria against a log and an Optuna storage: a path, or sqlite:///path;
    ``#name`` after it names one study.

    ``exit_code`` is the run's, ``files`` what it should have written, ``card_bytes`` the size
    of the card. Nothing is changed. Raises ValueError, one line, where one of them cannot be
    read.
    """
    trials = read_study(study) if study is not None else None  # at once; a log may take minutes
    counts = count_log(log, exit_code) if log is not None else None
    grown = growth(trials.memory) if trials else None
    found = _Found(counts, trials, grown, loaded(files), card_bytes)
    rows = [Row(row["case"], row["criterion"], row["expected"], *found.state(row)) for row in ASKED]
    return Criteria(tuple(rows), counts, trials, found.growth)


LOAD_S = 120
_LOAD = """
import json, sys, torch
for path in sys.argv[1:]:
    try:
        torch.load(path, map_location="cpu", weights_only=True)
        why = ""
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    print(json.dumps({"path": path, "why": why}), flush=True)
"""


def loaded(files: Sequence[str]) -> dict[str, str | bool]:
    """Each file, and True where it loads, why it does not, or False with no word where nothing
    here can tell.

    ``.json`` is parsed, torch's own files are loaded by the torch that set-up found, weights
    only: no code of a file runs.
    """
    found: dict[str, str | bool] = {}
    for name in files:
        path = Path(name)
        if not path.is_file() or not path.stat().st_size:
            found[name] = "is empty" if path.is_file() else "is not there"
        elif path.suffix == ".json":
            try:
                json.loads(whole(path))
                found[name] = True
            except ValueError as error:
                found[name] = f"is no JSON ({error})"
        else:
            found[name] = False
    asked = [name for name in files if found[name] is False and Path(name).suffix in TORCH_FILES]
    python = torch_interpreter()
    if asked and torch_files(python)[0]:

        def take(line: str) -> None:
            row = child.json_row(line)
            if row.get("path") in asked:
                found[row["path"]] = row["why"] or True

        child.watch([python, "-c", _LOAD, *asked], LOAD_S, on_line=take)
    return found


TORCH_FILES = (".pt", ".pth", ".ckpt", ".bin")


def with_runs(rows: Sequence[Row], results: Sequence[PathResult]) -> tuple[Row, ...]:
    """The rows, and what the training paths of notebook 06 show, on its small model, of those
    that no file measured.
    """
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
    for row, about in zip(rows, ASKED, strict=True):
        if about.get("runs") in shown and row.state.startswith(NOT_MEASURED):
            seen, met = shown[about["runs"]]
            row = replace(row, seen=seen, state="met" if met else "not met")
        found.append(row)
    return tuple(found)


@dataclass(frozen=True)
class _Found:
    """What a log and a storage say of a criterion; a method each measure: what was seen, and
    whether it is met, or why that cannot be said.
    """

    log: Any
    study: Any
    growth: Growth | None
    files: Mapping[str, str | bool]
    card_bytes: int

    def state(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """What was seen, and the state in words."""
        lacks = {"log": self.no_log, "study": "" if self.study else "no Optuna storage was given"}
        lacks["files"] = "" if self.files else "no files were given: --files"
        lacks["card"] = "" if self.card_bytes else "the size of the card was not given: --card"
        lacking = [lacks[name] for name in row.get("needs", ()) if lacks[name]]
        why = row.get("never") or next(iter(lacking), "")
        seen, met = ("", why) if why else getattr(self, row["measure"])(row)
        if isinstance(met, str):
            return seen, f"{NOT_MEASURED} {met}"
        return seen, "met" if met else "not met"

    @property
    def no_log(self) -> str:
        if self.log is None:
            return "no log was given"
        return "" if self.log.bytes else "the log is empty"

    @property
    def unfinished(self) -> str:
        """Why what did not happen in this log may still have happened, or come; empty where the
        run ended.
        """
        if self.log.ended:
            return ""
        died = self.log.crashes or self.log.asserts
        stops = "the log stops without saying that the run ended: give --exit-code"
        return "the run died before its end" if died else stops

    def none_of(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        count = sum(getattr(self.log, name) for name in row["of"])
        return str(count), False if count else self.unfinished or True

    def epochs(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        at = self.log.epoch
        of = self.log.epochs
        if not of or at is None:
            return "", 'the log has no "epoch N/M"'
        wanted = row.get("count", of)
        # The line of an epoch may be its first.
        return f"epoch {at} of {of}", at > wanted or (at == wanted and (self.unfinished or True))

    def loads(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        bad = [f"{name} {why}" for name, why in self.files.items() if isinstance(why, str)]
        unknown = [name for name, why in self.files.items() if why is False]
        if bad or not unknown:
            return "; ".join(bad) or f"{len(self.files)} files load", not bad
        return "", f"nothing here loads {unknown[0]}: no torch was found, or it is of another kind"

    def data(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        if self.log.percent is None:
            return "", 'the log does not say "N % of the data"'
        enough = self.log.percent >= row["percent"]
        return f"{self.log.percent:g} % of the data", enough and (self.unfinished or True)

    def time(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        if row.get("about") and not getattr(self.log, row["about"]):
            return "", "the log says nothing of volume profiles"
        if self.log.seconds is None:
            return "", "the lines of the log have no date and time"
        late = self.log.seconds >= row["seconds"]
        return f"{self.log.seconds:.0f} s", False if late else self.unfinished or True

    def peak_share(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        seen, known = self.peak({"bytes": math.inf})
        if isinstance(known, str):
            return seen, known
        share = max(size for _, size in self.study.memory) / self.card_bytes
        return f"{share:.0%} ({seen})", row["from"] <= share <= row["to"]

    def peak(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        most = max((size for _, size in self.study.memory), default=None)
        if most is None:
            return "", f"no trial has a user attribute {MEMORY_KEYS[0]}"
        return show_bytes(most), most < row["bytes"]

    def growth_of_memory(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        found = self.growth
        said = len(self.study.memory)
        if found is None:
            of = f"(user attribute {MEMORY_KEYS[0]}), expected {FEWEST_TRIALS}"
            return "", f"{said} trials say their memory {of}"
        low, slope, high = (size / 1024 for size in (found.low, found.slope, found.high))
        interval = f"({low:+.1f} to {high:+.1f})"
        over = f"{found.total:+.1%} over {found.trials} trials"
        met = {"grows": False, "stable": True}.get(found.says, "the interval is too wide")
        return f"{slope:+.1f} KiB a trial {interval}, {over}", met

    def asserts(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        """By the outcomes of the trials where they have them, else by the log beside the number
        of trials.
        """
        outcomes = self.study.outcomes if self.study else ()
        runs = "".join("x" if one == "device_assert" else "." for one in outcomes).split("x")
        longest = max(map(len, runs))
        bad = len(runs) - 1
        wanted = row["count"]
        if bad or longest >= wanted:
            return f"{longest} in a row, {bad} asserts", longest >= wanted
        if self.no_log:
            return "", self.no_log
        if self.log.asserts:
            return f"{self.log.asserts} asserts", False
        if not self.study:
            return "0 asserts", "no Optuna storage was given"
        done = self.study.finished
        enough = done >= wanted or f"{done} of {wanted} trials have finished"
        return f"0 asserts, {done} trials finished", enough

    def resets(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        trials = self.study.complete
        resets = self.log.recycled
        if trials < row["count"]:
            return str(resets), f"only {trials} trials are complete"
        return f"{resets} in {trials} trials", resets >= trials // row["count"]

    def gave_up(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        gave_up = self.log.exhausted
        seen = f"{self.log.restarts} restarts, gave up {gave_up} times"
        return seen, False if gave_up else self.unfinished or True

    def complete(self, row: Mapping[str, Any]) -> tuple[str, bool | str]:
        states = ("complete", "failed", "pruned", "running")
        seen = ", ".join(f"{getattr(self.study, name)} {name}" for name in states)
        return seen, self.study.complete >= row["count"]
