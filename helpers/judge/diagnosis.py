"""The cause of a failure with its evidence, or what is missing to name it.

Every entry of the catalogue is weighed on its own by the observations at hand, and the best of
each cause is compared: no order of entries, observations or texts decides anything. Two causes
that weigh alike are ``cannot-tell`` with both as alternatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

from helpers.ground.shapes import (
    CAUSES,
    Alternative,
    Cause,
    Confidence,
    Evidence,
    Missing,
    NextStep,
    Verdict,
    seen,
)
from helpers.ground.units import GIB, Quantity, show_bytes
from helpers.judge import form, sentence, table
from helpers.judge.evidence import CaseEvidence, Observation, texts, vendor_of
from helpers.judge.observations import observe
from helpers.judge.owner import POSSIBLE, Account, account
from helpers.judge.posted import processes
from helpers.look.wordings import lines

MEASURED = 2.0
SAID = 1.0
HINT = 0.7
SUFFICIENT = 1.0
PROOF = 3.0
NEAR = 1.0
KIND = {"contrast": 0.5, "symptom": 0.0, "oddity": -0.75}
POINTS = {"strong": 1, "weak": 0.5, "refuted_by": -2, "strong_against": -1.5, "weak_against": -0.5}
LEAST = 0.8
MARGIN = 0.2
"""What words weigh: a measured need 2, a said one 1, a hint 0.7; an observation its POINTS,
half of them where it is only said. A cause that weighs less than LEAST is none, one that is
not MARGIN above the next leaves it open.
"""
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
    """The verdict on what was handed over.

    Never raises on odd evidence; says ``cannot-tell`` where it does not decide.
    """
    from helpers.look.kernel_log import not_whole  # only a captured box has a log

    verdict = verdict_of(observe(evidence), evidence)
    cut = not_whole(evidence.bundle) if evidence.bundle is not None else ""
    return replace(verdict, summary=f"{verdict.summary} {cut}") if cut else verdict


def weigh(found: Iterable[Observation]) -> list[Weighed]:
    """Every failure whose needs are met, the heaviest first; equal weights in the order of
    their ids.
    """
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
    needed = sum(groups, [])
    measured = all(any(one.hard for one in group) for group in groups)
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
    # DESIGN rule 6: proof for confirmed; two measured observations, or an exclusion by
    # arithmetic, for likely.
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
    # What was cached and would have met the request speaks against a card that is too small,
    # however little it weighs.
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
    if near:
        summary = _say("left open", causes=causes)
    elif _is_prose_alone(evidence, found):
        summary = _say("prose")
    if evidence.unused and not found:
        summary += f" {evidence.unused[:1].upper()}{evidence.unused[1:200].rstrip('.')}."
    if not rows:  # how much text was read, where nothing of it could be used
        length = sum(len(text) for _, _, text in texts(evidence))
        reading = seen(f"{length} characters", "text", "the text handed over")
        rows = [Evidence("read", reading, _say("unused"))]
    what = _say("decides", reading=missing[0].reading)
    when = _say("decides when")
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=_say("open title"),
        summary=summary,
        alternatives=[_alternative(row) for row in near],
        evidence=_unique(rows),
        against=_unique(_evidence(one for row in near for one in row.against), "against-"),
        missing=missing,
        next_step=to_fits(NextStep(what, missing[0].how, when), names_of(evidence, found)),
    )


def _is_prose_alone(evidence: CaseEvidence, found: tuple[Observation, ...]) -> bool:
    """Whether words were handed over, and no line of them is one that a program prints."""
    if evidence.messages or not (evidence.error_text.strip() or evidence.narrative.strip()):
        return False
    return not any(observation.hard for observation in found)


def _reading(name: str) -> Missing:
    """A reading that would decide, by its name in diagnosis.json."""
    return Missing(**table("diagnosis")["missing"][name])


def _listed(found: Iterable[Observation]) -> str:
    """What the observations say, each once."""
    return "; ".join(dict.fromkeys(one.says.rstrip(".") for one in found))


def _healthy(found: tuple[Observation, ...], box: str) -> Verdict:
    """Nothing failed and nothing is out of the ordinary on this box; what was looked at is the
    evidence, what is free first.
    """
    rooms = [one for one in found if one.name.startswith("free:")]
    free = ", ".join(one.reading.show() for one in rooms)
    missing = _reading("failure")
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
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions.

    Empty for other causes.

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
    names = names_of(evidence, ())
    steps = []
    for row in table("ladder"):
        vendor = row["vendor"]
        step = {key: row[key] for key in row if key != "vendor"}
        if vendor in ("", "NVIDIA" if nvidia else "AMD"):
            steps.append(NextStep(**{**step, "command": fill(step["command"], names)}))
    return tuple(steps)


# The catalogue of known failures, read from failures.json: what must be seen, what speaks for
# and against it, what to do.
#
# To add one, copy an entry of the file: its keys are explained in ``Failure``. A test walks
# every entry and every name in it. What to do is filled in with this box's own numbers and
# names; for memory that somebody holds there is a ladder of steps (ladder.json).

KINDS = ("contrast", "symptom", "oddity")
BASES = ("plain", "hint")
POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
HOST_SIDES = ("host", "pinned", "shm", "cgroup", "commit")
UNKNOWN: dict[str, str] = table("diagnosis")["unknown"]
"""What stands in a command where the evidence has no such number or name; in a sentence its
[part] is left out.
"""


@dataclass(frozen=True)
class Remedy:
    """What to do: commands with placeholders in braces, if there are any, what must hold before
    it, and what it may harm.
    """

    what: str
    command: str
    precondition: str
    harm: str


@dataclass(frozen=True)
class Failure:
    """One known failure.

    ``kind``: symptom (it is what fails), oddity (something odd that may stand beside another
    failure), contrast (fails with X, works without X). ``needs``: groups of observations, of
    each group one must be there. ``sufficient``: of these one alone makes it likely, since it
    is an exclusion by arithmetic or the program's own statement of the cause. ``proof``: of
    these one that is a proof makes it confirmed. ``strong`` and ``weak`` support it;
    ``refuted_by`` ends it where measured, ``strong_against`` and ``weak_against`` speak against
    it. ``base`` hint: even measured it is only a hint. ``decides`` is the reading that would
    decide: its name, what it is, and how it is taken; ``source`` where the mechanism can be
    read.
    """

    id: str
    cause: Cause
    title: str
    mechanism: str
    needs: tuple[tuple[str, ...], ...]
    decides: tuple[str, str, str]
    remedy: Remedy
    source: str
    kind: str = "symptom"
    base: str = "plain"
    sufficient: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()
    strong: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()
    strong_against: tuple[str, ...] = ()
    weak_against: tuple[str, ...] = ()


@lru_cache(1)
def failures() -> tuple[Failure, ...]:
    """Every entry, in the order of the file, which decides nothing."""
    return tuple(_failure(row, table("failures")) for row in table("failures")["failures"])


def _failure(row: Mapping[str, Any], data: Mapping[str, Any]) -> Failure:
    known = {field.name for field in fields(Failure)}
    got: dict[str, Any] = dict(row)
    odd = sorted(set(got) - known)
    if odd:
        raise ValueError(f"failures.json, {row.get('id')}: unknown key {odd[0]}")
    got["decides"] = (row["decides"], *data["readings"][row["decides"]])
    got["remedy"] = Remedy(**data["remedies"][row["remedy"]])
    groups = data.get("groups", {})
    for key, value in got.items():
        if key == "needs":
            got[key] = tuple(_spread(group, groups) for group in value)
        elif isinstance(value, list):
            got[key] = _spread(value, groups)
    made = Failure(**got)
    if made.cause not in CAUSES or made.kind not in KINDS or made.base not in BASES:
        raise ValueError(f"failures.json, {made.id}: {made.cause}, {made.kind}, {made.base}")
    return made


def _spread(names: Any, groups: Mapping[str, Any]) -> tuple[str, ...]:
    """The names with each group (written in capitals) in its members."""
    return tuple(dict.fromkeys(one for name in names for one in groups.get(name, [name])))


def names_of(evidence: CaseEvidence, found: Iterable[Observation]) -> dict[str, str]:
    """The numbers and names of this box that a remedy may speak of; the first that gives a name
    counts.
    """
    got: dict[str, str] = {}
    rows = [*_of_messages(evidence), *_of_holders(evidence), *_of_observations(found)]
    rows.append(("chip", evidence.fact("gfx")))
    rows += [("server", match[0]) for match in form("server").finditer(evidence.error_text)]
    servers = table("diagnosis")["servers"]
    rows += [("server", one.program) for one in evidence.messages if one.program in servers]
    if any(one.name == "two-kinds-of-gpu" for one in found):
        from helpers.judge.box import visible_devices

        lines = (visible_devices(evidence.bundle, text) for _, _, text in texts(evidence))
        rows.append(("visible", next(filter(None, lines), "")))
    for name, words in rows:
        if words:
            got.setdefault(name, words)
    if any(one.name == "expandable-on" for one in found):
        got.pop("preset", None)
    return got


def fill(text: str, names: Mapping[str, str]) -> str:
    """The text with its placeholders filled in, without the [parts] whose number or name is not
    known.
    """
    part = r"\[([^\[\]]*\{([a-z]+)\}[^\[\]]*)\]"
    text = re.sub(part, lambda m: m[1] if m[2] in names else "", text)
    known = {**UNKNOWN, **names}
    return re.sub(r"\{([a-z]+)\}", lambda match: known.get(match[1], match[0]), text)


def _of_observations(found: Iterable[Observation]) -> Iterator[tuple[str, str]]:
    for one in found:
        words = one.reading.show()
        kind = one.name.split("-")[0]
        if kind == "ceiling":
            yield "binding", f"{words} ({one.says.rstrip('.')})"
        if kind == "setting" and "=" in str(one.reading.value):
            yield "setting", str(one.reading.value)
            yield "unset", "unset " + str(one.reading.value).split("=")[0]
        if one.name in ("limit-binds", "limit-refused"):
            yield "limit", words
        if one.name.endswith("-refused") and kind in HOST_SIDES:
            yield "side", f"{kind}: {words}"[:160]


def _of_messages(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    for m in evidence.messages:
        a = account(m)
        yield "device", "" if m.device is None else str(m.device)
        if m.capacity:
            yield "capacity", m.capacity.text.replace(" ", "")
        if m.free:
            yield "free", f"{m.free.text} were free"
        if m.requested and m.capacity:
            room = (m.free.bytes if m.free else 0) + max(0, a.stranded.bytes if a.stranded else 0)
            lacks = m.requested.bytes - room
            if a.beyond_limit and m.allocated and a.limit:
                lacks = max(lacks, m.allocated.bytes + m.requested.bytes - a.limit.bytes)
            yield (
                "missing",
                f"at least {show_bytes(lacks)} are missing" if lacks > 0 else _beside(a),
            )
            if m.program == "torch" and m.backend == "cuda" and a.fragmentation == POSSIBLE:
                yield "preset", "cuda-expandable"
        if m.tokens and m.fits_tokens:
            yield "context", f"{m.tokens} tokens were asked for, {m.fits_tokens} fit"
        elif m.requested and m.cache:
            yield "context", f"{m.requested.text} are needed, {m.cache.text} are there"
        for pid, size in a.others[:1]:
            if pid is not None:
                yield "holder", f"process {pid} with {size.text}"
                yield "pid", str(pid)


def _beside(a: Account) -> str:
    """A request that what is free and cached would have met, in numbers: what was missing is
    not known.
    """
    sizes = (("free", a.message.free), ("cached", a.stranded))
    parts = [f"{size.text} {name}" for name, size in sizes if size and size.bytes > 0]
    asked = a.message.requested
    return f"{asked.text} failed beside {' and '.join(parts)}" if asked and parts else ""


def _of_holders(evidence: CaseEvidence) -> Iterator[tuple[str, str]]:
    """The process that holds most, as a tool or the captured box lists it; one below 256 MiB is
    none.
    """
    rows = [(row.bytes or 0, row.pid, row.name) for row in processes(evidence) if row.pid]
    if evidence.bundle is not None:
        from helpers.look.gpus import gpus  # only a captured box needs every layer's reader

        found = [h for gpu in gpus(evidence.bundle) for h in gpu.holders if h.memory.ok]
        rows += [(h.memory.bytes, h.pid, h.name) for h in found]
    rows = [row for row in rows if row[0] > GIB // 4 or row[0] == 0]
    if rows:
        size, pid, name = max(rows)
        held = f" with {show_bytes(size)}" if size else ""
        name = "".join(sign for sign in name if sign.isprintable())  # no escapes for a terminal
        yield "holder", f"process {pid} {name}{held}".replace("  ", " ")
        yield "pid", str(pid)


def next_step(failure: Failure, names: Mapping[str, str], evidence: CaseEvidence) -> NextStep:
    """The one first choice: the line that removes an obstacle on this very box, else the
    catalogue's remedy, filled in.
    """
    bundle = evidence.bundle
    if failure.cause in ("permission", "config-ineffective") and bundle is not None:
        from helpers.judge.box import obstacles

        hides = failure.cause == "config-ineffective"
        for way in obstacles(bundle, vendor_of(evidence.messages)):
            if way.fix and (way.cause == "variable") == hides:
                return NextStep(
                    what=way.says[:1].upper() + way.says[1:],
                    command=way.fix,
                    precondition="read what it changes; it is printed here and never run",
                    blast_radius="the user's access rights, the container's start, or this shell's variables",
                )
    if bundle is not None and failure.cause in POOLS:
        from helpers.judge.ttm_plan import planned_step

        if planned := planned_step(bundle, failure.cause):
            return planned
    remedy = failure.remedy
    what = fill(remedy.what, names)
    command = fill(remedy.command, names)
    return to_fits(NextStep(what, command, fill(remedy.precondition, names), remedy.harm), names)


def to_fits(step: NextStep, names: Mapping[str, str]) -> NextStep:
    """The step; that of a server's failure ends in what would have fitted."""
    if "server" not in names:
        return step
    typed = dict.fromkeys([*step.command.splitlines(), _say("fits typed")])
    return replace(step, what=step.what + _say("fits", **names), command="\n".join(typed))
