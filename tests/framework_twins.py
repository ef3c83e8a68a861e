"""Scores ``rehearse`` and ``diagnose`` on framework twins: ``python tests/framework_twins.py PYTHON [FOLDER]``.

PYTHON has torch, transformers, peft, accelerate, timm, lightning and papermill; FOLDER holds one folder a
case, as its README describes. A pair is rehearsed (``faulty/`` and ``fixed/``), its recording diagnosed
together with what the program printed; a fault of a box is provoked, or its bundle is read. Printed: one
line a case, then the score. Nothing of a case reaches the judge but what its program printed and recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TWINS = ROOT.parent / "shared" / "twins_frameworks"
SETTINGS_OF_THE_CALLER = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
LIMIT_S = 900
ENDED_WELL = ("healthy", "cannot-tell")


@dataclass
class Score:
    """What the tool said about one case, and how that counts."""

    case: dict
    cause: str = "no answer"
    confidence: str = ""
    outcome: str = ""
    line: str = ""
    next_step: str = ""
    remarks: list[str] = field(default_factory=list)


@dataclass
class Tool:
    """The command line of this checkout, called as a person with PYTHON's frameworks would call it."""

    python: Path

    def run(self, folder: Path, *arguments: str) -> tuple[dict, str]:
        """The JSON object that a verb printed, and all that it and the program printed."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment["PATH"] = f"{self.python.parent}{os.pathsep}{environment['PATH']}"
        for name in SETTINGS_OF_THE_CALLER:
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "helpers", *arguments],
            check=False,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        answer = last_object(done.stdout) or last_object(done.stderr)
        return answer, done.stdout + done.stderr

    def rehearse(self, program: Path, case: dict, trace: Path) -> tuple[dict, str]:
        command = case["command"].split()
        return self.run(
            program,
            "rehearse",
            "--json",
            "--force",
            "--capacity",
            case["capacity"],
            *case["args"],
            "--out",
            str(trace),
            "--",
            *command,
        )


def last_object(text: str) -> dict:
    """The last JSON object that begins a line of the text; a rehearsed program may print before it."""
    answer: dict = {}
    for start in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            value, _ = json.JSONDecoder().raw_decode(text[start.start() :])
        except ValueError:
            continue
        if len(value) > 2:
            answer = value
    return answer


def named_lines(answers: list[dict], files: set[str]) -> set[tuple[str, int]]:
    """(file, line) of the case's own files that the answers name."""
    text = "\n".join(json.dumps(answer) for answer in answers)
    places = re.findall(r"([\w./-]+\.\w+)(?::| line |\", line |, line )(\d+)", text)
    return {(Path(name).name, int(line)) for name, line in places if Path(name).name in files}


def diagnosed(tool: Tool, folder: Path, trace: Path, printed: Path) -> tuple[dict, dict]:
    """What ``diagnose`` says of the recording and the text together, and ``leaks`` of the recording."""
    if not trace.exists():
        verdict, _ = tool.run(folder, "diagnose", "--json", "--message", str(printed))
        return verdict, {}
    verdict, _ = tool.run(folder, "diagnose", "--json", str(trace))
    leaks, _ = tool.run(folder, "leaks", "--json", str(trace))
    return verdict, leaks


def outcome_of(cause: str, case: dict) -> str:
    """right, secondary, abstained or wrong, as the folder's README counts."""
    if cause == case["cause"]:
        return "right"
    if cause in case["secondary"]:
        return "secondary"
    if cause in ("cannot-tell", "no answer"):
        return "abstained"
    return "wrong"


def keep(score: Score, verdict: dict) -> None:
    score.cause = verdict.get("cause") or verdict.get("state") or "no answer"
    score.confidence = verdict.get("confidence", "")
    score.next_step = str(verdict.get("next_step", ""))
    score.outcome = outcome_of(score.cause, score.case)


