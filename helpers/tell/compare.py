"""Two evidence bundles side by side: what moved, what did not, and whether the verdict changed.

For a box that worked once and no longer does: what could explain it stands first, then the verdict
and the readings of its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from helpers.ground.shapes import SUM, Evidence, Reading, Verdict, in_words, seen
from helpers.ground.units import cut, plain, show_bytes
from helpers.judge.diagnosis import diagnose
from helpers.judge.evidence import evidence_from_bundle
from helpers.look.archive import BundleError
from helpers.look.boxes import open_box
from helpers.look.bundle import Bundle
from helpers.look.gpus import Pool, gpus, host_pools

from .box import settings_table, stack_table
from .verdict import quoted

TRACES = (".pickle", ".pkl", ".parquet", ".jsonl", ".jsonl.xz")
COMPARED = (
    "two bundles or two traces are compared; "
    "of batches report says what is new since the batch before"
)
TITLES = {
    "build": "What could explain a new failure",
    "verdict": "Verdicts that changed",
    "parameter": "What was given",
    "reading": "Readings that moved",
    "evidence": "Readings behind only one verdict",
}
"""The kinds of change in the order in which a person reads them, each with its heading."""
MOST_SAME = 8
MOST_NAME = 30
"""Of what did not move so many names are listed, none longer."""


class CompareError(ValueError):
    """Two things that cannot be compared: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class BoxChange:
    """One thing seen on both sides, and by how much it moved. ``kind`` is a key of TITLES."""

    kind: str
    what: str
    before: str
    after: str
    by: str = ""


@dataclass(frozen=True)
class ComparedBundle:
    """A bundle on both sides: what moved in it, and the names of what did not."""

    title: str
    moved: tuple[BoxChange, ...]
    same: tuple[str, ...]


@dataclass(frozen=True)
class BoxComparison:
    """What moved from the bundle ``a`` to the bundle ``b``.

    ``boxes`` are the names of their boxes. ``builds`` is what could explain a new failure
    (torch, runtime, driver, kernel, settings), ``pairs`` all the rest; each is one pair.
    """

    a: str
    b: str
    boxes: tuple[str, str]
    builds: tuple[ComparedBundle, ...]
    pairs: tuple[ComparedBundle, ...]
    kind: str = "bundle"
    schema_version: int = 1

    def changes(self, *kinds: str) -> list[BoxChange]:
        """Every change of these kinds."""
        moved = [*self.builds[0].moved, *self.pairs[0].moved]
        return [change for change in moved if change.kind in kinds]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        moved = int(bool(self.changes(*TITLES)))
        verdicts = "1 verdict"
        if not self.changes("verdict"):
            verdicts = "0 verdicts"
        return f"{moved} of 1 bundles moved, {verdicts} changed"


def compare(a: Path | str, b: Path | str) -> BoxComparison:
    """What moved from box ``a`` to box ``b``, each a bundle's path or the name of a recorded box.

    Raises CompareError.
    """
    try:
        before = open_box(str(a))
        after = open_box(str(b))
    except BundleError as error:
        raise CompareError(f"{error}; {COMPARED}") from error
    title = " -> ".join(dict.fromkeys([before.box, after.box]))
    return BoxComparison(
        a=str(a),
        b=str(b),
        boxes=(before.box, after.box),
        builds=(_pair(title, _readings("build", _builds(before), _builds(after))),),
        pairs=(_pair(title, _of_bundles(before, after)),),
    )


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of allocations, by its name."""
    return path.is_file() and path.name.endswith(TRACES)


def _pair(title: str, seen_on_both: Iterable[BoxChange]) -> ComparedBundle:
    """What moved of all that was seen on both sides, with values as they are shown, and the
    names of what did not.
    """
    moved = []
    same = []
    for change in seen_on_both:
        if change.before == change.after:
            same.append(change.what)
        else:
            moved.append(
                replace(change, before=shown(change.before), after=shown(change.after))
            )
    return ComparedBundle(title, tuple(moved), tuple(same))


def _of_bundles(before: Bundle, after: Bundle) -> Iterator[BoxChange]:
    """What two looks at a box say of its memory, and what the casebook concludes."""
    yield from _verdicts(
        diagnose(evidence_from_bundle(before)), diagnose(evidence_from_bundle(after))
    )
    yield BoxChange("parameter", "box", before.box, after.box)
    yield from _readings("reading", _pools(before), _pools(after))


def _verdicts(before: Verdict, after: Verdict) -> Iterator[BoxChange]:
    """Two verdicts and the readings that each stands on, by what they say; a piece of evidence
    has one name on both sides.
    """
    yield BoxChange("verdict", "verdict", _coded(before), _coded(after))
    old = {row.id: row for row in (*before.evidence, *before.against)}
    new = {row.id: row for row in (*after.evidence, *after.against)}
    names = {at: row.says or at for at, row in [*old.items(), *new.items()]}
    both = [at for at in names if at in old and at in new and not at.startswith(SUM)]
    yield from _readings(
        "reading",
        {names[at]: old[at].reading for at in both},
        {names[at]: new[at].reading for at in both},
    )
    # What only one of them stands on is no reading that moved: the other side may read the same.
    only_old = {_said(row): "there" for at, row in old.items() if at not in both}
    only_new = {_said(row): "there" for at, row in new.items() if at not in both}
    for text in {**only_old, **only_new}:
        yield BoxChange(
            "evidence", text, only_old.get(text, ""), only_new.get(text, "")
        )


def _coded(verdict: Verdict) -> str:
    """A verdict's code and how sure it is; of a cause outside the list the answer itself."""
    if verdict.label == "other":
        return verdict.short
    return f"{verdict.label} ({verdict.confidence})"


