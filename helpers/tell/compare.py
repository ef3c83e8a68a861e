"""Two evidence bundles side by side: what moved, what did not, and whether the verdict changed.

For a box that worked once and no longer does: what could explain it comes first, then the verdict
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
"""How names of traces end: torch's own snapshot, a trace as columns, and rows of JSON."""
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
"""Names that the line "What did not move" lists, and letters of each: few and short enough for
about two lines of a terminal.
"""


class CompareError(ValueError):
    """Two things that cannot be compared: one line with what was seen and what was expected."""


@dataclass(frozen=True)
class BoxChange:
    """One thing that was compared: ``what`` it is, its value on each side in words, and ``by`` how
    much a number moved. ``kind`` is a key of TITLES.

    For evidence, ``before`` or ``after`` is ``there`` on the side whose verdict has it.
    """

    kind: str
    what: str
    before: str
    after: str
    by: str = ""


@dataclass(frozen=True)
class ComparedBundle:
    """The changes between two bundles, and the names of what did not change."""

    title: str
    moved: tuple[BoxChange, ...]
    same: tuple[str, ...]


@dataclass(frozen=True)
class BoxComparison:
    """What moved from the bundle ``a`` to the bundle ``b``, the paths or names that were given.

    ``boxes`` are the names of their boxes. ``builds`` is what could explain a new failure
    (torch, runtime, driver, kernel, settings), ``pairs`` all the rest. Each holds one pair: both
    are lists as in the comparison of batches, which has many.
    """

    a: str
    b: str
    boxes: tuple[str, str]
    builds: tuple[ComparedBundle, ...]
    pairs: tuple[ComparedBundle, ...]
    kind: str = "bundle"
    schema_version: int = 1

    def changes(self, *kinds: str) -> list[BoxChange]:
        """Every change of these kinds, which are keys of TITLES."""
        moved = [*self.builds[0].moved, *self.pairs[0].moved]
        return [change for change in moved if change.kind in kinds]

    @property
    def summary(self) -> str:
        """The comparison in one line."""
        if not self.changes(*TITLES):
            return "0 of 1 bundles moved, 0 verdicts changed"
        if not self.changes("verdict"):
            return "1 of 1 bundles moved, 0 verdicts changed"
        return "1 of 1 bundles moved, 1 verdict changed"


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
        builds=(
            _moved_and_same(title, _readings("build", _builds(before), _builds(after))),
        ),
        pairs=(_moved_and_same(title, _changes_of_bundles(before, after)),),
    )


def is_trace(path: Path) -> bool:
    """Whether a file is a trace of allocations, by its name."""
    return path.is_file() and path.name.endswith(TRACES)


def _moved_and_same(title: str, compared: Iterable[BoxChange]) -> ComparedBundle:
    """What was compared, in two parts: the changes whose sides differ, their values cut for a
    terminal, and the names of those whose sides are equal.
    """
    moved = []
    same = []
    for change in compared:
        if change.before == change.after:
            same.append(change.what)
            continue
        cut_before = shown(change.before)
        moved.append(replace(change, before=cut_before, after=shown(change.after)))
    return ComparedBundle(title, tuple(moved), tuple(same))


def _changes_of_bundles(before: Bundle, after: Bundle) -> Iterator[BoxChange]:
    """The verdicts, the names of the boxes and the memory pools of two bundles compared, equal ones
    too.
    """
    old_verdict = diagnose(evidence_from_bundle(before))
    new_verdict = diagnose(evidence_from_bundle(after))
    yield from _verdicts(old_verdict, new_verdict)
    yield BoxChange("parameter", "box", before.box, after.box)
    yield from _readings("reading", _pools(before), _pools(after))


def _verdicts(before: Verdict, after: Verdict) -> Iterator[BoxChange]:
    """Two verdicts compared, equal parts too: their causes, the readings that both rest on, and the
    evidence that only one of them has.
    """
    yield BoxChange(
        "verdict", "verdict", _cause_in_words(before), _cause_in_words(after)
    )
    old = {row.id: row for row in (*before.evidence, *before.against)}
    new = {row.id: row for row in (*after.evidence, *after.against)}
    # Sums of different messages have the same ids, so they are compared by their words.
    both = [row_id for row_id in old if row_id in new and not row_id.startswith(SUM)]
    old_readings = {}
    new_readings = {}
    for row_id in both:
        name = _sentence(new[row_id])
        old_readings[name] = old[row_id].reading
        new_readings[name] = new[row_id].reading
    yield from _readings("reading", old_readings, new_readings)
    # The side whose verdict does not rest on a reading may still read the same value, so this is
    # a change of evidence and not of a reading.
    only_old = {
        _with_its_value(row): "there" for key, row in old.items() if key not in both
    }
    only_new = {
        _with_its_value(row): "there" for key, row in new.items() if key not in both
    }
    for text in {**only_old, **only_new}:
        yield BoxChange(
            "evidence", text, only_old.get(text, ""), only_new.get(text, "")
        )


