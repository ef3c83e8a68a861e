"""Two records, two batches or two evidence bundles side by side: what moved, what did not, which verdicts changed.

A run is found again by its notebook, parameters, preset, GPU and box, and by its place among its repeats; where the box has
another name on the other side (a bundle from before and one from after), without it. What has no partner is named.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os.path
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import CaseEvidence
from helpers.look.archive import BundleError
from helpers.look.bundle import Bundle, open_bundle
from helpers.look.gpus import gpus, host_pools
from helpers.look.reading import Reading, show_bytes
from helpers.run.history import same_run
from helpers.run.record import RecordUnreadable, read_batch, read_run
from helpers.run.shapes import Run
from helpers.shapes import Verdict

from .shown import cut, duration, plain

SCHEMA_VERSION = 1
SLOWER, SLOWER_S = 1.25, 5.0
"""A run's time counts as moved beyond this ratio and by at least so many seconds; below that two equal runs differ too."""
MOST_SAME = 8
NOT_DATA = ("notebook.ipynb", "kernel.stderr", "runner.log", "run.json")


BIGGEST_BYTES = 64 << 20
"""A file above this is compared by its digest alone."""
MOST_DIFFERENCES = 12
Moved = tuple[str, str, str, str]
"""What moved, before, after, by how much."""


class CompareError(ValueError):
    """Two things that cannot be compared: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Change:
    """One thing that moved. ``kind``: verdict, state, parameter, reading, figure, data, time or text."""

    kind: str
    what: str
    before: str
    after: str
    by: str = ""


@dataclass(frozen=True)
class Pair:
    """One run, or one bundle, on both sides: what moved in it, and the names of what did not."""

    title: str
    moved: tuple[Change, ...]
    same: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What moved from ``a`` to ``b``. ``only_a`` and ``only_b`` have no partner; ``unreadable`` could not be believed."""

    kind: str
    a: str
    b: str
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    schema_version: int = field(default=SCHEMA_VERSION, kw_only=True)

    def changes(self, *kinds: str) -> list[tuple[str, Change]]:
        """Every change of these kinds with the title of what it is in."""
        return [
            (pair.title, change)
            for pair in self.pairs
            for change in pair.moved
            if change.kind in kinds
        ]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        moved, verdicts = sum(bool(pair.moved) for pair in self.pairs), len(self.changes("verdict"))
        what = "bundles" if self.kind == "bundle" else "runs"
        said = [f"{moved} of {len(self.pairs)} {what} moved"]
        said.append(f"{verdicts} verdict{'s' * (verdicts != 1)} changed")
        said += [f"{len(self.only_a)} only in A"] * bool(self.only_a)
        said += [f"{len(self.only_b)} only in B"] * bool(self.only_b)
        return ", ".join(said)


def compare(a: Path, b: Path) -> Comparison:
    """What moved from ``a`` to ``b``: two runs, two batches or two evidence bundles. Raises CompareError."""
    kind, other = _kind(a), _kind(b)
    if kind != other:
        raise CompareError(f"{a} is a {kind} and {b} is a {other}; expected two of a kind")
    try:
        if kind == "run":
            one, two = _record(a), _record(b)
            pair = _runs(read_run(one), read_run(two), one.parent, two.parent)
            return Comparison(kind, str(a), str(b), (pair,))
        if kind == "bundle":
            return Comparison(kind, str(a), str(b), (_bundles(open_bundle(a), open_bundle(b)),))
    except (RecordUnreadable, BundleError) as error:
        raise CompareError(str(error)) from error
    return _batches(a, b)


def _kind(path: Path) -> str:
    if not path.exists():
        raise CompareError(
            f"{path}: no such file or folder; expected a run, a batch or an evidence bundle"
        )
    if path.name == "run.json" or (path / "run.json").is_file():
        return "run"
    if path.is_file() or (path / "manifest.json").is_file():
        return "bundle"
    if (path / "plan.yaml").is_file() or any(path.glob("*/run.json")):
        return "batch"
    raise CompareError(
        f"{path}: no run.json, plan.yaml or manifest.json; expected a run, a batch or an evidence bundle"
    )


