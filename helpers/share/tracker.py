"""A report in the form that a tracker asks for (issue.yaml), filled from typed facts alone.

It says who should be asked where the tracker's project is not at fault, and leaves a marked place
for the error text, which its author reads and pastes. What is not known says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from helpers.ground.shapes import Verdict
from helpers.judge.evidence import CaseEvidence
from helpers.look import rocm
from helpers.look.bundle import Bundle
from helpers.tell import tables
from helpers.tell.message import printed_anew
from helpers.tell.shown import Shown
from helpers.tell.verdict import code, label

from . import public, verdict_facts
from .box_facts import (
    NOT_READ,
    PublicBox,
    filled_readings,
    gpu_names,
    versions,
)
from .verdict_facts import TABLE

TRACKERS = tuple(TABLE["trackers"])
MOST_ROWS = 24
MOST_NUMBERS = 12
MOST_STEPS = 3
UNTOLD = "Out of GPU memory, cause not told by the evidence"
NO_STEPS = "No program was recorded, so put the smallest one that shows it here"
PASTE = "[paste the error text here, after you have read it: it may name people and paths]"
NO_BUNDLE = "not available because no evidence bundle of the box lies beside the verdict"
KEPT = "The evidence bundle stays with its owner, who can read single values from it on request."


@dataclass(frozen=True)
class Case:
    """What a report is about: a verdict, the box's bundle, and where the verdict was seen."""

    verdict: Verdict | None
    evidence: CaseEvidence = CaseEvidence()
    steps: tuple[str, ...] = ()

    @property
    def bundle(self) -> Bundle | None:
        """The evidence bundle of the box, where there is one."""
        return self.evidence.bundle


def issue_text(tracker: str, case: Case) -> str:
    """The report for one of TRACKERS. Raises ValueError for another."""
    if tracker not in TRACKERS:
        raise ValueError(f"tracker {tracker!r}: expected one of {', '.join(TRACKERS)}")
    row = TABLE["trackers"][tracker]
    title = UNTOLD
    if case.verdict:
        title = verdict_facts.headline(case.verdict)
    fields = {**_verdict_fields(case), **_box_fields(case.evidence), "error": _error(tracker, case)}
    body = TABLE["forms"][row["form"]].format_map(fields)
    head = f"<!-- For {row['where']}. Title: {title}\nRead it before you send it. -->"
    return re.sub(r"\s*\n\s*\n", "\n\n", f"{head}\n\n{body}")


def _error(tracker: str, case: Case) -> str:
    """What a report begins with: a place for the error text, the GPUs, whose fault it is not."""
    cause = verdict_facts.about_cause(case.verdict)
    if case.bundle:
        names = "; ".join(map(code, gpu_names(case.bundle))) or "the bundle shows none"
    else:
        names = NO_BUNDLE
    error = f"**Error:** {PASTE}"
    if case.evidence.messages:
        lines = [printed_anew(message) for message in case.evidence.messages[:MOST_STEPS]]
        error += f"\n\nIts numbers, printed anew:\n{_fence(lines)}"
    parts = [error, f"**GPU:** {names}"]
    if tracker not in cause["to"]:
        parts.append(f"**Not a fault of this tracker's project:** ask {cause['instead']}.")
    if case.bundle and case.bundle.kind != "live":
        filled = f"{filled_readings(case.bundle)} of its {len(case.bundle.items)} readings"
        parts.append(
            f"The box is a {case.bundle.kind} one: {filled} were printed by no machine;"
            " the evidence from them is marked (reconstructed)."
        )
    return "\n\n".join(parts)


