"""Scores ``diagnose`` on posted cases with known causes: ``python tests/cases.py [FOLDER]``.

The folder holds JSON files as its README describes; only ``evidence`` is given to the judge. Printed: the score, the
score by family left out, the confusion table, PyTorch's own hint as a baseline, and every wrong one in a line.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.judge.diagnosis import diagnose  # noqa: E402
from helpers.judge.evidence import case_evidence  # noqa: E402

CASES = ROOT.parent / "shared" / "cases"


def load(folder: Path) -> list[tuple[str, dict, dict]]:
    """(name, evidence, truth) of every case."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        rows.append((path.stem, data["evidence"], data["truth"]))
    return rows


def outcome(cause: str, truth: dict) -> str:
    """right, secondary, abstained or wrong, as the folder's README counts."""
    if cause == truth["root_cause"]:
        return "right"
    if cause in truth["secondary"]:
        return "secondary"
    return "abstained" if cause == "cannot-tell" else "wrong"


def baseline(evidence: dict) -> str:
    """PyTorch's own hint: reserved well above allocated is fragmentation; it says nothing else."""

    def first(pattern: str) -> float | None:
        got = re.search(pattern, evidence.get("error_text") or "")
        return float(got[1]) * {"K": 1 / 1024, "M": 1, "G": 1024}[got[2]] if got else None

    allocated = first(r"([\d.]+) ([KMG])iB (?:already allocated|is allocated)")
    rest = first(r"([\d.]+) ([KMG])iB is reserved by PyTorch but")
    total = first(r"([\d.]+) ([KMG])iB reserved in total")
    if allocated is None or (rest is None and total is None):
        return "cannot-tell"
    return (
        "allocator-fragmentation"
        if (rest if rest is not None else (total or 0) - allocated) > 0.2 * allocated
        else "cannot-tell"
    )


def family(truth: dict) -> str:
    """Cases of one cause form a family; siblings of one regression count as one here."""
    return truth["root_cause"]


def score(cases: list, judge=None) -> list[tuple[str, str, str, str, str]]:
    """(name, truth, answer, confidence, outcome) of every scoreable case."""
    rows = []
    for name, evidence, truth in cases:
        if truth["certainty"] == "unresolved":
            continue
        if judge:
            cause = judge(evidence)
            confidence = ""
        else:
            verdict = diagnose(case_evidence(evidence))
            cause = verdict.cause
            confidence = verdict.confidence
        rows.append((name, truth["root_cause"], cause, confidence, outcome(cause, truth)))
    return rows


def line(rows: list, label: str) -> str:
    counted = Counter(row[4] for row in rows)
    total = max(1, len(rows))
    sure = sum(row[4] == "wrong" and row[3] == "confirmed" for row in rows)
    return (
        f"{label:<28} {len(rows):>3} cases  "
        + "  ".join(
            f"{k} {counted[k]:>2} ({100 * counted[k] / total:4.1f} %)"
            for k in ("right", "secondary", "abstained", "wrong")
        )
        + f"  wrong and confirmed {sure}"
    )


def confusion(rows: list) -> str:
    table: dict[str, Counter] = defaultdict(Counter)
    for _, truth, answer, _, _ in rows:
        table[truth][answer] += 1
    return "\n".join(
        f"  {truth:<30} "
        + ", ".join(f"{answer} {count}" for answer, count in sorted(table[truth].items()))
        for truth in sorted(table)
    )


def main(folder: Path) -> int:
    cases = load(folder)
    if not cases:
        print(f"{folder}: no cases there")
        return 0
    started = time.perf_counter()
    answers = score(cases)
    seconds = (time.perf_counter() - started) / max(1, len(answers))
    print(
        line(answers, "diagnose"),
        line(score(cases, baseline), "baseline: PyTorch's hint"),
        sep="\n",
    )
    print(f"{1000 * seconds:.1f} ms a case\n\nOne family left out:")
    for left in sorted({row[1] for row in answers}):
        rest = [row for row in answers if row[1] != left]
        right = sum(row[4] == "right" for row in rest)
        print(f"  without {left:<30} right {100 * right / max(1, len(rest)):4.1f} % of {len(rest)}")
    print(f"\nConfusion (truth: answers)\n{confusion(answers)}")
    for name, truth, answer, confidence, got in answers:
        if got != "right":
            print(f"  {got}: {name}: {truth} answered {answer} ({confidence})")
    print("\nUnresolved cases (information only):")
    for name, evidence, truth in cases:
        if truth["certainty"] == "unresolved":
            verdict = diagnose(case_evidence(evidence))
            print(
                f"  {name}: {truth['root_cause']} answered {verdict.cause} ({verdict.confidence})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CASES))