def _record(path: Path) -> Path:
    return path if path.is_file() else path / "run.json"


def _title(run: Run) -> str:
    given = ", ".join(f"{name}={value}" for name, value in run.parameters.items())
    words = run.notebook + f" on {run.box}" * bool(run.box) + f" ({given})" * bool(given)
    return plain(cut(words, 160))


def _batches(a: Path, b: Path) -> Comparison:
    left, right = read_batch(a), read_batch(b)
    pairs: list[Pair] = []
    rest_a, rest_b = list(left.runs), list(right.runs)
    for with_box in (True, False):
        before, after = dict(_numbered(rest_a, with_box)), dict(_numbered(rest_b, with_box))
        pairs += [
            _runs(run, after[key], a / run.run_id, b / after[key].run_id)
            for key, run in before.items()
            if key in after
        ]
        rest_a = [run for key, run in before.items() if key not in after]
        rest_b = [run for key, run in after.items() if key not in before]
    alone = [tuple(map(_title, rest)) for rest in (rest_a, rest_b)]
    unread = (*left.unreadable, *right.unreadable)
    return Comparison("batch", str(a), str(b), tuple(pairs), alone[0], alone[1], unread)


def _numbered(runs: Iterable[Run], with_box: bool) -> Iterator[tuple[tuple[str, int], Run]]:
    """Each run under what it is and its place among its repeats."""
    seen: Counter[str] = Counter()
    for run in runs:
        key = same_run(run, with_box)
        yield (key, seen[key]), run
        seen[key] += 1


class Sides:
    """What was seen on two sides: what moved, and the names of what did not."""

    def __init__(self) -> None:
        self.moved: list[Change] = []
        self.same: list[str] = []

    def see(self, kind: str, what: str, before: Any, after: Any, by: str = "") -> None:
        """Put one thing where it belongs."""
        if before == after:
            self.same.append(what)
        else:
            self.moved.append(Change(kind, what, *apart(before, after), by))

    def readings(self, before: dict[str, Reading], after: dict[str, Reading]) -> None:
        """Readings by name, and by how much each number moved."""
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name), after.get(name)
            self.see("reading", name, old and old.show(), new and new.show(), _by(old, new))

    def verdicts(self, one: Verdict | None, two: Verdict | None) -> None:
        """Two verdicts and the readings that each stands on."""
        if one or two:
            self.see("verdict", "verdict", *(v.short if v else "none" for v in (one, two)))
        self.readings(*map(_stands_on, (one, two)))

    def pair(self, title: str) -> Pair:
        """All that was seen."""
        return Pair(title, tuple(self.moved), tuple(self.same))


def _stands_on(verdict: Verdict | None) -> dict[str, Reading]:
    items = (*verdict.evidence, *verdict.against) if verdict else ()
    return {item.id: item.reading for item in items}


STATE_FIELDS = ("cause", "signal", "failing_cell", "gate", "quarantined")
GIVEN_FIELDS = ("box", "node", "gpu", "preset", "tool_version")


def _runs(one: Run, two: Run, at_one: Path, at_two: Path) -> Pair:
    sides = Sides()
    sides.verdicts(one.verdict, two.verdict)
    sides.see("state", "state", one.state, two.state)
    for kind, names in (("state", STATE_FIELDS), ("parameter", GIVEN_FIELDS)):
        for name in names:
            before, after = getattr(one, name), getattr(two, name)
            if before or after:
                sides.see(kind, name.replace("_", " "), before, after)
    for name in sorted({**one.parameters, **two.parameters}):
        sides.see("parameter", name, one.parameters.get(name), two.parameters.get(name))
    _figures(one, two, at_one, at_two, sides)
    for name in sorted({*one.files, *two.files} - set(NOT_DATA)):
        if not name.startswith(("figures/", "stacks/")):
            old, new = content(at_one, name), content(at_two, name)
            if old == new:
                sides.same.append(name)
            else:
                sides.moved += [Change("data", *said) for said in differences(name, old, new)]
    if one.seconds and two.seconds:
        low, high = sorted((one.seconds, two.seconds))
        far = high - low >= SLOWER_S and high >= SLOWER * low
        before, ratio = duration(one.seconds), two.seconds / one.seconds
        after = duration(two.seconds) if far else before
        sides.see("time", "time", before, after, f"{ratio:.2f} times")
    return sides.pair(_title(two))


