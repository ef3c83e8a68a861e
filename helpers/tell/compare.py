"""Two records, two batches or two evidence bundles side by side: what moved, what did not,
which verdicts changed.

A run is found again by its notebook, parameters, preset, GPU and box, and by its place among
its repeats; where the box has another name on the other side (a bundle from before and one from
after), without it. What has no partner is named.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os.path
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from helpers.batch.history import same_run
from helpers.batch.record import RecordUnreadable, read_batch, read_run
from helpers.batch.report import bundle_of
from helpers.batch.shapes import Run
from helpers.ground.shapes import Evidence, Reading, Verdict, in_words, seen
from helpers.ground.units import cut, plain, show_bytes
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.archive import BundleError
from helpers.look.bundle import Bundle, open_bundle
from helpers.look.files import opened, whole
from helpers.look.gpus import gpus, host_pools
from helpers.tell.resources import words
from helpers.tell.values import duration

from .box import settings_table, stack_table
from .verdict import SUM, quoted

SLOWER = 1.25
SLOWER_S = 5.0
"""A run's time counts as moved beyond this ratio and by at least so many seconds; below that
two equal runs differ too.
"""
MOST_SAME = 8
MOST_NAME = 30
ONE_LINE = 70
"""Of what did not move: so many names, none longer; and columns of two texts that are shown and
not counted.
"""
FIELDS: dict[str, list[str]] = words("compared fields")
"""Fields of a run that are compared, by the kind of change they are."""
NOT_DATA = ("notebook.ipynb", "kernel.stderr", "runner.log", "run.json")
BIGGEST_BYTES = 64 << 20
"""A file above this is compared by its digest alone."""
MOST_DIFFERENCES = 12
TRACES = (".pickle", ".pkl", ".parquet", ".jsonl", ".jsonl.xz")
KINDS: dict[str, str] = words("compared")
Moved = tuple[str, str, str, str]
"""What moved, before, after, by how much."""


class CompareError(ValueError):
    """Two things that cannot be compared: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class Change:
    """One thing seen on both sides, and by how much it moved. ``kind`` is a key of TITLES."""

    kind: str
    what: str
    before: Any
    after: Any
    by: str = ""


@dataclass(frozen=True)
class Pair:
    """One run, or one bundle, on both sides: what moved in it, and the names of what did not."""

    title: str
    moved: tuple[Change, ...]
    same: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What moved from ``a`` to ``b``.

    ``only_a`` and ``only_b`` have no partner; ``unreadable`` could not be believed.

    ``boxes`` are the names of the boxes on each side. ``builds`` are what their evidence
    bundles say of what could explain a new failure, a box each; ``blind`` says of which box
    there is nothing to say that by.
    """

    kind: str
    a: str
    b: str
    pairs: tuple[Pair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    builds: tuple[Pair, ...] = ()
    blind: tuple[str, ...] = ()
    schema_version: int = field(default=1, kw_only=True)

    def changes(self, *kinds: str) -> list[tuple[str, Change]]:
        """Every change of these kinds with the title of what it is in."""
        return [
            (pair.title, change)
            for pair in (*self.builds, *self.pairs)
            for change in pair.moved
            if change.kind in kinds
        ]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        pairs = [*self.pairs, *(self.builds if self.kind == "bundle" else ())]
        moved = len({pair.title for pair in pairs if pair.moved})
        verdicts = len(self.changes("verdict"))
        what = "bundles" if self.kind == "bundle" else "runs"
        said = [f"{moved} of {len(self.pairs)} {what} moved"]
        said.append(f"{verdicts} verdict{'s' * (verdicts != 1)} changed")
        said += [f"{len(self.only_a)} only in A"] * bool(self.only_a)
        said += [f"{len(self.only_b)} only in B"] * bool(self.only_b)
        return ", ".join(said)


def compare(a: Path, b: Path) -> Comparison:
    """What moved from ``a`` to ``b``: two runs, two batches or two evidence bundles.

    Raises CompareError.
    """
    kind = _kind(a)
    other = _kind(b)
    for path, of, beside in ((a, kind, other), (b, other, kind)):
        if not of:
            lacks = "of no kind that can be compared" if path.exists() else "no such file or folder"
            expected = KINDS.get(beside) or ", ".join(KINDS.values())
            raise CompareError(f"{path}: {lacks}; expected {expected}")
    if kind != other:
        raise CompareError(f"{a} is a {kind} and {b} is a {other}; expected two of a kind")
    try:
        if kind == "run":
            records = [path if path.is_file() else path / "run.json" for path in (a, b)]
            runs = [read_run(record) for record in records]
            both = _of_runs(runs[0], runs[1], records[0].parent, records[1].parent)
            pair = _pair(_title(*runs), both)
            boxes = tuple(run.box for run in runs)
            why = _explained([boxes], *(record.parent.parent for record in records))
            return Comparison(kind, str(a), str(b), (pair,), boxes=boxes, **why)
        if kind == "bundle":
            sides = open_bundle(a), open_bundle(b)
            boxes = sides[0].box, sides[1].box
            title = " -> ".join(dict.fromkeys(boxes))
            told = _readings(*map(_builds, sides), kind="build")
            pairs = (_pair(title, _of_bundles(*sides)),)
            builds = (_pair(title, told),)
            return Comparison(kind, str(a), str(b), pairs, boxes=boxes, builds=builds)
    except (RecordUnreadable, BundleError) as error:
        raise CompareError(str(error)) from error
    return _batches(a, b)


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of allocations, by its name."""
    return path.is_file() and path.name.endswith(TRACES)


