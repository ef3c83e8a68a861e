"""The cause of a failure with its evidence, or what is missing to name it.

Every known failure is scored on its own from the signals at hand and the best of each label is compared: no order of rules,
of signals or of texts decides anything. Two causes that score alike are ``cannot-tell`` with both as alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.judge.obstacles import obstacles
from helpers.look.reading import Reading, seen
from helpers.run.shapes import Alternative, Confidence, Evidence, Missing, NextStep, Verdict

from .box_signals import box_signals
from .failures import FAILURES, HOLDERS, Failure
from .oom_message import arithmetic
from .settings_audit import audit, audit_box
from .signals import CaseEvidence, Signal, message_signals, texts, word_signals
from .totals import total_signals

LEAST, LEAST_TOLD, MARGIN, LIKELY, CONFIRMED = 1.2, 0.5, 0.2, 2.0, 3.0
"""Scores: below LEAST nothing is named (LEAST_TOLD where only the narrative speaks); LIKELY and CONFIRMED need hard signals."""
MESSAGE = Missing(reading="The error message of the failing program",
                  how="run it once more and keep the whole text from 'out of memory' on")
LOOK = Missing(reading="A look at the box while it fails", how="python3 -m helpers capture")
NO_EVIDENCE = CaseEvidence()
HELD = ("external-holder", "stale-holder", "driver-leak")


@dataclass(frozen=True)
class Scored:
    """One known failure and what speaks for and against it here."""

    failure: Failure
    score: float
    hard: bool
    confidence: Confidence
    speaks_for: tuple[Signal, ...]
    against: tuple[Signal, ...]


def diagnose(evidence: CaseEvidence) -> Verdict:
    """The verdict on what was handed over. Never raises on odd evidence; says ``cannot-tell`` where it does not decide."""
    return verdict_of(signals(evidence), evidence)


def signals(evidence: CaseEvidence) -> tuple[Signal, ...]:
    """Every signal in the evidence, from all its parts."""
    found = [*word_signals(evidence), *message_signals(evidence.messages), *total_signals(evidence), *_versions(evidence),
        *_targets(evidence),
             *_container(evidence), *_variables(evidence), *_plain(evidence)]
    if evidence.bundle is not None:
        found += box_signals(evidence.bundle, evidence.messages)
    return tuple(found)


def scores(found: Iterable[Signal]) -> list[Scored]:
    """Every failure whose needs are met, best first; equal scores in the order of their ids."""
    by_name: dict[str, list[Signal]] = {}
    for signal in found:
        by_name.setdefault(signal.name, []).append(signal)
    rows = [row for row in (_score(failure, by_name) for failure in FAILURES) if row is not None]
    return sorted(rows, key=lambda row: (-row.score, row.failure.id))


def _score(failure: Failure, by_name: dict[str, list[Signal]]) -> Scored | None:
    needed: list[Signal] = []
    for group in failure.needs:
        met = [signal for name in group for signal in by_name.get(name, ())]
        if not met:
            return None
        needed += met
    hard = all(any(s.hard for name in group for s in by_name.get(name, ())) for group in failure.needs)

    def weight(name: str, points: float) -> float:
        return points if any(s.hard for s in by_name[name]) else points / 2

    plus = {name: points for name, points in failure.speaks_for.items() if name in by_name}
    minus = {name: points for name, points in failure.against.items() if name in by_name and points}
    score = failure.base * (1 if hard else 0.5) + sum(weight(*row) for row in plus.items()) - sum(weight(*row)
        for row in minus.items())
    proven = hard and any(s.hard for name in failure.decisive for s in by_name.get(name, ()))
    confidence: Confidence = "weak"
    if hard and score >= LIKELY:
        confidence = "confirmed" if proven and score >= CONFIRMED and not minus else "likely"
    speaking = needed + [s for name in plus for s in by_name[name] if s not in needed]
    return Scored(failure, round(score, 4), hard, confidence, tuple(speaking), tuple(s for name in minus
        for s in by_name[name]))


def verdict_of(found: tuple[Signal, ...], evidence: CaseEvidence = NO_EVIDENCE) -> Verdict:
    """The verdict that these signals support."""
    ranked = scores(found)
    best: dict[str, Scored] = {}
    for row in ranked:
        best.setdefault(row.failure.label, row)
    order = sorted(best.values(), key=lambda row: (-row.score, row.failure.label))
    top = order[0] if order else None
    least = LEAST if top and top.hard else LEAST_TOLD
    others = [row for row in order[1:] if row.score >= min(LEAST_TOLD, top.score / 3 if top else 0)]
    if top is None or top.score < least or (others and top.score - others[0].score < MARGIN):
        return _cannot_tell(order, found, evidence)
    alternatives = [Alternative(cause=row.failure.label,
                                confidence="likely" if row.confidence != "weak" and top.score - row.score < 1 else "weak")
                    for row in others[:4]]
    if top.confidence == "confirmed" and others and top.score - others[0].score < 1 and others[0].confidence != "weak":
        confidence: Confidence = "likely"
    else:
        confidence = top.confidence
    what, command, precondition, blast = top.failure.remedy
    asked = [top.failure.experiment] + [row.failure.experiment for row in others[:2]]
    missing = [] if confidence == "confirmed" else [Missing(reading=r, how=h) for r, h in dict.fromkeys(asked)]
    # Ids of evidence are the signals' names; what decided stands first, then the sums of a message.
    rows = _evidence(top.speaks_for) + _evidence(_apart(found, top)) + _evidence(sums(evidence))
    return Verdict(cause=top.failure.label, confidence=confidence, summary=_summary(top, found), alternatives=alternatives,
                   evidence=_unique(rows) or [_nothing_read()], against=_unique(_evidence(top.against), "against-"),
                   missing=missing, next_step=_own_fix(top, evidence) or NextStep(
                       what=what, command=command, precondition=precondition, blast_radius=blast or "none"))


def _own_fix(top: Scored, evidence: CaseEvidence) -> NextStep | None:
    """The line that removes what stands in the way on this very box, where that is the cause."""
    if top.failure.label not in ("permission", "config-ineffective") or evidence.bundle is None:
        return None
    way = next((way for way in obstacles(evidence.bundle) if way.fix and (way.cause == "variable")
                == (top.failure.label == "config-ineffective")), None)
    return None if way is None else NextStep(
        what=way.says[:1].upper() + way.says[1:], command=way.fix,
        precondition="read what it changes; it is printed here and never run",
        blast_radius="the user's access rights, the container's start, or this shell's variables")


def _cannot_tell(order: list[Scored], found: tuple[Signal, ...], evidence: CaseEvidence) -> Verdict:
    near = [row for row in order[:4] if row.score >= LEAST_TOLD / 2]
    missing = [Missing(reading=r, how=h) for r, h in dict.fromkeys(row.failure.experiment for row in near)]
    if not evidence.messages:
        missing.append(MESSAGE)
    if evidence.bundle is None:
        missing.append(LOOK)
    missing = missing or [Missing(reading=HOLDERS[0], how=HOLDERS[1])]
    rows = _evidence(sums(evidence)) + _evidence(found[:12] if not near else [s for row in near for s in row.speaks_for])
    summary = ("The evidence leaves open: " + ", ".join(dict.fromkeys(row.failure.label for row in near)) + "." if near
               else "Nothing that was handed over explains a failure.")
    if evidence.unused:
        summary += " " + evidence.unused[:200]
    return Verdict(cause="cannot-tell", confidence="weak", summary=summary, missing=missing,
                   evidence=_unique(rows) or [_nothing_read()], alternatives=[Alternative(cause=row.failure.label,
                   confidence="weak") for row in near],
                   next_step=NextStep(what=f"Take the reading that decides: {missing[0].reading}", command=missing[0].how,
                   precondition="the program is running or has just failed"))


def _apart(found: tuple[Signal, ...], top: Scored) -> list[Signal]:
    """A second bug in the same text: an assertion or a wrong index is no consequence of memory."""
    apart = ("device_assert", "wrong_index", "expandable_refused", "memory_fault")
    return [s for s in found if s.name in apart and s.hard and s not in top.speaks_for]


def _summary(top: Scored, found: tuple[Signal, ...]) -> str:
    separate = _apart(found, top)
    words = top.failure.explanation
    if separate:
        words += " Beside it, and not caused by it: " + "; ".join(dict.fromkeys(s.says for s in separate)) + "."
    return words


def sums(evidence: CaseEvidence) -> list[Signal]:
    """The arithmetic of the first message with numbers, line by line, as it is shown."""
    for m in evidence.messages:
        if m.capacity or m.allowed:
            lines = arithmetic(m).lines[:8]
            return [Signal(f"sum_{number}", seen("by the message's numbers", "text", "error text"), line[:1].upper() + line[1:],
                           "message") for number, line in enumerate(lines, 1)]
    return []


def _evidence(found: Iterable[Signal]) -> list[Evidence]:
    return [Evidence(id=s.name, reading=s.reading, says=s.says + (" (told, not measured)"
        if not s.hard else "")) for s in found]


def _unique(rows: list[Evidence], prefix: str = "") -> list[Evidence]:
    """The rows under ids of their own, each observation once."""
    kept: list[Evidence] = []
    counted: dict[str, int] = {}
    for row in rows:
        if any(row.reading == other.reading and row.says == other.says for other in kept):
            continue
        counted[row.id] = counted.get(row.id, 0) + 1
        number = counted[row.id]
        kept.append(Evidence(id=prefix + row.id.replace("_", "-") + (f"-{number}" if number > 1 else ""), reading=row.reading,
                             says=row.says))
    return kept


def _nothing_read() -> Evidence:
    return Evidence(id="evidence", reading=Reading(0, "count", "ok", "", "evidence", ""), says="Nothing in it could be used")


# -- signals that need more than one text ---------------------------------------------------------------------------------
_WHEEL = re.compile(r"\b(torch|torchvision|torchaudio)\b[ =:(]{1,4}v?(\d)\.(\d{1,2})", re.IGNORECASE)
_GFX = re.compile(r"\bgfx([0-9]{2,4}[0-9a-f])\b")


def _versions(evidence: CaseEvidence) -> list[Signal]:
    """Wheels of different releases: torchaudio has torch's number; torchvision 0.(N+15) goes with 2.N, 0.(N+1) with 1.N."""
    seen_versions: dict[str, tuple[int, int]] = {}
    source = ""
    for origin, name, text in texts(evidence):
        if origin in ("tool", "message", "environment"):
            for package, major, minor in _WHEEL.findall(text):
                if package.lower() not in seen_versions:
                    seen_versions[package.lower()], source = (int(major), int(minor)), name
    torch = seen_versions.get("torch")
    if torch is None:
        return []
    vision = (0, torch[1] + 15) if torch[0] == 2 else (0, torch[1] + 1)
    audio = torch if torch[0] == 2 else (0, torch[1])
    odd = [(package, got) for package, wanted in (("torchaudio", audio), ("torchvision", vision))
           for got in [seen_versions.get(package)] if got and got != wanted]
    return [Signal("wheels_differ", seen(f"{package} {got[0]}.{got[1]}", "text", source),
                   f"It is not the one of torch {torch[0]}.{torch[1]}", "tool")
            for package, got in odd]