def _by(old: Reading | None, new: Reading | None) -> str:
    """By how much a number moved."""
    if not old or not new or old.unit != new.unit:
        return ""
    if not isinstance(old.value, (int, float)) or not isinstance(new.value, (int, float)):
        return ""
    step = new.value - old.value
    words = show_bytes(int(step)) if new.unit == "bytes" else f"{step:g}"
    return ("+" if step > 0 else "") + words


def _figures(one: Run, two: Run, at_one: Path, at_two: Path, sides: Sides) -> None:
    """A figure's data is what its words say; the picture itself counts only where the words are the same."""
    before, after = ({figure.path: figure.alt for figure in run.figures} for run in (one, two))
    for path in dict.fromkeys([*before, *after]):
        said = before.get(path), after.get(path)
        if said[0] == said[1] and content(at_one, path) != content(at_two, path):
            said = "as it was drawn", "drawn differently, with the same words"
        sides.see("figure", path, *said)


def _bundles(one: Bundle, two: Bundle) -> Pair:
    """Two looks at a box: what they say of its memory, what the casebook concludes, and every text that differs."""
    sides = Sides()
    sides.verdicts(*(diagnose(CaseEvidence(bundle=side)) for side in (one, two)))
    sides.see("parameter", "box", one.box, two.box)
    sides.readings(_pools(one), _pools(two))
    texts = [{item.source: side.read(item.source) for item in side.items} for side in (one, two)]
    for source in sorted({**texts[0], **texts[1]}):
        old, new = (side.get(source) for side in texts)
        by = _lines(old.text, new.text) if old and new and old.ok and new.ok else ""
        sides.see("text", source, _text(old), _text(new), by)
    return sides.pair(one.box if one.box == two.box else f"{one.box}, {two.box}")


def _text(of: Any) -> str:
    """What a bundle has of a source."""
    if not of:
        return "not looked at"
    return of.text if of.ok else f"{of.status}: {of.why}"


def _pools(bundle: Bundle) -> dict[str, Reading]:
    pools = [*(pool for gpu in gpus(bundle) for pool in gpu.pools), *host_pools(bundle)]
    return {
        f"{pool.pci or 'host'} {pool.layer} {what}": getattr(pool, what)
        for pool in pools
        for what in ("total", "used")
    }


def _lines(old: str, new: str) -> str:
    gone, come = Counter(old.splitlines()), Counter(new.splitlines())
    return f"{(gone - come).total()} lines gone, {(come - gone).total()} lines new"