def _kind(path: Path) -> str:
    """A key of KINDS; nothing for what is none of them."""
    signs = {
        "run": path.name == "run.json" or (path / "run.json").is_file(),
        "trace": is_trace(path),
        "bundle": path.name.endswith(".tar.gz") or (path / "manifest.json").is_file(),
        "batch": (path / "plan.yaml").is_file() or any(path.glob("*/run.json")),
    }
    return next((kind for kind, there in signs.items() if there and path.exists()), "")


def _title(before: Run, run: Run) -> str:
    """A run by notebook, box and parameters: both boxes where it moved from one to another."""
    boxes = " -> ".join(filter(None, dict.fromkeys([before.box, run.box])))
    named = {f"{{{name}}}": f"{name}={value}" for name, value in run.parameters.items()}
    given = ", ".join(words for gap, words in named.items() if gap not in words)
    words = run.notebook + f" on {boxes}" * bool(boxes) + f" ({given})" * bool(given)
    return plain(cut(words, 160))


def _batches(a: Path, b: Path) -> Comparison:
    left = read_batch(a)
    right = read_batch(b)
    pairs: list[Pair] = []
    matched: list[tuple[str, ...]] = []
    rest_a = list(left.runs)
    rest_b = list(right.runs)
    for with_box in (True, False):
        before = dict(_numbered(rest_a, with_box))
        after = dict(_numbered(rest_b, with_box))
        pairs += [
            _pair(
                _title(run, after[key]),
                _of_runs(run, after[key], a / run.run_id, b / after[key].run_id),
            )
            for key, run in before.items()
            if key in after
        ]
        matched += [(run.box, after[key].box) for key, run in before.items() if key in after]
        rest_a = [run for key, run in before.items() if key not in after]
        rest_b = [run for key, run in after.items() if key not in before]
    alone = [tuple(map(_title, rest, rest)) for rest in (rest_a, rest_b)]
    unread = (*left.unreadable, *right.unreadable)
    boxes = tuple(", ".join(sorted({r.box for r in side.runs} - {""})) for side in (left, right))
    only_a, only_b = alone
    why = _explained(matched, a, b)
    return Comparison("batch", str(a), str(b), tuple(pairs), only_a, only_b, unread, boxes, **why)


def _numbered(runs: Iterable[Run], with_box: bool) -> Iterator[tuple[tuple[str, int], Run]]:
    """Each run under what it is and its place among its repeats."""
    seen: Counter[str] = Counter()
    for run in runs:
        key = same_run(run, with_box)
        yield (key, seen[key]), run
        seen[key] += 1


