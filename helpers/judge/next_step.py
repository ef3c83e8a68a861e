"""The one next step of a verdict, and the ladder for memory that somebody or nobody holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from helpers.ground.shapes import NextStep, Verdict
from helpers.judge import capitalised, table
from helpers.judge.case_names import fill, names_of
from helpers.judge.catalogue import Failure, Remedy, remedy
from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.judge.failing_program import failing_program
from helpers.judge.observation import Observation
from helpers.judge.worlds import remedy_for, worlds_of

HELD = ("external-holder", "stale-holder", "driver-leak")
REFUSALS = {
    "device-refused": "less",
    "no-room-for-model": "less",
    "driver-refused": "driver-memory",
}
"""What is done against each refusal where nothing is known of its program."""
POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")


def next_step(
    failure: Failure,
    names: Mapping[str, str],
    evidence: CaseEvidence,
    speaking: Iterable[Observation] = (),
) -> NextStep:
    """The one first choice: the line that removes an obstacle on this very box, else the remedy
    of the program, of its world or of the catalogue, filled in.

    ``names``: case_names.names_of. ``speaking``: what speaks for the failure.
    """
    step = None
    if failure.cause in ("permission", "config-ineffective"):
        step = _without_the_obstacle(failure, evidence)
    if step is None and evidence.bundle is not None and failure.cause in POOLS:
        from helpers.judge.ttm_plan import planned_step  # reads every layer of a box

        step = planned_step(evidence.bundle, failure.cause)
    if step is not None:
        return step
    name = failure.remedy.id
    is_hidden = any(observation.name == "blind-spot" for observation in speaking)
    if name == "stop-holder" and not is_hidden:
        name = _of_holder(names, evidence)
    if (
        name == "ram"
        and evidence.bundle is not None
        and failing_program(evidence) is None
    ):
        name = "earlier-kills"
    if name == "allocator-text" and "corrected" in names:
        name = "corrected-text"
    wanted = remedy_for(name, evidence, speaking)
    step = _filled(wanted, names)
    if evidence.bundle is None or not wanted.shown_by_capture:
        return step
    # It reads files of a box.
    from helpers.judge.host_limit_observations import host_in_words

    host = host_in_words(evidence.bundle)
    if not host:
        return step
    step = replace(step, what=f"{step.what}. On this machine: {host}")
    return step if wanted.id == "earlier-kills" else replace(step, command="")


def _of_holder(names: Mapping[str, str], evidence: CaseEvidence) -> str:
    """What to do where others use the card: what is surely enough and the reader's own to do
    comes first.

    A server has options of its own for less, and a box shows more than a message.
    """
    name = "stop-holder"
    if "pid" in names:
        name = "end-holder"
    has_own_ways = any("which" in row["remedies"] for row in worlds_of(evidence))
    if evidence.bundle is not None or has_own_ways:
        return name
    for account in evidence.accounts:
        if (
            account.fits_alone
            and account.reserved
            and ("pid" not in names or account.others)
        ):
            name = "holder-or-own"
            if account.own_comes_first:
                name = "own-or-holder"
            return name
    return name


def _without_the_obstacle(failure: Failure, evidence: CaseEvidence) -> NextStep | None:
    """The line that removes what is in the way on this box; None where nothing is."""
    if evidence.bundle is None:
        return None
    from helpers.judge.obstacles import obstacles  # reads the nodes of a box

    about_a_variable = failure.cause == "config-ineffective"
    for obstacle in obstacles(evidence.bundle, vendor_of(evidence.messages)):
        if obstacle.fix and (obstacle.cause == "variable") == about_a_variable:
            return NextStep(
                what=capitalised(obstacle.says),
                command=obstacle.fix,
                precondition="read what it changes; it is printed here and never run",
                blast_radius="the user's access rights, the container's start, or this shell's "
                "variables",
            )
    return None


def step_of_a_refusal(
    names: Mapping[str, str],
    evidence: CaseEvidence,
    observations: Iterable[Observation],
    in_its_world: bool,
) -> NextStep | None:
    """What to try first where memory was refused and the cause stays open: what the program that
    prints it asks for and, ``in_its_world``, what is done there. None where neither is known.
    """
    for observation in observations:
        name = REFUSALS.get(observation.name)
        if name and (observation.remedy or in_its_world):
            wanted = remedy_for(name, evidence, [observation])
            if wanted.id != "less":
                return _filled(wanted, names)
    return None


def _filled(remedy: Remedy, names: Mapping[str, str]) -> NextStep:
    return NextStep(
        what=fill(remedy.advice, names),
        command=fill(remedy.command, names),
        precondition=fill(remedy.precondition, names),
        blast_radius=remedy.harm,
    )


def recovery(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions,
    without what the next step has already. A reset or a reboot is for memory that no process
    accounts for.

    Empty for other causes, and where a text names no process that could be stopped. The steps
    are data: ladder.json.
    """
    causes = {verdict.cause}
    if verdict.cause == "cannot-tell" and evidence.bundle is not None:
        causes = {other.cause for other in verdict.alternatives[:1]}
    if not causes & set(HELD):
        return ()
    names = names_of(evidence, ())
    if evidence.bundle is None and "external-holder" in causes and "pid" not in names:
        return ()
    worlds = ["", *(row["name"] for row in worlds_of(evidence))]
    is_seen = any(row.id.startswith("unattributed") for row in verdict.evidence)
    unaccounted = is_seen or causes != {"external-holder"}
    ladder = [
        _filled(remedy(row["remedy"]), names)
        for row in table("ladder")["steps"]
        if row["vendor"] in worlds and (unaccounted or not row["for_unaccounted"])
    ]
    return tuple(
        step for step in ladder if step.command not in verdict.next_step.command
    )