def _said(row: Evidence) -> str:
    """A piece of evidence with what was read; of a sum that is the message, which every sum has."""
    says = (row.says or row.id).rstrip(".")
    if row.id.startswith(SUM):
        return says
    value = quoted(row)
    if not value:
        return says
    return f"{says}: {value}"


def _readings(
    kind: str, before: dict[str, Reading], after: dict[str, Reading]
) -> Iterator[BoxChange]:
    """Readings by name, and by how much each number moved."""
    for name in dict.fromkeys([*before, *after]):
        old = before.get(name)
        new = after.get(name)
        shown_old, shown_new = (_reading_words(kind, reading) for reading in (old, new))
        yield BoxChange(
            kind, name, before=shown_old, after=shown_new, by=_moved_by(old, new)
        )


def _reading_words(kind: str, reading: Reading | None) -> str:
    if reading is not None:
        return reading.show()
    if kind == "reading":
        return "not read"
    return ""


def _moved_by(old: Reading | None, new: Reading | None) -> str:
    """By how much a number moved; empty where it is none on either side."""
    if old is None or new is None or old.unit != new.unit:
        return ""
    if not (
        isinstance(old.value, (int, float)) and isinstance(new.value, (int, float))
    ):
        return ""
    step = new.value - old.value
    words = f"{step:+g}"
    if new.unit == "bytes":
        words = show_bytes(int(step))
        if step > 0:
            words = f"+{words}"
    return words


def _builds(bundle: Bundle) -> dict[str, Reading]:
    """What could explain that a program fails on one side only: torch, runtime, driver, kernel,
    and the memory settings.
    """
    builds = {row["layer"]: row["release"] for row in stack_table(bundle).rows}
    for row in settings_table(bundle).rows:
        builds[row["variable"]] = seen(row["value"], "text", "settings")
    return builds


def _pools(bundle: Bundle) -> dict[str, Reading]:
    pools: list[Pool] = []
    for gpu in gpus(bundle):
        pools += gpu.pools
    readings = {}
    for pool in [*pools, *host_pools(bundle)]:
        place = f"{pool.pci or 'host'} {pool.layer}"
        readings[f"{place} total"] = pool.total
        readings[f"{place} used"] = pool.used
    return readings


def as_json(comparison: BoxComparison) -> dict[str, object]:
    """The comparison as data."""
    return {**asdict(comparison), "summary": comparison.summary}


def as_text(comparison: BoxComparison) -> str:
    """The comparison for a terminal: what could explain it first, then what did not move."""
    sides = zip("AB", (comparison.a, comparison.b), comparison.boxes, strict=True)
    lines = [f"{letter}: {path}, box {box}" for letter, path, box in sides]
    lines.append(comparison.summary)
    if not comparison.changes("build"):
        lines.append(
            "Kernel, driver, torch and memory settings are the same on both sides."
        )
    for kind, heading in TITLES.items():
        changes = [_line(change) for change in comparison.changes(kind)]
        if changes:
            lines += ["", heading, *(f"    {line}" for line in changes)]
    lines += ["", "What did not move"]
    lines += [
        f"    {_still(pair.same)}" for pair in (*comparison.builds, *comparison.pairs)
    ]
    return "\n".join(map(plain, lines))


def _line(change: BoxChange) -> str:
    """A change in a line."""
    if change.kind == "evidence":
        side = "A" if change.before == "there" else "B"
        return f"only in {side}: {change.what}"
    line = f"{change.what}: {cut(in_words(change.before), 80)} -> {cut(in_words(change.after), 80)}"
    if change.by:
        line += f" ({change.by})"
    return line


def _still(same: tuple[str, ...]) -> str:
    """The names of what did not move, the long ones and those above the limit counted."""
    named = [name for name in same if len(name) < MOST_NAME][:MOST_SAME]
    parts = []
    if named:
        parts.append(", ".join(named))
    if len(same) > len(named):
        parts.append(f"{len(same) - len(named)} more")
    return " and ".join(parts) or "nothing"


def shown(value: str) -> str:
    """A value in at most 200 columns; ``none`` for nothing."""
    if not value:
        return "none"
    return plain(cut(value[:999], 200))