def _pair(title: str, seen: Iterable[Change]) -> Pair:
    """What moved of all that was seen on both sides, with values as they are shown, and the
    names of what did not.
    """
    moved = []
    same = []
    for one in seen:
        if one.before == one.after:
            same.append(one.what)
        else:
            before, after = apart(one.before, one.after)
            moved.append(replace(one, before=before, after=after))
    return Pair(title, tuple(moved), tuple(same))


def _readings(
    before: dict[str, Reading], after: dict[str, Reading], *, kind: str = "reading"
) -> Iterator[Change]:
    """Readings by name, and by how much each number moved."""
    for name in dict.fromkeys([*before, *after]):
        sides = before.get(name), after.get(name)
        old, new = (one.show() if one else "not read" * (kind == "reading") for one in sides)
        yield Change(kind, name, old, new, _by(*sides))


def _verdicts(one: Verdict | None, two: Verdict | None) -> Iterator[Change]:
    """Two verdicts and the readings that each stands on, by what they say; one evidence has one
    name on both sides.
    """
    if one or two:
        yield Change("verdict", "verdict", *(_coded(v) for v in (one, two)))
    sides = [{row.id: row for row in (*v.evidence, *v.against)} if v else {} for v in (one, two)]
    named = {at: row.says or at for side in sides for at, row in side.items()}
    both = [at for at in named if all(at in side and not at.startswith(SUM) for side in sides)]
    had = ({named[at]: side[at].reading for at in both} for side in sides)
    yield from _readings(*had)
    # What only one of them stands on is no reading that moved: the other side may read the same.
    a, b = ({_said(row): "there" for at, row in side.items() if at not in both} for side in sides)
    for text in {**a, **b}:
        yield Change("evidence", text, a.get(text), b.get(text))


def _said(row: Evidence) -> str:
    """A piece of evidence with what was read; of a sum that is the message, which every sum has."""
    value = "" if row.id.startswith(SUM) else quoted(row)
    return (row.says or row.id).rstrip(".") + f": {value}" * bool(value)


def _coded(verdict: Verdict | None) -> str:
    """A verdict's code and how sure it is, as data; of a cause outside the list the answer itself."""
    if verdict is None or verdict.label == "other":
        return verdict.short if verdict else "none"
    return f"{verdict.label} ({verdict.confidence})"


def _of_runs(one: Run, two: Run, at_one: Path, at_two: Path) -> Iterator[Change]:
    yield from _verdicts(one.verdict, two.verdict)
    for kind, names in FIELDS.items():
        for name in names:
            before = getattr(one, name)
            after = getattr(two, name)
            if before or after:
                yield Change(kind, name.replace("_", " "), before, after)
    for name in sorted({**one.parameters, **two.parameters}):
        yield Change("parameter", name, one.parameters.get(name), two.parameters.get(name))
    # A figure's data is what its words say; the picture itself counts only where the words are
    # the same.
    words = [{figure.path: figure.alt for figure in run.figures} for run in (one, two)]
    for path in dict.fromkeys([*words[0], *words[1]]):
        before, after = (side.get(path) for side in words)
        if before == after and content(at_one, path) != content(at_two, path):
            before = "as it was drawn"
            after = "drawn differently, with the same words"
        yield Change("figure", path, before, after)
    for name in sorted({*one.files, *two.files} - set(NOT_DATA)):
        if not name.startswith(("figures/", "stacks/")):
            old = content(at_one, name)
            new = content(at_two, name)
            moved = differences(name, old, new) if old != new else [(name, "", "", "")]
            yield from (Change("data", *row) for row in moved)
    if one.seconds and two.seconds:
        low, high = sorted((one.seconds, two.seconds))
        far = high - low >= SLOWER_S and high >= SLOWER * low
        after = duration(two.seconds if far else one.seconds)
        times = f"{two.seconds / one.seconds:.2f} times"
        yield Change("time", "time", duration(one.seconds), after, times)


