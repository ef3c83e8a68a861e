"""The cause of a failure with its evidence, or what is missing to name it.

The best of each cause is compared: two causes that weigh alike are ``cannot-tell`` with both as
alternatives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from helpers.ground.shapes import (
    BESIDE,
    SUM,
    Alternative,
    Evidence,
    Missing,
    NextStep,
    Verdict,
    seen,
)
from helpers.ground.shell import word
from helpers.ground.units import Quantity, plain
from helpers.ground.units import cut as cut_text
from helpers.judge import form, table
from helpers.judge.case_names import fill, names_of
from helpers.judge.confidence import Weighed, weigh_failures
from helpers.judge.evidence import CaseEvidence
from helpers.judge.headlines import headline, open_headline
from helpers.judge.message_observations import SOURCE
from helpers.judge.next_step import next_step, step_of_a_refusal
from helpers.judge.observation import SILENT, WRITTEN_UP, Observation
from helpers.judge.observations import observe
from helpers.judge.posted_processes import processes
from helpers.judge.worlds import reading_for
from helpers.look.message import Message, of_device, of_host
from helpers.look.wordings import lines as forms

NEAR = 1.0
LEAST = 0.8
MARGIN = 0.2
"""A cause that weighs less than LEAST is none, one that is not MARGIN above the next leaves it
open; one within NEAR is still likely.
"""
LONGEST_ERROR = 400
ENOUGH_OF_A_LINE = 30
LONGEST_ENDING = 60
"""Letters of an error line that are kept, by which it is found again in its text, and that may
follow what was read of it.
"""
APART = ("noted", "assert", "fault", "wrong-index", "option-refused", "setting-unread")
NO_EVIDENCE = CaseEvidence()


def diagnose(evidence: CaseEvidence) -> Verdict:
    """The verdict on what was handed over.

    Never raises on odd evidence; says ``cannot-tell`` where it does not decide. It is worked out
    once for each evidence.
    """
    verdict: Verdict = evidence.once("verdict", lambda: _diagnose(evidence))
    return verdict


def _diagnose(evidence: CaseEvidence) -> Verdict:
    verdict = _judged(evidence)
    verdict = replace(verdict, error=_error_line(verdict, evidence))
    if evidence.bundle is None:
        return verdict
    from helpers.look.kernel_log import not_whole  # only a captured box has a log

    cut = not_whole(evidence.bundle)
    return replace(verdict, summary=f"{verdict.summary} {cut}") if cut else verdict


def _error_line(verdict: Verdict, evidence: CaseEvidence) -> str:
    """The line of the text that the verdict rests on, else that in which memory was refused, else
    that of its first failure; at most LONGEST_ERROR letters, empty where none was read.
    """
    apart = (BESIDE, SUM)
    reasons = [row for row in verdict.evidence if not row.id.startswith(apart)]
    quotes = [str(row.reading.value) for row in reasons if row.reading.unit == "text"]
    failures = [message for message in evidence.messages if message.event not in SILENT]
    refusals = [message for message in failures if of_device(message) or of_host(message)]
    quoted = [message for message in refusals if message.words in quotes]
    for message in [*quoted, *refusals, *failures]:
        return plain(_sentence(message.words, evidence.error_text))
    return ""


def _sentence(words: str, text: str) -> str:
    """The line of a text in which a message stands, without colours, or, where the line is too
    long or a log wrapped it, the message up to the end of its sentence.
    """
    start = words[:ENOUGH_OF_A_LINE]
    line = next((line for line in text.splitlines() if start in line), "")
    line = re.sub(r"\x1b\[[0-9;:]*m", "", line).strip()
    if len(words) < len(line) <= LONGEST_ERROR:
        return line
    _, found, rest = " ".join(text.split()).partition(words)
    end = rest.find(".") + 1
    if found and end <= LONGEST_ENDING:
        words += rest[:end]
    return cut_text(words, LONGEST_ERROR)


def _judged(evidence: CaseEvidence) -> Verdict:
    """The verdict on the texts and the box, or on a recorded program where that decides more."""
    verdict = verdict_of(observe(evidence), evidence)
    if evidence.program is not None:
        from helpers.judge.program_verdict import program_verdict  # only a recording has facts

        of_program = program_verdict(evidence.program)
        is_open = of_program.label == "cannot-tell"
        if not is_open or verdict.label == "cannot-tell":
            return of_program
    return verdict


@dataclass(frozen=True)
class Ranking:
    """The best failure of each cause, the heaviest first."""

    rows: tuple[Weighed, ...]

    @property
    def top(self) -> Weighed:
        return self.rows[0]

    @property
    def close(self) -> list[Weighed]:
        """The causes that weigh at least a third of the first."""
        least = max(LEAST, self.top.weight / 3)
        return [row for row in self.rows[1:] if row.weight >= least]

    @property
    def behind(self) -> list[Weighed]:
        """The causes after the first that any weight speaks for."""
        return [row for row in self.rows[1:] if row.weight >= LEAST / 2]

    @property
    def gap(self) -> float:
        """By how much the first is above the next one that counts."""
        close = self.close
        return self.top.weight - close[0].weight if close else NEAR

    @property
    def decides(self) -> bool:
        """Whether the first cause is far enough above the others."""
        return bool(self.rows) and self.top.weight >= LEAST and self.gap >= MARGIN


def rank(observations: Iterable[Observation]) -> Ranking:
    """The best failure of each cause by these observations."""
    best: dict[str, Weighed] = {}
    for row in weigh_failures(observations):
        best.setdefault(row.failure.cause, row)
    rows = sorted(best.values(), key=lambda row: (-row.weight, row.failure.cause))
    return Ranking(tuple(rows))


def verdict_of(
    observations: tuple[Observation, ...], evidence: CaseEvidence = NO_EVIDENCE
) -> Verdict:
    """The verdict that these observations support."""
    ranking = rank(observations)
    if ranking.decides:
        return _decided(ranking, observations, evidence)
    near = [row for row in ranking.rows if row.weight >= LEAST / 2][:3]
    nothing_failed = not (near or evidence.messages or evidence.error_text)
    if evidence.bundle is not None and nothing_failed:
        box = evidence.bundle.box if evidence.bundle.kind != "live" else "live"
        return _healthy(observations, box)
    return _open(near, observations, evidence)


def _decided(
    ranking: Ranking, observations: tuple[Observation, ...], evidence: CaseEvidence
) -> Verdict:
    """The first cause, with what speaks for and against it and what would decide further."""
    top = ranking.top
    failure = top.failure
    close = ranking.close
    confidence = top.confidence
    if confidence == "confirmed" and ranking.gap < NEAR and close[0].confidence != "weak":
        confidence = "likely"
    missing = []
    if confidence != "confirmed":
        rivals = close[:2] or ranking.behind[:1]
        deciding = [row.failure.decides for row in (top, *rivals)]
        missing = _missing(deciding, evidence) or [_reading("look", evidence)]
    # A second fault in the same text: an assertion or a wrong index is no consequence of memory.
    apart = [o for o in observations if o.name in APART and o.hard and o not in top.speaks_for]
    against = list(top.against)
    if failure.cause == "true-capacity":
        # What was cached and would have met the request speaks against a card that is too
        # small, however little it weighs.
        cached = [o for o in observations if o.name == "stranded-possible"]
        against += [observation for observation in cached if observation not in top.against]
    names = names_of(evidence, observations)
    title = headline(failure, names, top.speaks_for, evidence)
    summary = f"{title}. {failure.mechanism}"
    if apart:
        summary += f" There is also a separate problem: {_listed(apart)}."
    return Verdict(
        cause=failure.cause,
        confidence=confidence,
        title=title,
        summary=summary,
        alternatives=[_alternative(row, top) for row in (ranking.behind if missing else close)[:4]],
        evidence=_unique([*_evidence(top.speaks_for), *_beside(apart), *_sums(evidence)]),
        against=_unique(_evidence(against), "against-"),
        missing=missing,
        next_step=next_step(failure, names, evidence, top.speaks_for),
    )


def _alternative(row: Weighed, top: Weighed) -> Alternative:
    near = row.confidence != "weak" and top.weight - row.weight < NEAR
    return Alternative(row.failure.cause, "likely" if near else "weak")


def _missing(deciding: Iterable[tuple[str, str, str]], evidence: CaseEvidence) -> list[Missing]:
    """The readings that would decide, as they are taken in the world of the failure, without
    those that were handed over.
    """
    names = names_of(evidence, ())
    rows = dict.fromkeys(_not_handed_over(deciding, evidence))
    return [Missing(reading=reading, how=fill(how, names)) for _, reading, how in rows]


def _not_handed_over(
    deciding: Iterable[tuple[str, str, str]], evidence: CaseEvidence
) -> Iterator[tuple[str, str, str]]:
    """The readings, by name, as they are taken in the world of the failure, without those that
    were handed over.
    """
    for row in deciding:
        if not _was_handed_over(row[0], evidence):
            yield reading_for(row, evidence)


def _was_handed_over(reading: str, evidence: CaseEvidence) -> bool:
    """Whether a reading, by its name in failures.json, is in what was handed over."""
    if reading == "kernel-log" and evidence.bundle is not None:
        from helpers.look.kernel_log import readable  # only a captured box has a log

        return readable(evidence.bundle).ok
    if reading == "kernel-log":
        rows_of_the_log = {line.id for line in forms(log=True)}
        return any(message.row in rows_of_the_log for message in evidence.messages)
    if reading == "holders":
        return any(row.bytes for row in processes(evidence))
    if reading == "host":
        return evidence.bundle is not None or any(
            figure.pool == "available" for figure in evidence.figures
        )
    return reading == "ceilings" and evidence.bundle is not None


def _open(
    near: list[Weighed], observations: tuple[Observation, ...], evidence: CaseEvidence
) -> Verdict:
    """Cannot-tell: what was read, the causes left in order, the one reading that decides."""
    decides = (row.failure.decides for row in near)
    deciding = list(dict.fromkeys(_not_handed_over(decides, evidence)))
    nothing_decides = not deciding
    if any(observation.name == "own-error" for observation in observations):
        deciding.insert(0, _deciding("own-error"))
    named = [message for message in evidence.messages if message.event not in SILENT]
    is_own = any(message.row == "casebook-rehearsal" for message in evidence.messages)
    if is_own and not named:
        return _own_answer()
    text = evidence.error_text
    has_no_number = nothing_decides and not any(message.numbers for message in named)
    is_garbled = any(_lacks_its_capacity(message) for message in named)
    if named and (has_no_number or (nothing_decides and is_garbled)):
        deciding.append(_deciding("message"))
    elif not named and not (form("printed").search(text) and form("complaint").search(text)):
        deciding.append(_deciding("message"))
    if evidence.bundle is None and len(deciding) < 3:
        deciding.append(_deciding("look", evidence))
    if not deciding:
        deciding.append(_deciding("moment"))
    missing = _missing(deciding, evidence)
    shown = [observation for row in near for observation in row.speaks_for]
    rows = _evidence(shown or observations[:12]) + _sums(evidence)
    if not rows:
        rows = [_nothing_used(evidence)]
    against = [observation for row in near for observation in row.against]
    names = names_of(evidence, observations)
    step = _step_that_decides(deciding[0][0], missing[0], names)
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=open_headline((row.failure for row in near), (*shown, *observations), evidence),
        summary=_summary_of_open(near, observations, evidence),
        alternatives=[Alternative(row.failure.cause, "weak") for row in near],
        evidence=_unique(rows),
        against=_unique(_evidence(against), "against-"),
        missing=missing,
        next_step=step_of_a_refusal(names, evidence, observations, nothing_decides) or step,
    )


def _own_answer() -> Verdict:
    """Of a text that a rehearsal printed: the evidence is in its recording."""
    title = "This is an answer of casebook rehearse, not a program's error"
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        title=title,
        summary=f"{title}. Its evidence is in the recording.",
        next_step=NextStep(
            "Run the command after “All evidence:” in the text, or give the program's own output, "
            "whose file the text names last"
        ),
    )


def _lacks_its_capacity(message: Message) -> bool:
    """Whether a line of torch's allocator has no card's size that could be read: each is printed
    with it.
    """
    is_of_allocator = message.program == "torch" and message.allocated is not None
    return is_of_allocator and message.capacity is None and message.reserved_total is None


def _step_that_decides(name: str, missing: Missing, names: Mapping[str, str]) -> NextStep:
    """The reading to take, by its name, and what each of its answers means."""
    what = f"Still needed: {missing.reading}"
    answer = table("failures")["answers"].get(name)
    if answer:
        what += f". {fill(answer, names)}"
    precondition = "none"
    if name in table("failures")["while running"]:
        precondition = "the program is running or has just failed"
    return NextStep(what=what, command=missing.how, precondition=precondition)


def _summary_of_open(
    near: list[Weighed], observations: tuple[Observation, ...], evidence: CaseEvidence
) -> str:
    """What stays open, or why nothing could be made of what was handed over."""
    if near:
        causes = "; ".join(row.failure.title.rstrip(".") for row in near)
        summary = f"Still possible: {causes}."
    elif _is_prose_alone(evidence, observations):
        summary = (
            "No line of the text is a known error message, and descriptions in words are not read. "
            "Paste the program's output itself, from the first error on."
        )
    elif observations:
        summary = f"These readings show no cause: {_listed(observations[:3])}."
    else:
        summary = "Nothing in what you gave explains a failure."
    if evidence.unused and not observations:
        unused = evidence.unused[:200].rstrip(".")
        summary += f" {unused[:1].upper()}{unused[1:]}."
    return summary


def _is_prose_alone(evidence: CaseEvidence, observations: tuple[Observation, ...]) -> bool:
    """Whether words were handed over, and no line of them is one that a program prints."""
    if evidence.messages or not (evidence.error_text.strip() or evidence.narrative.strip()):
        return False
    return not any(observation.hard for observation in observations)


def _nothing_used(evidence: CaseEvidence) -> Evidence:
    """How much text was read, where nothing of it could be used."""
    length = sum(len(text) for _, _, text in evidence.texts)
    reading = seen(f"{length} characters", "text", "the text handed over")
    return Evidence("read", reading, "The text was read, but none of its lines is a known error")


def _reading(name: str, evidence: CaseEvidence = NO_EVIDENCE) -> Missing:
    """A reading that would decide, by its name in diagnosis.json."""
    _, reading, how = _deciding(name, evidence)
    return Missing(reading, fill(how, names_of(evidence, ())))


def _deciding(name: str, evidence: CaseEvidence = NO_EVIDENCE) -> tuple[str, str, str]:
    """A reading of diagnosis.json as it is taken in the world of the failure."""
    row = table("diagnosis")["missing"][name]
    return reading_for((name, row["reading"], row["how"]), evidence)


def _listed(observations: Iterable[Observation]) -> str:
    """What the observations say, each once."""
    return "; ".join(dict.fromkeys(observation.says.rstrip(".") for observation in observations))


def _healthy(observations: tuple[Observation, ...], box: str) -> Verdict:
    """Nothing failed and nothing is out of the ordinary on this box; what was looked at is the
    evidence, what is free first.
    """
    free = [observation for observation in observations if observation.name.startswith("free:")]
    sizes = ", ".join(observation.reading.show() for observation in free)
    hard = [observation for observation in observations if observation.hard]
    missing = _reading("failure")
    missing = replace(missing, how=missing.how.replace(" live ", f" {word(box)} "))
    return Verdict(
        cause="cannot-tell",
        confidence="weak",
        state="healthy",
        title=f"No problem found: {sizes} of GPU memory is free" if sizes else "No problem found",
        summary="You gave no error message.",
        evidence=_unique(_evidence([*free, *hard])),
        missing=[missing],
        next_step=NextStep(
            what="If a program fails on this machine, diagnose its error message together with this capture",
            command=missing.how,
            precondition="FILE begins with the first error",
        ),
    )


def _sums(evidence: CaseEvidence) -> list[Evidence]:
    """The account of the first message with numbers, line by line, as it is shown."""
    for account in evidence.accounts:
        message = account.message
        if message.capacity or message.allowed or message.reserved_total:
            reading = seen(message.words[:80], "text", SOURCE)
            return [
                Evidence(f"{SUM}{number}", reading, line[:1].upper() + line[1:])
                for number, line in enumerate(account.lines[:8], 1)
            ]
    for message in evidence.messages:
        if message.numbers:
            return _printed_sizes(message)
    return []


def _printed_sizes(message: Message) -> list[Evidence]:
    """The sizes that a message prints, in one sentence."""
    sizes = []
    for field in fields(message):
        value = getattr(message, field.name)
        if isinstance(value, Quantity):
            sizes.append(f"{field.name.replace('_', ' ')} {value.text}")
    if not sizes:
        return []
    reading = seen(message.words[:80], "text", SOURCE)
    return [Evidence(f"{SUM}1", reading, f"It prints: {', '.join(sizes)}")]


def _beside(observations: Iterable[Observation]) -> list[Evidence]:
    """What was seen and is no reason for the verdict."""
    return [replace(row, id=BESIDE + row.id) for row in _evidence(observations)]


def _evidence(observations: Iterable[Observation]) -> list[Evidence]:
    return [
        Evidence(
            id=observation.name,
            reading=observation.reading,
            says=observation.says + _remark(observation),
        )
        for observation in observations
    ]


def _remark(observation: Observation) -> str:
    """Where a reading was not measured on this box."""
    if observation.filled:
        return WRITTEN_UP
    return "" if observation.hard else " (stated, not measured)"


def _unique(rows: list[Evidence], prefix: str = "") -> list[Evidence]:
    """The rows under ids of their own, each observation once."""
    unique: list[Evidence] = []
    counted: Counter[str] = Counter()
    for row in rows:
        if any(row.reading == other.reading and row.says == other.says for other in unique):
            continue
        counted[row.id] += 1
        name = prefix + row.id.replace(":", "-")
        if counted[row.id] > 1:
            name = f"{name}-{counted[row.id]}"
        unique.append(replace(row, id=name))
    return unique