def _targets(evidence: CaseEvidence) -> list[Signal]:
    """The chip is not in a list of the build's targets."""
    chip = _GFX.search(evidence.fact("gfx").split(" as ")[0])
    if chip is None:
        return []
    for origin, source, text in texts(evidence):
        if origin in ("tool", "message") and re.search(r"target|arch|support|built", text[:200], re.IGNORECASE):
            listed = set(_GFX.findall(text))
            if listed and chip[1] not in listed and (len(listed) > 1 or "target" in text[:200]):
                return [Signal("gfx_not_in_targets", seen(chip.group(), "text", source),
                               f"The targets are gfx{', gfx'.join(sorted(listed)[:12])}", "tool")]
    return []


def _container(evidence: CaseEvidence) -> list[Signal]:
    """How a container was started: devices passed without the group that owns them, or not passed."""
    found: list[Signal] = []
    for origin, source, text in texts(evidence):
        if origin not in ("tool", "message") or not re.search(r"\b(?:docker|podman|nerdctl)\b|--device", text):
            continue
        if "--privileged" in text or ("/dev/kfd" not in text and "/dev/dri" not in text):
            continue
        groups = re.findall(r"--group-add[= ]+(\S{1,40})", text)
        if "/dev/kfd" in text and groups and not any(g in ("render", "keep-groups") or g.isdigit() for g in groups):
            found.append(Signal("group_missing_in_run", seen(" ".join(groups), "text", source),
                                "The devices are passed, the group of the render nodes is not", origin))
        if ("/dev/kfd" in text) != ("/dev/dri" in text):
            found.append(Signal("device_missing_in_run", seen(text[:120], "text", source),
                                "One of /dev/kfd and /dev/dri is not passed", origin))
    container = evidence.fact("container")
    if container and container.lower() not in ("none", "no"):
        found.append(Signal("in_container", seen(container[:80], "text", "container"), "It runs in a container", "environment"))
    return found