def _by(old: Reading | None, new: Reading | None) -> str:
    """By how much a number moved."""
    if not old or not new or old.unit != new.unit:
        return ""
    if not (_number(old.value) and _number(new.value)):
        return ""
    step = new.value - old.value
    words = show_bytes(int(step)) if new.unit == "bytes" else f"{step:g}"
    return ("+" if step > 0 else "") + words


def _of_bundles(one: Bundle, two: Bundle) -> Iterator[Change]:
    """Two looks at a box: what they say of its memory, what the casebook concludes, and every
    text that differs.
    """
    yield from _verdicts(*(diagnose(evidence_from_bundle(side)) for side in (one, two)))
    yield Change("parameter", "box", one.box, two.box)
    yield from _readings(_pools(one), _pools(two))
    texts = [{item.source: side.read(item.source) for item in side.items} for side in (one, two)]
    for source in sorted({**texts[0], **texts[1]}):
        old, new = (side.get(source) for side in texts)
        by = " -> ".join("read" if one and one.ok else _text(one) for one in (old, new))
        if old and new and old.ok and new.ok:
            lines = [Counter(side.text.splitlines()) for side in (old, new)]
            gone = (lines[0] - lines[1]).total()
            come = (lines[1] - lines[0]).total()
            by = f"{gone} line{'s' * (gone != 1)} gone, {come} new"
        yield Change("text", source, _text(old), _text(new), by)


def _explained(boxes: Iterable[tuple[str, ...]], a: Path, b: Path) -> dict[str, Any]:
    """What could explain a new failure in two batches, of each pair of boxes by bundles under
    their names, or beside the runs.
    """
    builds = []
    blind = []
    for pair in dict.fromkeys(boxes):
        title = " -> ".join(dict.fromkeys(pair))
        named = zip((bundle_of([box], None) for box in pair), (a, b), strict=True)
        (one, why), (two, why_not) = (at if at[0] else bundle_of([], by) for at, by in named)
        if one and two:
            built = map(_builds, map(open_bundle, (one, two)))
            builds.append(_pair(title, _readings(*built, kind="build")))
        else:
            blind.append(f"{title}: not available because {why or why_not}")
    return {"builds": tuple(builds), "blind": tuple(blind)}


def _text(of: Any) -> str:
    """What a bundle has of a source."""
    if not of:
        return "not looked at"
    return of.text.strip() if of.ok else f"{of.status.replace('_', ' ')}: {of.why}"


def _builds(bundle: Bundle) -> dict[str, Reading]:
    """What could explain that a program fails on one side only: torch, runtime, driver, kernel,
    and the memory settings.
    """
    builds = {row["layer"]: row["release"] for row in stack_table(bundle).rows}
    settings = settings_table(bundle).rows
    return builds | {row["variable"]: seen(row["value"], "text", "settings") for row in settings}


def _pools(bundle: Bundle) -> dict[str, Reading]:
    pools = [*(pool for gpu in gpus(bundle) for pool in gpu.pools), *host_pools(bundle)]
    return {
        f"{pool.pci or 'host'} {pool.layer} {what}": getattr(pool, what)
        for pool in pools
        for what in ("total", "used")
    }


