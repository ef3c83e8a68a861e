"""Two records, two batches or two evidence bundles side by side: what moved, what did not, which verdicts changed.

A run is found again by its notebook, parameters, preset, GPU and box, and by its place among its repeats; where the box has
another name on the other side (a bundle from before and one from after), without it. What has no partner is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

from .compare_data import apart, content, differences
from .tables import cut, duration, plain

SCHEMA_VERSION = 1
SLOWER, SLOWER_S = 1.25, 5.0
"""A run's time counts as moved beyond this ratio and by at least so many seconds; below that two equal runs differ too."""
MOST_SAME = 8
NOT_DATA = ("notebook.ipynb", "kernel.stderr", "runner.log", "run.json")


Look = Callable[..., None]


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
        said = [
            f"{moved} of {len(self.pairs)} {'bundles' if self.kind == 'bundle' else 'runs'} moved",
            f"{verdicts} verdict{'s' * (verdicts != 1)} changed",
        ]
        said += [
            f"{len(only)} only in {side}"
            for side, only in (("A", self.only_a), ("B", self.only_b))
            if only
        ]
        return ", ".join(said)


def compare(a: Path, b: Path) -> Comparison:
    """What moved from ``a`` to ``b``: two runs, two batches or two evidence bundles. Raises CompareError."""
    kind, other = _kind(a), _kind(b)
    if kind != other:
        raise CompareError(f"{a} is a {kind} and {b} is a {other}; expected two of a kind")
    try:
        if kind == "run":
            pair = _runs(
                read_run(_record(a)), read_run(_record(b)), _record(a).parent, _record(b).parent
            )
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
    return plain(
        cut(run.notebook + f" on {run.box}" * bool(run.box) + f" ({given})" * bool(given), 160)
    )


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
    return Comparison(
        "batch",
        str(a),
        str(b),
        tuple(pairs),
        tuple(map(_title, rest_a)),
        tuple(map(_title, rest_b)),
        (*left.unreadable, *right.unreadable),
    )


def _numbered(runs: Iterable[Run], with_box: bool) -> Iterator[tuple[tuple[str, int], Run]]:
    """Each run under what it is and its place among its repeats."""
    seen: Counter[str] = Counter()
    for run in runs:
        key = same_run(run, with_box)
        yield (key, seen[key]), run
        seen[key] += 1


def _runs(one: Run, two: Run, at_one: Path, at_two: Path) -> Pair:
    moved: list[Change] = []
    same: list[str] = []
    look = _looker(moved, same)
    _verdicts(one.verdict, two.verdict, look)
    look("state", "state", one.state, two.state)
    for name in ("cause", "signal", "failing_cell", "gate", "quarantined"):
        if getattr(one, name) or getattr(two, name):
            look("state", name.replace("_", " "), getattr(one, name), getattr(two, name))
    for name in ("box", "node", "gpu", "preset", "tool_version"):
        if getattr(one, name) or getattr(two, name):
            look("parameter", name.replace("_", " "), getattr(one, name), getattr(two, name))
    for name in sorted({**one.parameters, **two.parameters}):
        look("parameter", name, one.parameters.get(name), two.parameters.get(name))
    _figures(one, two, at_one, at_two, look)
    for name in sorted(set(one.files) | set(two.files)):
        if not name.startswith(("figures/", "stacks/")) and name not in NOT_DATA:
            before, after = content(at_one, name), content(at_two, name)
            if before == after:
                same.append(name)
            else:
                moved += [Change("data", *said) for said in differences(name, before, after)]
    if one.seconds and two.seconds:
        low, high = sorted((one.seconds, two.seconds))
        far = high - low >= SLOWER_S and high >= SLOWER * low
        look(
            "time",
            "time",
            duration(one.seconds),
            duration(two.seconds) if far else duration(one.seconds),
            f"{two.seconds / one.seconds:.2f} times",
        )
    return Pair(_title(two), tuple(moved), tuple(same))


def _looker(moved: list[Change], same: list[str]) -> Look:
    """A function that puts one thing seen on both sides where it belongs."""

    def look(kind: str, what: str, before: Any, after: Any, by: str = "") -> None:
        if before == after:
            same.append(what)
        else:
            moved.append(Change(kind, what, *apart(before, after), by))

    return look


def _verdicts(one: Verdict | None, two: Verdict | None, look: Look) -> None:
    words = [verdict.short if verdict else "none" for verdict in (one, two)]
    if one or two:
        look("verdict", "verdict", *words)
    before, after = (
        {item.id: item.reading for item in (*verdict.evidence, *verdict.against)} if verdict else {}
        for verdict in (one, two)
    )
    _readings(before, after, look)


def _readings(before: dict[str, Reading], after: dict[str, Reading], look: Look) -> None:
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        look("reading", name, old and old.show(), new and new.show(), _by(old, new))


def _by(old: Reading | None, new: Reading | None) -> str:
    """By how much a number moved."""
    values = [reading.value if reading else None for reading in (old, new)]
    if (
        not all(isinstance(value, (int, float)) for value in values)
        or not old
        or not new
        or old.unit != new.unit
    ):
        return ""
    step = values[1] - values[0]  # type: ignore[operator]
    return ("+" if step > 0 else "") + (
        show_bytes(int(step)) if new.unit == "bytes" else f"{step:g}"
    )


def _figures(one: Run, two: Run, at_one: Path, at_two: Path, look: Look) -> None:
    """A figure's data is what its words say; the picture itself counts only where the words are the same."""
    before, after = ({figure.path: figure.alt for figure in run.figures} for run in (one, two))
    for path in dict.fromkeys([*before, *after]):
        if before.get(path) == after.get(path) and content(at_one, path) != content(at_two, path):
            look("figure", path, "as it was drawn", "drawn differently, with the same words")
        else:
            look("figure", path, before.get(path), after.get(path))


def _bundles(one: Bundle, two: Bundle) -> Pair:
    """Two looks at a box: what they say of its memory, what the casebook concludes, and every text that differs."""
    moved: list[Change] = []
    same: list[str] = []
    look = _looker(moved, same)
    _verdicts(diagnose(CaseEvidence(bundle=one)), diagnose(CaseEvidence(bundle=two)), look)
    look("parameter", "box", one.box, two.box)
    _readings(_pools(one), _pools(two), look)
    texts = [{item.source: side.read(item.source) for item in side.items} for side in (one, two)]
    for source in sorted({**texts[0], **texts[1]}):
        old, new = (side.get(source) for side in texts)
        by = _lines(old.text, new.text) if old and new and old.ok and new.ok else ""
        said = (
            "not looked at" if not t else t.text if t.ok else f"{t.status}: {t.why}"
            for t in (old, new)
        )
        look("text", source, *said, by)
    return Pair(
        one.box if one.box == two.box else f"{one.box}, {two.box}", tuple(moved), tuple(same)
    )


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
    for heading, listed in (
        ("Only in A", found.only_a),
        ("Only in B", found.only_b),
        ("Not readable", found.unreadable),
    ):
        lines += ["", heading, *(f"  {line}" for line in listed)] * bool(listed)
    return "\n".join(map(plain, lines))


def as_html(found: Comparison) -> str:
    """The comparison as a piece of a page, in the classes of its style sheet."""
    from .report import environment  # with it comes nbconvert

    return environment().get_template("compare.html.j2").render(found=found, titles=TITLES)