def _variables(evidence: CaseEvidence) -> list[Signal]:
    """Settings that cannot act, from the environment's variables."""
    names = {"misspelt": "setting_misspelt", **dict.fromkeys(("ineffective", "unsupported", "too_late"), "setting_inert")}
    if evidence.bundle is not None:
        return [Signal(names[f.verdict], seen(f"{f.name}={f.value}"[:160], "text", "environment"), f.says, "bundle")
                for f in audit_box(evidence.bundle) if f.verdict in names]
    if not evidence.variables:
        return []
    amd = "rocm" in evidence.fact("torch").lower() or evidence.fact("rocm")
    build = "rocm" if amd else "cuda" if evidence.fact("cuda") else ""
    return [Signal(names[f.verdict], seen(f"{f.name}={f.value}"[:160], "text", f.source or "variables"), f.says, "environment")
            for f in audit(dict(evidence.variables), evidence.fact("torch"), build, evidence.fact("gfx")) if f.verdict in names]


_OOM_WORDS = re.compile(r"out[- ]of[- ](?:GPU[- ]|device[- ])?memory|OutOfMemory|\bOOM\b|MemoryAllocation|"
                        r"RESOURCE_EXHAUSTED|failed to allocate|"
                        r"runs? out of (?:gpu |video )?(?:memory|vram)", re.IGNORECASE)