TITLES = {
    "verdict": "Verdicts that changed",
    "state": "States and causes",
    "parameter": "What was given",
    "reading": "Readings",
    "figure": "Figures",
    "data": "Data",
    "time": "Time",
    "text": "Texts",
}


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as data."""
    return {**asdict(found), "summary": found.summary}


def as_text(found: Comparison) -> str:
    """The comparison for a terminal: what changed most first, then what did not move and what has no partner."""
    lines = [f"A: {found.a}", f"B: {found.b}", found.summary]
    for kind, heading in TITLES.items():
        lines += ["", heading] * bool(found.changes(kind))
        for pair in found.pairs:
            changes = [change for change in pair.moved if change.kind == kind]
            lines += [f"  {pair.title}"] * bool(changes)
            lines += [
                f"    {one.what}: {cut(one.before, 80)} -> {cut(one.after, 80)}"
                + (f" ({one.by})" if one.by else "")
                for one in changes
            ]
    lines += ["", "What did not move"]
    for pair in found.pairs:
        more = f" and {len(pair.same) - MOST_SAME} more" if len(pair.same) > MOST_SAME else ""
        lines.append(f"  {pair.title}: {', '.join(pair.same[:MOST_SAME]) or 'nothing'}{more}")
    rest = {"Only in A": found.only_a, "Only in B": found.only_b, "Not readable": found.unreadable}
    for heading, listed in rest.items():
        lines += ["", heading, *(f"  {line}" for line in listed)] * bool(listed)
    return "\n".join(map(plain, lines))


def shown(value: Any) -> str:
    """A value in at most 200 columns; ``none`` for nothing."""
    return "none" if value is None or value == "" else plain(cut(str(value)[:999], 200))


def apart(before: Any, after: Any) -> tuple[str, str]:
    """Two values as shown; of two long texts from a little before where they part."""
    if not (isinstance(before, str) and isinstance(after, str)):
        return shown(before), shown(after)
    same = len(os.path.commonprefix([before, after]))
    start = before.rfind(" ", 0, same - 10) + 1 if same > 40 else 0
    dots = "…" * bool(start)
    return dots + shown(before[start:]), dots + shown(after[start:])


def content(folder: Path, name: str) -> bytes | None:
    """A file that a run wrote; None where there is none or it lies elsewhere. Of a big one only its digest."""
    path = (folder / name).resolve()
    try:
        if not path.is_relative_to(folder.resolve()):
            return None
        if path.stat().st_size <= BIGGEST_BYTES:
            return path.read_bytes()
        whole = hashlib.sha256()
        with open(path, "rb") as file:
            while part := file.read(1 << 20):
                whole.update(part)
        return f"{path.stat().st_size} bytes, sha256 {whole.hexdigest()}".encode()
    except (OSError, ValueError):
        return None


def differences(name: str, before: bytes | None, after: bytes | None) -> list[Moved]:
    """(what, before, after, by how much) of everything that moved in a file."""
    whole = (name, _digest(before), _digest(after))
    if before is None or after is None:
        return [(*whole, "")]
    try:
        moved = list(_moved(*(_columns(name, side) for side in (before, after))))
    except (ValueError, ImportError, RecursionError):
        return [(*whole, "")]
    rows = [(f"{name}: {one[0]}", *one[1:]) for one in moved[:MOST_DIFFERENCES]]
    if len(moved) > MOST_DIFFERENCES:
        rows.append((name, "", f"and {len(moved) - MOST_DIFFERENCES} more differences", ""))
    return rows or [(*whole, "the same values, written otherwise")]


def _digest(content: bytes | None) -> str:
    if content is None:
        return "no file"
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _columns(name: str, content: bytes) -> dict[str, list[Any]]:
    """A file as columns; a JSON value that is no list of objects has one row. ValueError where it is neither."""
    end = name.rsplit(".", 1)[-1].lower()
    if end == "parquet":
        import pyarrow
        from pyarrow import parquet

        try:
            return dict(parquet.read_table(io.BytesIO(content)).to_pydict())
        except pyarrow.ArrowException as error:
            raise ValueError(str(error)) from error
    if end == "csv":
        rows: Any = list(csv.DictReader(io.StringIO(content.decode("utf-8"))))
    elif end == "jsonl":
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
    elif end == "json":
        rows = json.loads(content)
    else:
        raise ValueError(f"{name}: no table")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        rows = [rows]
    flat = [dict(_flat(row)) for row in rows]
    names = dict.fromkeys(key for row in flat for key in row)
    return {name: [row.get(name) for row in flat] for name in names}


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{at}.{name}" if at else str(name))
    else:
        yield at or "value", value


def _moved(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> Iterator[Moved]:
    """(column, before, after, by how much) of each column that is not the same, with how far its numbers moved at most."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield name, shown(before.get(name)), shown(after.get(name)), ""
            continue
        old, new = before[name], after[name]
        if len(old) != len(new):
            yield name, f"{len(old)} rows", f"{len(new)} rows", ""
            continue
        apart = [(x, y) for x, y in zip(old, new, strict=True) if not _equal(x, y)]
        if apart:
            steps = [y - x for x, y in apart if _number(x) and _number(y)]
            far = max(steps, key=abs, default=None)
            by = f"{len(apart)} of {len(old)} rows" * (len(old) > 1)
            by += (", at most " if by else "") + f"{far:+g}" if far is not None else ""
            yield name, shown(apart[0][0]), shown(apart[0][1]), by


def _equal(x: Any, y: Any) -> bool:
    return bool(x == y) or (_number(x) and _number(y) and math.isnan(x) and math.isnan(y))


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
