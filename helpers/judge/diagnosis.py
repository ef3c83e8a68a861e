"""The cause of a failure with its evidence, or what is missing to name it.

Every entry of the catalogue is weighed on its own by the observations at hand, and the best of each cause is compared: no order
of entries, observations or texts decides anything. Two causes that weigh alike are ``cannot-tell`` with both as alternatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial

from helpers.grammar import lines
from helpers.judge import sentence, table
from helpers.judge.catalogue import Failure, failures, fill, names_of, next_step, to_fits
from helpers.judge.evidence import CaseEvidence, Observation, texts
from helpers.judge.observations import observe
from helpers.judge.owner import account
from helpers.look.messages import Quantity
from helpers.shapes import Alternative, Confidence, Evidence, Missing, NextStep, Verdict, seen

MEASURED, SAID, HINT = 2.0, 1.0, 0.7
SUFFICIENT, PROOF, NEAR = 1.0, 3.0, 1.0
KIND = {"contrast": 0.5, "symptom": 0.0, "oddity": -0.75}
POINTS = {"strong": 1, "weak": 0.5, "refuted_by": -2, "strong_against": -1.5, "weak_against": -0.5}
LEAST, MARGIN = 0.8, 0.2
"""What words weigh: a measured need 2, a said one 1, a hint 0.7; an observation its POINTS, half of them where it is only
said. A cause that weighs less than LEAST is none, one that is not MARGIN above the next leaves it open."""
SUMS = "the numbers of the error text"
APART = ("assert", "fault", "wrong-index", "option-refused")
HELD = ("external-holder", "stale-holder", "driver-leak")
_say = partial(sentence, "diagnosis", "says")
NO_EVIDENCE = CaseEvidence()


@dataclass(frozen=True)
class Weighed:
    """One known failure, how much speaks for it here, and how sure that is."""

    failure: Failure
    weight: float
    confidence: Confidence
    speaks_for: tuple[Observation, ...]
    against: tuple[Observation, ...]


def diagnose(evidence: CaseEvidence) -> Verdict:
    """The verdict on what was handed over. Never raises on odd evidence; says ``cannot-tell`` where it does not decide."""
    from helpers.look.kernel_log import not_whole  # only a captured box has a log

    verdict = verdict_of(observe(evidence), evidence)
    cut = not_whole(evidence.bundle) if evidence.bundle is not None else ""
    return replace(verdict, summary=f"{verdict.summary} {cut}") if cut else verdict


def weigh(found: Iterable[Observation]) -> list[Weighed]:
    """Every failure whose needs are met, the heaviest first; equal weights in the order of their ids."""
    by_name: dict[str, list[Observation]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    rows = [row for row in (_weigh(failure, by_name) for failure in failures()) if row]
    return sorted(rows, key=lambda row: (-row.weight, row.failure.id))


def _weigh(failure: Failure, by_name: dict[str, list[Observation]]) -> Weighed | None:
    def there(*columns: str) -> list[Observation]:
        names = (name for column in columns for name in getattr(failure, column))
        return [one for name in names for one in by_name.get(name, ())]

    def points(column: str, each: float) -> float:
        names = [name for name in dict.fromkeys(getattr(failure, column)) if name in by_name]
        hard = [any(one.hard for one in by_name[name]) for name in names]
        return sum(each if measured else each / 2 for measured in hard)

    groups = [[one for name in group for one in by_name.get(name, ())] for group in failure.needs]
    if not all(groups) or any(one.hard for one in there("refuted_by")):
        return None
    needed, measured = sum(groups, []), all(any(one.hard for one in group) for group in groups)
    supports, against = (
        there("strong", "weak"),
        there("refuted_by", "strong_against", "weak_against"),
    )
    sufficient = [one for one in there("sufficient") if one.hard]
    proofs = [one for one in there("proof") if one.proof and one.hard]
    total = MEASURED if measured else SAID
    if failure.base == "hint":
        total = HINT if measured else HINT / 2
    total += sum(points(column, each) for column, each in POINTS.items())
    total += (SUFFICIENT if sufficient else 0) + (PROOF if proofs else 0) + KIND[failure.kind]
    speaking = needed + [one for one in supports if one not in needed]
    # DESIGN rule 6: proof for confirmed; two measured observations, or an exclusion by arithmetic, for likely.
    confidence: Confidence = "weak"
    hard_against = [one for one in against if one.hard]
    independent = {one.name for one in speaking if one.hard}
    two = len(independent) >= 2 and failure.base != "hint"
    strong = any(one.name in failure.strong_against for one in hard_against)
    if proofs and not hard_against and not any(one.filled for one in proofs):
        confidence = "confirmed"
    elif measured and (sufficient or two) and not strong:
        confidence = "likely"
    return Weighed(failure, round(total, 4), confidence, tuple(speaking), tuple(against))


def verdict_of(found: tuple[Observation, ...], evidence: CaseEvidence = NO_EVIDENCE) -> Verdict:
    """The verdict that these observations support."""
    best: dict[str, Weighed] = {}
    for row in weigh(found):
        best.setdefault(row.failure.cause, row)
    order = sorted(best.values(), key=lambda row: (-row.weight, row.failure.cause))
    top = order[0] if order else None
    others = [row for row in order[1:] if top and row.weight >= max(LEAST, top.weight / 3)]
    gap = top.weight - others[0].weight if top and others else NEAR
    if top is None or top.weight < LEAST or gap < MARGIN:
        return _open(order, found, evidence)
    confidence = top.confidence
    if confidence == "confirmed" and gap < NEAR and others[0].confidence != "weak":
        confidence = "likely"
    asked = [top.failure.decides] + [row.failure.decides for row in others[:2]]
    behind = [row for row in order[1:] if row.weight >= LEAST / 2]
    if not others:
        asked += [row.failure.decides for row in behind[:1]]
    missing = [] if confidence == "confirmed" else _missing(asked, evidence) or [_reading("look")]
    shown = behind if missing else others
    # A second fault in the same text: an assertion or a wrong index is no consequence of memory.
    apart = [one for one in found if one.name in APART and one.hard and one not in top.speaks_for]
    # What was cached and would have met the request speaks against a card that is too small, however little it weighs.
    cached = [one for one in found if one.name == "stranded-possible" and one not in top.against]
    against = [*top.against, *(cached if top.failure.cause == "true-capacity" else ())]
    summary = f"{top.failure.title.rstrip('.')}. {top.failure.mechanism}"
    return Verdict(
        cause=top.failure.cause,
        confidence=confidence,
        title=top.failure.title,
        summary=summary + (_say("beside", says=_listed(apart)) if apart else ""),
        alternatives=[_alternative(row, top) for row in shown[:4]],
        evidence=_unique(_evidence((*top.speaks_for, *apart)) + _sums(evidence)),
        against=_unique(_evidence(against), "against-"),
        missing=missing,
        next_step=next_step(top.failure, names_of(evidence, found), evidence),
    )


def _alternative(row: Weighed, top: Weighed | None = None) -> Alternative:
    near = top is not None and row.confidence != "weak" and top.weight - row.weight < NEAR
    return Alternative(row.failure.cause, "likely" if near else "weak")


def _missing(asked: Iterable[tuple[str, str, str]], evidence: CaseEvidence) -> list[Missing]:
    """The readings that would decide, without those that were just given."""
    rows = dict.fromkeys(row for row in asked if not _given(row[0], evidence))
    return [Missing(reading=reading, how=how) for _, reading, how in rows]


def _given(reading: str, evidence: CaseEvidence) -> bool:
    """Whether a reading, by its name in failures.json, is in what was handed over."""
    if reading == "kernel-log" and evidence.bundle is not None:
        from helpers.look.kernel_log import readable  # only a captured box has a log

        return readable(evidence.bundle).ok
    if reading == "kernel-log":
        return any(m.row in {line.id for line in lines(log=True)} for m in evidence.messages)
    return reading == "ceilings" and evidence.bundle is not None


def _open(order: list[Weighed], found: tuple[Observation, ...], evidence: CaseEvidence) -> Verdict:
    """Cannot-tell: what was read, the causes left in order, the one reading that decides."""
    near = [row for row in order if row.weight >= LEAST / 2][:3]
    if evidence.bundle is not None and not (near or evidence.messages or evidence.error_text):
        return _healthy(found, evidence.bundle.box if evidence.bundle.kind != "live" else "live")
    missing = _missing((row.failure.decides for row in near), evidence)
    if not evidence.messages:
        missing.append(_reading("message"))
    if evidence.bundle is None and len(missing) < 3:
        missing.append(_reading("look"))
    missing = missing or [_reading("moment")]
    rows = _evidence([one for row in near for one in row.speaks_for] or list(found[:12]))
    rows += _sums(evidence)
    causes = "; ".join(row.failure.title.rstrip(".") for row in near)
    summary = _say("no cause", says=_listed(found[:3])) if found else _say("nothing")
    summary = _say("left open", causes=causes) if near else summary
    if evidence.unused and not found:
        summary += f" {evidence.unused[:1].upper()}{evidence.unused[1:200].rstrip('.')}."
    if not rows:  # how much text was read, where nothing of it could be used
        length = sum(len(text) for _, _, text in texts(evidence))
        reading = seen(f"{length} characters", "text", "the text handed over")
        rows = [Evidence("read", reading, _say("unused"))]
    what, when = _say("decides", reading=missing[0].reading), _say("decides when")
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=_say("open title"),
        summary=summary,
        alternatives=[_alternative(row) for row in near],
        evidence=_unique(rows),
        against=_unique(_evidence(one for row in near for one in row.against), "against-"),
        missing=missing,
        next_step=NextStep(what, to_fits(missing[0].how, names_of(evidence, found)), when),
    )


def _reading(name: str) -> Missing:
    """A reading that would decide, by its name in diagnosis.json."""
    return Missing(**table("diagnosis")["missing"][name])


def _listed(found: Iterable[Observation]) -> str:
    """What the observations say, each once."""
    return "; ".join(dict.fromkeys(one.says.rstrip(".") for one in found))


def _healthy(found: tuple[Observation, ...], box: str) -> Verdict:
    """Nothing failed and nothing is out of the ordinary on this box; what was looked at is the evidence, what is free first."""
    rooms = [one for one in found if one.name.startswith("free:")]
    free, missing = ", ".join(one.reading.show() for one in rooms), _reading("failure")
    missing = replace(missing, how=missing.how.replace(" live ", f" {box} "))
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=_say("free", free=free) if free else _say("healthy title"),
        summary=_say("healthy"),
        evidence=_unique(_evidence([*rooms, *(one for one in found if one.hard)])),
        missing=[missing],
        next_step=NextStep(_say("if it fails"), missing.how, _say("whole text")),
    )


def _sums(evidence: CaseEvidence) -> list[Evidence]:
    """The account of the first message with numbers, line by line, as it is shown."""
    for message in evidence.messages:
        if message.capacity or message.allowed:
            reading = seen(message.words[:80], "text", SUMS)
            sums = [line[:1].upper() + line[1:] for line in account(message).lines[:8]]
            return [Evidence(f"sum-{at}", reading, line) for at, line in enumerate(sums, 1)]
    printed = next((m for m in evidence.messages if m.numbers), None)
    if printed is None:
        return []
    sizes = [(field.name, getattr(printed, field.name)) for field in fields(printed)]
    shown = [(name.replace("_", " "), s.text) for name, s in sizes if isinstance(s, Quantity)]
    says = _say("printed", sizes=", ".join(f"{name} {text}" for name, text in shown))
    return [Evidence("sum-1", seen(printed.words[:80], "text", SUMS), says)] if shown else []


def _evidence(found: Iterable[Observation]) -> list[Evidence]:
    def mark(one: Observation) -> str:
        return " (filled in)" if one.filled else "" if one.hard else " (said, not measured)"

    return [Evidence(id=one.name, reading=one.reading, says=one.says + mark(one)) for one in found]


def _unique(rows: list[Evidence], prefix: str = "") -> list[Evidence]:
    """The rows under ids of their own, each observation once."""
    kept: list[Evidence] = []
    counted: Counter[str] = Counter()
    for row in rows:
        if all(row.reading != other.reading or row.says != other.says for other in kept):
            counted[row.id] += 1
            more = f"-{counted[row.id]}" if counted[row.id] > 1 else ""
            kept.append(replace(row, id=prefix + row.id.replace(":", "-") + more))
    return kept


def recovery(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions. Empty for other causes.

    The steps are data: ladder.json.
    """
    causes = {verdict.cause}
    if verdict.cause == "cannot-tell":
        causes = {other.cause for other in verdict.alternatives[:1]}
    if not causes & set(HELD):
        return ()
    said = " ".join(text for _, _, text in texts(evidence))[:20_000]
    driver = evidence.bundle.read("/proc/driver/nvidia/version") if evidence.bundle else None
    nvidia = re.search(r"nvidia|cuda", said, re.IGNORECASE) or (driver is not None and driver.ok)
    names, steps = names_of(evidence, ()), []
    for row in table("ladder"):
        vendor, step = row["vendor"], {key: row[key] for key in row if key != "vendor"}
        if vendor in ("", "NVIDIA" if nvidia else "AMD"):
            steps.append(NextStep(**{**step, "command": fill(step["command"], names)}))
    return tuple(steps)