def score_pair(tool: Tool, folder: Path, case: dict, with_fixed: bool) -> Score:
    score = Score(case)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        work = scratch / folder.name
        shutil.copytree(folder, work, ignore=shutil.ignore_patterns("case.json", "__pycache__"))
        trace = scratch / "faulty.pickle"
        result, printed = tool.rehearse(work / "faulty", case, trace)
        if result.get("fits"):
            score.remarks.append("rehearse says that faulty/ fits")
        log = scratch / "printed.txt"
        log.write_text(printed)
        verdict, leaks = diagnosed(tool, scratch, trace, log)
        keep(score, verdict)
        own_files = {path.name for path in (work / "faulty").rglob("*") if path.is_file()}
        wanted = {(Path(line["file"]).name, line["line"]) for line in case["lines"]}
        if wanted & named_lines([result, verdict, leaks], own_files):
            score.line = "line named"
        if with_fixed:
            judge_fixed(tool, work, case, scratch, score)
    return score


def judge_fixed(tool: Tool, work: Path, case: dict, scratch: Path, score: Score) -> None:
    """An alarm on the program that was put right counts as a wrong answer."""
    trace = scratch / "fixed.pickle"
    result, printed = tool.rehearse(work / "fixed", case, trace)
    if not result.get("fits"):
        score.remarks.append(f"fixed/ does not fit: {printed.strip()[-200:]}")
        return
    log = scratch / "printed_fixed.txt"
    log.write_text(printed)
    verdict, _ = diagnosed(tool, scratch, trace, log)
    cause = verdict.get("cause") or verdict.get("state") or "no answer"
    if trace.exists() and cause not in ENDED_WELL:
        score.remarks.append(f"alarm on fixed/: {cause} ({verdict.get('confidence', '')})")
        score.outcome = "wrong"


def score_fault(tool: Tool, folder: Path, case: dict) -> Score:
    score = Score(case)
    if (folder / "bundle").exists():
        verdict, _ = tool.run(folder, "diagnose", "--json", str(folder / "bundle"))
        keep(score, verdict)
        return score
    with tempfile.TemporaryDirectory() as scratch_name:
        work = Path(scratch_name) / folder.name
        shutil.copytree(folder, work, ignore=shutil.ignore_patterns("case.json", "__pycache__"))
        environment = {**os.environ, "PYTHON": str(tool.python), "PYTHONPATH": str(ROOT)}
        environment["PATH"] = f"{tool.python.parent}{os.pathsep}{environment['PATH']}"
        provoked = subprocess.run(
            ["bash", "provoke.sh"],
            check=False,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        log = work / "printed.txt"
        log.write_text(provoked.stdout)
        verdict, _ = tool.run(work, "diagnose", "--json", "--message", str(log))
        beside_the_box, _ = tool.run(work, "diagnose", "live", "--json", "--message", str(log))
    keep(score, verdict)
    if beside_the_box.get("cause") != verdict.get("cause"):
        score.remarks.append(f"with this box beside it: {beside_the_box.get('cause')}")
    return score


def report(scores: list[Score]) -> str:
    lines = []
    for score in scores:
        lines.append(
            f"{score.case['id']:34} {score.case['cause']:28} {score.outcome:10} "
            f"{score.cause} {score.confidence}; {score.line}"
        )
        lines += [f"    {remark}" for remark in score.remarks]
        if "next" in score.case:
            lines += [f"    wanted: {score.case['next']}", f"    said:   {score.next_step}"]
    counted = Counter(score.outcome for score in scores)
    confirmed = sum(s.outcome == "wrong" and s.confidence == "confirmed" for s in scores)
    named = sum(bool(score.line) for score in scores)
    summary = ", ".join(f"{kind} {count}" for kind, count in sorted(counted.items()))
    lines.append(f"{len(scores)} cases: {summary}; wrong and confirmed {confirmed}; line {named}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path, help="a Python that has the frameworks")
    parser.add_argument("folder", type=Path, nargs="?", default=TWINS)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--no-fixed", action="store_true", help="do not rehearse fixed/")
    options = parser.parse_args()
    paths = sorted(options.folder.resolve().glob(f"*{options.only}*/case.json"))
    if not paths:
        print(f"{options.folder}: no cases there")
        return 0
    tool = Tool(python=options.python.absolute())
    scores = []
    for path in paths:
        case = json.loads(path.read_text())
        if "command" in case:
            scores.append(score_pair(tool, path.parent, case, not options.no_fixed))
        else:
            scores.append(score_fault(tool, path.parent, case))
    print(report(scores))
    return 0


if __name__ == "__main__":
    sys.exit(main())
