"""The verdict over a what-if: did fragmentation end the run, did capacity, or did nothing; and which setting to use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from helpers.look.reading import Reading, seen, show_bytes
from helpers.shapes import Alternative, Evidence, Missing, NextStep, Verdict

if TYPE_CHECKING:  # their packages are not the standard library's
    from helpers.allocator.metrics import Metrics
    from helpers.allocator.whatif import Answer, Row


def verdict(
    answer: Answer, now: Row, at_failure: Metrics | None, *, recorded: bool, own: bool = False
) -> Verdict:
    """What a trace proves about its own end. `now` is the row of the settings in force; at_failure the block figures there.

    Fragmentation is confirmed where the request fails although allocated and asked for fit the card, another setting passes,
    and the trace was recorded on a GPU; a generated or CPU-recorded trace proves it of itself only, so it is likely at most.
    ``own``: the trace is of the user's program, so that it says why this box fails; an example's verdict stands aside.
    """
    return replace(_of_trace(answer, now, at_failure, recorded), state="" if own else "aside")


def _of_trace(answer: Answer, now: Row, at_failure: Metrics | None, recorded: bool) -> Verdict:
    source = f"replay under torch {answer.torch}, {answer.build}"
    card = _bytes(answer.capacity_bytes, "the card replayed on", source)
    if now.passes:
        return Verdict(
            cause="other",
            confidence="likely" if recorded else "weak",
            summary=f"Every request is met under {_name(now.settings)} on {show_bytes(answer.capacity_bytes)}.",
            evidence=[
                Evidence(
                    id="peak",
                    reading=_bytes(now.peak_reserved_bytes, "peak reserved", source),
                    says="the most the allocator holds of the card",
                ),
                Evidence(id="card", reading=card, says="its size"),
            ],
            against=_warnings(answer, source),
            next_step=_use(answer, now),
        )
    evidence = [
        Evidence(
            id="request",
            reading=_bytes(now.first_oom_bytes, f"request at operation {now.first_oom}", source),
            says=f"fails under {_name(now.settings)}",
        ),
        Evidence(
            id="floor",
            reading=_bytes(answer.floor_bytes, f"live at operation {answer.floor_index}", source),
            says="the most that is alive at once: no setting passes on less",
        ),
        Evidence(id="card", reading=card, says="what there is"),
    ]
    if at_failure is not None:
        whole = at_failure.all
        evidence += [
            Evidence(
                id="stranded",
                reading=_bytes(whole.stranded_bytes, "stranded at the failure", source),
                says="free, but in segments that are in use: it cannot be given back",
            ),
            Evidence(
                id="allocated",
                reading=_bytes(whole.allocated_bytes, "allocated at the failure", source),
                says="in use",
            ),
        ]
    if answer.needs_bytes:
        return Verdict(
            cause="true-capacity",
            confidence=_sure(recorded, answer.floor_bytes > answer.capacity_bytes),
            summary=f"No setting helps: the card needs {answer.needs_bytes} more bytes ({show_bytes(answer.needs_bytes)}), "
            f"then under {_name(answer.needs_settings)}.",
            evidence=evidence,
            alternatives=_unless_floor(answer),
            against=_warnings(answer, source),
            next_step=NextStep(
                what="Hold less: a smaller batch, accumulation or checkpointing; the allocations to look at "
                f"first are {_groups(answer)}"
            ),
        )
    return Verdict(
        cause="allocator-fragmentation",
        confidence=_sure(recorded, True),
        summary=f"The same requests pass on this card under {_name(answer.use)}.",
        evidence=evidence,
        against=_warnings(answer, source),
        missing=_missing(recorded),
        next_step=_use(answer, now),
    )


def _sure(recorded: bool, proved: bool) -> Literal["confirmed", "likely"]:
    return "confirmed" if recorded and proved else "likely"


def _unless_floor(answer: Answer) -> list[Alternative]:
    beside = Alternative(cause="allocator-fragmentation", confidence="weak")
    return [] if answer.floor_bytes > answer.capacity_bytes else [beside]


def _missing(recorded: bool) -> list[Missing]:
    return (
        []
        if recorded
        else [
            Missing(
                reading="a trace of your program on this card",
                how="python -m helpers record --out trace.pickle -- python train.py",
            )
        ]
    )


def _use(answer: Answer, now: Row) -> NextStep:
    if answer.use == now.settings or (now.passes and not answer.use):
        return NextStep(what="Leave the allocator's settings as they are")
    if not answer.use:
        return NextStep(
            what="Unset the allocator's variables: the default settings pass",
            command="unset PYTORCH_CUDA_ALLOC_CONF",
        )
    name = "PYTORCH_CUDA_ALLOC_CONF" if answer.build == "cuda" else "PYTORCH_HIP_ALLOC_CONF"
    return NextStep(
        what=f"Set it before the program starts: {answer.why}",
        command=f"export {name}={answer.use}",
        precondition="the program is started anew; a running one keeps what it has",
        blast_radius="programs started from this shell",
    )


def _name(settings: str) -> str:
    return settings or "the default settings"


def _groups(answer: Answer) -> str:
    named = [
        f"{group.frames[0]} ({show_bytes(group.size_bytes)})"
        for group in answer.groups[:3]
        if group.frames
    ]
    return ", ".join(named) or "those the table lists"


def _warnings(answer: Answer, source: str) -> list[Evidence]:
    return [
        Evidence(
            id=f"note-{number}",
            reading=seen(warning, "text", source),
            says="a limit of this answer",
        )
        for number, warning in enumerate(answer.warnings, 1)
    ]


def _bytes(value: int, item: str, source: str) -> Reading:
    return seen(value, "bytes", source, item)