def _cause_in_words(verdict: Verdict) -> str:
    """A verdict's cause and its confidence; the whole answer where its cause is ``other``."""
    if verdict.label == "other":
        return verdict.short
    return f"{verdict.label} ({verdict.confidence})"


def _with_its_value(row: Evidence) -> str:
    """The sentence of a piece of evidence with the value that was read. A sum (a line of arithmetic
    on a message) has its sentence alone, since its value is the whole message.
    """
    says = _sentence(row).rstrip(".")
    if row.id.startswith(SUM):
        return says
    value = quoted(row)
    if not value:
        return says
    return f"{says}: {value}"


def _sentence(row: Evidence) -> str:
    """What a piece of evidence says; its id where it has no sentence."""
    if not row.says:
        return row.id
    return row.says


def _readings(
    kind: str, before: dict[str, Reading], after: dict[str, Reading]
) -> Iterator[BoxChange]:
    """Each reading of both sides by its name, and by how much its number moved."""
    for name in dict.fromkeys([*before, *after]):
        old = before.get(name)
        new = after.get(name)
        old_words = _reading_words(kind, old)
        new_words = _reading_words(kind, new)
        yield BoxChange(kind, name, old_words, new_words, by=_moved_by(old, new))


def _reading_words(kind: str, reading: Reading | None) -> str:
    """A reading in words. Where a side has none: "not read" for memory, and empty for a build,
    whose absence is an answer, as of a driver that is not installed.
    """
    if reading is not None:
        return reading.show()
    if kind == "reading":
        return "not read"
    return ""


def _moved_by(old: Reading | None, new: Reading | None) -> str:
    """By how much a number moved, with its sign; empty unless both sides are numbers in the same
    unit.
    """
    if old is None or new is None or old.unit != new.unit:
        return ""
    if not isinstance(old.value, (int, float)):
        return ""
    if not isinstance(new.value, (int, float)):
        return ""
    step = new.value - old.value
    if new.unit != "bytes":
        return f"{step:+g}"
    if step > 0:  # show_bytes writes the minus of the others
        return f"+{show_bytes(int(step))}"
    return show_bytes(int(step))


def _builds(bundle: Bundle) -> dict[str, Reading]:
    """What could explain that a program fails on one side only: torch, runtime, driver, kernel,
    and the memory settings.
    """
    builds = {row["layer"]: row["release"] for row in stack_table(bundle).rows}
    for row in settings_table(bundle).rows:
        builds[row["variable"]] = seen(row["value"], "text", "settings")
    return builds


def _pools(bundle: Bundle) -> dict[str, Reading]:
    """The total and the used bytes of each memory pool, by its GPU and layer."""
    pools: list[Pool] = []
    for gpu in gpus(bundle):
        pools += gpu.pools
    readings = {}
    for pool in [*pools, *host_pools(bundle)]:
        place = pool.pci
        if not place:
            place = "host"
        readings[f"{place} {pool.layer} total"] = pool.total
        readings[f"{place} {pool.layer} used"] = pool.used
    return readings


def as_json(comparison: BoxComparison) -> dict[str, object]:
    """The comparison as data."""
    return {**asdict(comparison), "summary": comparison.summary}


def as_text(comparison: BoxComparison) -> str:
    """The comparison for a terminal: what could explain it first, then what did not move."""
    sides = zip("AB", (comparison.a, comparison.b), comparison.boxes, strict=True)
    lines = [f"{letter}: {name}, box {box}" for letter, name, box in sides]
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
        f"    {_what_did_not_move(pair.same)}"
        for pair in (*comparison.builds, *comparison.pairs)
    ]
    return "\n".join(map(plain, lines))


def _line(change: BoxChange) -> str:
    """A change in a line of the terminal; a value in at most one usual line of 80 columns."""
    if change.kind == "evidence":
        if change.before == "there":
            return f"only in A: {change.what}"
        return f"only in B: {change.what}"
    before = cut(in_words(change.before), 80)
    after = cut(in_words(change.after), 80)
    line = f"{change.what}: {before} -> {after}"
    if change.by:
        line += f" ({change.by})"
    return line


def _what_did_not_move(same: tuple[str, ...]) -> str:
    """The line about what did not move: up to MOST_SAME short names, and how many more there are;
    *nothing* where everything moved.
    """
    if not same:
        return "nothing"
    short = [name for name in same if len(name) < MOST_NAME][:MOST_SAME]
    parts = []
    if short:
        parts.append(", ".join(short))
    if len(same) > len(short):
        parts.append(f"{len(same) - len(short)} more")
    return " and ".join(parts)


def shown(value: str) -> str:
    """A value in at most 200 columns, enough for a sentence of evidence; ``none`` where it is
    empty.
    """
    if not value:
        return "none"
    return plain(cut(value, 200))