_FREE_WORDS = re.compile(r"\b\d+(?:\.\d+)? ?[GT]i?B[^.\n]{0,30} free\b|"
                         r"\b(?:tens|plenty|most|lots|dozens)\b[^.\n]{0,30}\bfree\b", re.IGNORECASE)


def _plain(evidence: CaseEvidence) -> list[Signal]:
    """Out of memory in words, wherever it is said; without numbers it names no cause."""
    found: list[Signal] = []
    numbers = any(m.capacity for m in evidence.messages)
    for origin, source, text in texts(evidence):
        match = _OOM_WORDS.search(text)
        if match:
            found.append(Signal("oom_words", seen(match.group(), "text", source), "Memory ran out, by these words", origin))
            if not numbers:
                found.append(Signal("plain_oom", seen(match.group(), "text", source), "The message gives no numbers", origin))
            free = _FREE_WORDS.search(text)
            if free and origin == "message" and not numbers:
                found.append(Signal("free_words", seen(free.group(), "text", source), "Much is said to be free at the failure",
                                    origin))
    return found


# -- recovery ---------------------------------------------------------------------------------------------------------------
def recovery(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions. Empty for other causes."""
    if verdict.cause not in HELD and not any(other.cause in HELD for other in verdict.alternatives):
        return ()
    nvidia = bool(re.search(r"nvidia|cuda", " ".join(text for _, _, text in texts(evidence))[:20_000], re.IGNORECASE)) or (
        evidence.bundle is not None and evidence.bundle.read("/proc/driver/nvidia/version").ok)
    steps = [NextStep(what="Stop the holder: SIGTERM, then give it 60 s", command="kill -TERM PID",
                      precondition="its PID as the host sees it; it is yours",
                      blast_radius="its unsaved work; SIGKILL inside a GPU call can leave the memory behind"),
             NextStep(what="Restart the container the holder lives in, with an init that reaps",
                      command="docker restart CONTAINER   (later: docker run --init ...)",
                      precondition="the holder is in that container", blast_radius="everything in the container")]
    if nvidia:
        steps.append(NextStep(what="Reset the GPU", command="sudo nvidia-smi --gpu-reset -i N",
                              precondition="root, no process on it, not the display's GPU, no NVLink peers in use",
                              blast_radius="every context on the card; it may say 'not supported' on consumer cards"))
    else:
        steps.append(NextStep(what="Reset the GPU", command="sudo rocm-smi --gpureset -d N",
                              precondition="root and /sys/kernel/debug/dri/N/amdgpu_gpu_recover; in a container, without "
                                  "debugfs "
                              "or under lockdown it says 'not supported on the given system', whatever the chip",
                              blast_radius="every context on the card, its desktop; VRAM is lost; a power cycle may follow"))
        steps.append(NextStep(what="Unload and load the driver", command="sudo modprobe -r amdgpu && sudo modprobe amdgpu",
                              precondition="headless, nothing has the device open",
                              blast_radius="the display; it has crashed machines, and does not clear dangling dma-buf "
                                  "references"))
    steps.append(NextStep(what="Reboot; after a firmware wedge switch the power off", command="sudo reboot",
                          precondition="the steps above did not help", blast_radius="the whole machine"))
    return tuple(steps)