TITLES: dict[str, str] = words("moved")


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as data."""
    return {**asdict(found), "summary": found.summary}


def as_text(found: Comparison) -> str:
    """The comparison for a terminal: what changed most first, then what did not move and what
    has no partner.
    """
    boxes = found.boxes or ("", "")
    lines = [
        f"{n}: {path}{f', box {box}' * bool(box)}"
        for n, path, box in zip("AB", (found.a, found.b), boxes, strict=True)
    ]
    alike = "Kernel, driver, torch and memory settings are the same on both sides."
    lines += [found.summary, *[alike] * bool(found.builds and not found.changes("build"))]
    lines += [f"What could explain a new failure, of {line}" for line in found.blind]
    pairs = (*found.builds, *found.pairs)
    for kind, heading in TITLES.items():
        rows = [(r.title, *map(_line, filter(lambda c: c.kind == kind, r.moved))) for r in pairs]
        lines += _grouped(heading, rows)
    lines += _grouped("What did not move", [(one.title, _still(one.same)) for one in pairs])
    rest = {"Only in A": found.only_a, "Only in B": found.only_b, "Not readable": found.unreadable}
    for heading, listed in rest.items():
        lines += ["", heading, *(f"  {line}" for line in listed)] * bool(listed)
    return "\n".join(map(plain, lines))


def _grouped(heading: str, rows: list[tuple[str, ...]]) -> list[str]:
    """Rows, a title and its lines each, below their heading; lines that several have are said
    once.
    """
    same: dict[tuple[str, ...], list[str]] = {}
    for title, *lines in rows:
        same.setdefault(tuple(f"    {line}" for line in lines), []).append(f"  {title}")
    same.pop((), None)
    several = len({row[0] for row in rows}) > 1
    parts = (([*dict.fromkeys(titles)] * several, body) for body, titles in same.items())
    return ["", heading, *(one for titles, body in parts for one in (*titles, *body))] * bool(same)


def _line(one: Change) -> str:
    """A change in a line; of two texts of several lines how many are gone and new."""
    if one.kind == "evidence":
        return f"only in {'A' if one.before == 'there' else 'B'}: {one.what}"
    if one.kind == "text" and len(one.before + one.after) > ONE_LINE:
        return f"{one.what}: {one.by}"
    after = f"{cut(in_words(one.before), 80)} -> {cut(in_words(one.after), 80)}"
    return f"{one.what}: {after}" + f" ({one.by})" * bool(one.by)


def _still(same: tuple[str, ...]) -> str:
    named = [name for name in same if len(name) < MOST_NAME][:MOST_SAME]
    more = f" and {len(same) - len(named)} more" if len(same) > len(named) else ""
    return (", ".join(named) + more).removeprefix(" and ") or "nothing"


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
    """A file that a run wrote; None where there is none or it lies elsewhere.

    Of a big one only its digest.
    """
    path = (folder / name).resolve()
    try:
        if not path.is_relative_to(folder.resolve()):
            return None
        if path.stat().st_size <= BIGGEST_BYTES:
            return whole(path, BIGGEST_BYTES)
        digest = hashlib.sha256()
        with opened(path) as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}".encode()
    except (OSError, ValueError):
        return None


def differences(name: str, before: bytes | None, after: bytes | None) -> list[Moved]:
    """(what, before, after, by how much) of everything that moved in a file."""
    whole = (name, _digest(before), _digest(after))
    if before is None or after is None:
        return [(*whole, "")]
    try:
        moved = list(_moved(*(_columns(name, side) for side in (before, after))))
    except (ValueError, OSError, ImportError, RecursionError):
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
    """A file as columns; a JSON value that is no list of objects has one row.

    ValueError where it is neither.
    """
    end = name.rsplit(".", 1)[-1].lower()
    if end == "parquet":
        from pyarrow import parquet

        return dict(parquet.read_table(io.BytesIO(content)).to_pydict())
    if end not in ("csv", "jsonl", "json"):
        raise ValueError(f"{name}: no table")
    text = content.decode("utf-8")
    rows: Any = list(csv.DictReader(io.StringIO(text))) if end == "csv" else None
    if rows is None:
        lines = (line for line in text.splitlines() if line.strip())
        rows = json.loads(text if end == "json" else f"[{','.join(lines)}]")
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
    """(column, before, after, by how much) of each column that is not the same, with how far
    its numbers moved at most.
    """
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield name, shown(before.get(name)), shown(after.get(name)), ""
            continue
        old = before[name]
        new = after[name]
        if len(old) != len(new):
            yield name, f"{len(old)} rows", f"{len(new)} rows", ""
            continue
        apart = [(x, y) for x, y in zip(old, new, strict=True) if x != y and (x == x or y == y)]
        if apart:
            steps = [y - x for x, y in apart if _number(x) and _number(y)]
            far = max(steps, key=abs, default=None)
            by = f"{len(apart)} of {len(old)} rows" * (len(old) > 1)
            by += (", at most " if by else "") + f"{far:+g}" if far is not None else ""
            yield name, shown(apart[0][0]), shown(apart[0][1]), by


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
