"""The one next step of a verdict, and the ladder for memory that somebody or nobody holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from helpers.ground.shapes import NextStep, Verdict
from helpers.judge import table
from helpers.judge.case_names import fill, names_of
from helpers.judge.catalogue import Failure
from helpers.judge.evidence import CaseEvidence, vendor_of
from helpers.judge.observation import Observation
from helpers.judge.worlds import remedy_for, worlds_of

HELD = ("external-holder", "stale-holder", "driver-leak")
POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
READ_A_LOG = "python3 -m helpers fits LOG"


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
    remedy = remedy_for(failure, evidence, speaking)
    step = NextStep(
        what=fill(remedy.what, names),
        command=fill(remedy.command, names),
        precondition=fill(remedy.precondition, names),
        blast_radius=remedy.harm,
    )
    return with_log_of_server(step, evidence)


def _without_the_obstacle(failure: Failure, evidence: CaseEvidence) -> NextStep | None:
    """The line that removes what is in the way on this box; None where nothing is."""
    if evidence.bundle is None:
        return None
    from helpers.judge.obstacles import obstacles  # reads the nodes of a box

    about_a_variable = failure.cause == "config-ineffective"
    for obstacle in obstacles(evidence.bundle, vendor_of(evidence.messages)):
        if obstacle.fix and (obstacle.cause == "variable") == about_a_variable:
            return NextStep(
                what=obstacle.says[:1].upper() + obstacle.says[1:],
                command=obstacle.fix,
                precondition="read what it changes; it is printed here and never run",
                blast_radius=(
                    "the user's access rights, the container's start, or this shell's variables"
                ),
            )
    return None


def with_log_of_server(step: NextStep, evidence: CaseEvidence) -> NextStep:
    """The step; that of a server whose logs `fits` reads ends in what would have fitted."""
    servers = [row["name"] for row in worlds_of(evidence) if row["logs"]]
    if not servers:
        return step
    lines = [*step.command.splitlines(), READ_A_LOG]
    what = f"{step.what}. From {servers[0]}'s whole LOG, fits computes what the card holds"
    return replace(step, what=what, command="\n".join(dict.fromkeys(lines)))


def recovery(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The ladder for memory that somebody or nobody holds, mildest first, with preconditions.

    Empty for other causes, and where a text names no process that could be stopped. The steps
    are data: ladder.json.
    """
    causes = {verdict.cause}
    if verdict.cause == "cannot-tell":
        causes = {other.cause for other in verdict.alternatives[:1]}
    if not causes & set(HELD):
        return ()
    names = names_of(evidence, ())
    if evidence.bundle is None and "external-holder" in causes and "pid" not in names:
        return ()
    worlds = ["", *(row["name"] for row in worlds_of(evidence))]
    return tuple(
        NextStep(
            what=row["what"],
            command=fill(row["command"], names),
            precondition=row["precondition"],
            blast_radius=row["blast_radius"],
        )
        for row in table("ladder")
        if row["world"] in worlds
    )