def _verdict_fields(case: Case) -> dict[str, str]:
    """The fields that a verdict fills."""
    verdict = case.verdict
    cause = verdict_facts.about_cause(verdict)
    steps = f"{NO_STEPS}."
    if case.steps:
        seen_in = "; ".join(map(code, case.steps[:MOST_STEPS]))
        steps = f"{NO_STEPS}; seen with VRAM Casebook in {seen_in}."
    nowhere = "not available because the evidence does not point to one component"
    fields = {
        "seen": "**Seen:** not available because no run came to a verdict",
        "expected": f"**Expected:** {cause['expected']}",
        "component": cause.get("component", nowhere),
        "steps": steps,
        "evidence": "",
    }
    if verdict:
        fields["seen"] = f"**Seen:** {verdict_facts.headline(verdict)} ({label(verdict)})."
        fields["evidence"] = "\n".join(["Evidence:", *_evidence(verdict, case.bundle)])
    return fields


def _evidence(verdict: Verdict, bundle: Bundle | None) -> list[str]:
    """The numbers that the verdict rests on, and what it leaves open, as items of a list."""
    lines = []
    for number in verdict_facts.numbers(verdict, bundle)[:MOST_NUMBERS]:
        line = f"- {number.speaks}: {code(number.value)}"
        if number.source:
            line += f" from {code(number.source)}"
        if number.filled_in:
            line += " (reconstructed)"
        lines.append(line)
    lines += [f"- still open: {line}" for line in verdict_facts.still_open(verdict)]
    return lines or ["- no number"]


def _box_fields(evidence: CaseEvidence) -> dict[str, str]:
    """The fields that a bundle fills; without one each says so."""
    bundle = evidence.bundle
    if bundle is None:
        missing = "gpus gpu_items os cpu ram kernel cmdline rocm rocminfo driver versions no_log"
        fields = dict.fromkeys(missing.split(), NO_BUNDLE)
        return {
            **fields,
            "gpu_items": f" - GPU: {NO_BUNDLE}",
            "memory": "",
            "log": "",
            "attached": "",
        }
    about = versions(bundle)
    names = gpu_names(bundle) or ["the bundle shows no GPU"]
    kinds = [agent.name.show() for agent in rocm.agents(bundle) if agent.kind == "gpu"]
    agents = [kind for kind in kinds if public.is_gfx(kind)]
    rocminfo = "not available because it names no GPU"
    if agents:
        rocminfo = f"it names {', '.join(agents)}"
    driver = about["amdgpu"]
    if driver == NOT_READ:
        driver = "N/A (in-tree driver)"
    numbered = public.Names()
    rules = public.rules(numbered)
    box = PublicBox(evidence, bundle, numbered)
    log_view = box.events().passing(rules)
    log = {"log": "", "no_log": "not available because no such line was captured"}
    if log_view.cells:
        log = {"log": _fenced(log_view), "no_log": ""}
    views = [tables.pools_table(box.pools), tables.holders_table(box.cards)]
    memory = [_fenced(view.passing(rules).without("source")) for view in views]
    release_lines = [f"{name}: {about[field]}" for name, field in TABLE["versions"].items()]
    release_lines.append(f"GPU models and configuration: {'; '.join(names)}")
    return {
        "gpus": "\n".join(map(code, names)),
        "gpu_items": "\n".join(f" - GPU: {code(name)}" for name in names),
        "os": code(about["distribution"]),
        "cpu": code(about["cpu"]),
        "ram": code(about["ram"]),
        "kernel": code(about["kernel"]),
        "cmdline": code(about["kernel_parameters"]),
        "driver": driver,
        "rocm": f"{code(about['rocm'])}; torch for HIP {code(about['hip'])}",
        "rocminfo": rocminfo,
        "versions": _fence(release_lines),
        "memory": "\n\n".join(memory),
        "attached": KEPT,
        **log,
    }


def _fenced(view: Shown) -> str:
    """A table as a block of text under its title."""
    lines = view.text().splitlines()
    return f"{view.title}:\n{_fence(lines[:MOST_ROWS])}"


def _fence(lines: list[str]) -> str:
    return "\n".join(["```text", *lines, "```"])
