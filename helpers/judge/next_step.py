"""The one next step of a verdict, and the last resorts for memory that somebody or nobody holds.

A *world* (judge/worlds.py) is the server, system or vendor that the texts name; it may have a
remedy of its own in place of one of the catalogue. *This box* is the captured one.
"""

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
"""Causes in which somebody, or nobody, keeps memory that the program needs."""
REFUSALS = {
    "device-refused": "less",
    "no-room-for-model": "less",
    "driver-refused": "driver-memory",
}
"""The remedy for each refusal (observation) where nothing is known of its program."""
POOLS = ("ttm-gtt-cap", "carveout-only", "hsa-pool-cap", "config-ineffective")
"""Causes that a change of an APU's memory limits may remove."""


def next_step(
    failure: Failure,
    names: Mapping[str, str],
    evidence: CaseEvidence,
    speaking: Iterable[Observation] = (),
) -> NextStep:
    """The one first choice: the command that changes this very box, else the remedy that the
    program asks for, that its world has, or that the catalogue has, filled in.

    Where a captured box already has what the command would show, the step says what it shows
    in place of the command. ``names``: case_names.names_of, the words for placeholders.
    ``speaking``: the observations that speak for the failure.
    """
    step = _step_on_this_box(failure, evidence)
    if step is not None:
        return step
    name = _name_of_remedy(failure, names, evidence, speaking)
    wanted = remedy_for(name, evidence, speaking)
    step = _filled(wanted, names)
    if evidence.bundle is None or not wanted.shown_by_capture:
        return step
    # Loaded only where a box was captured: it reads a box's files.
    from helpers.judge.host_limit_observations import host_in_words

    host = host_in_words(evidence.bundle)
    if not host:
        return step
    step = replace(step, what=f"{step.what}. On this machine: {host}")
    # This step is to look at the kills, and nothing remains of it without its command.
    if wanted.id == "earlier-kills":
        return step
    return replace(step, command="")  # it would only show what was captured


def _step_on_this_box(failure: Failure, evidence: CaseEvidence) -> NextStep | None:
    """The command that removes an obstacle or raises a memory limit of the captured box; None
    where there is neither. An obstacle comes first: behind it no limit matters.
    """
    step = None
    if failure.cause in ("permission", "config-ineffective"):
        step = _without_the_obstacle(failure, evidence)
    if step is None and evidence.bundle is not None and failure.cause in POOLS:
        from helpers.judge.ttm_plan import planned_step  # reads every layer of a box

        step = planned_step(evidence.bundle, failure.cause)
    return step


def _name_of_remedy(
    failure: Failure,
    names: Mapping[str, str],
    evidence: CaseEvidence,
    speaking: Iterable[Observation],
) -> str:
    """The name of the catalogue's remedy, or of a more exact one where the evidence allows that:
    for a process that holds the memory (_remedy_for_holder), for a kill in a box's log, and for
    an allocator text of which the correct form is known.
    """
    name = failure.remedy.id
    if name == "stop-holder":
        if any(observation.name == "blind-spot" for observation in speaking):
            return name  # the holder may be hidden from here
        return _remedy_for_holder(names, evidence)
    # Nobody named a program: the question is what the box's own log says.
    is_of_the_box = evidence.bundle is not None and failing_program(evidence) is None
    if name == "ram" and is_of_the_box:
        return "earlier-kills"
    if name == "allocator-text" and "corrected" in names:
        return "corrected-text"
    return name


def _remedy_for_holder(names: Mapping[str, str], evidence: CaseEvidence) -> str:
    """The name of the remedy where others use the card.

    ``end-holder``: the one process to end is known (the placeholder ``pid``); ``stop-holder``:
    it has to be found first. Where torch's message is all that was posted, a smaller program
    helps as well: ``own-or-holder`` advises that first, ``holder-or-own`` last.
    """
    name = "stop-holder"
    if "pid" in names:
        name = "end-holder"
    # "which" rehearses a Python program to see what it needs. A world that replaces it, such as
    # a server, has options of its own to use less, so rehearsing is not advised here either.
    is_not_rehearsed = any("which" in row["remedies"] for row in worlds_of(evidence))
    # A captured box shows who the others are: then they can be looked at before anything else.
    if evidence.bundle is not None or is_not_rehearsed:
        return name
    for account in evidence.accounts:
        # A tool, and not this message, lists the one process whose end would be enough.
        only_a_tool_names_it = "pid" in names and not account.others
        # Both remedies say how much room the program has: torch's reserved memory and the free.
        if account.fits_alone and account.reserved and not only_a_tool_names_it:
            # By the sizes of both: MessageSums has the rule.
            if account.own_comes_first:
                return "own-or-holder"
            return "holder-or-own"
    return name


def _without_the_obstacle(failure: Failure, evidence: CaseEvidence) -> NextStep | None:
    """The command that removes the first obstacle of the failure's kind on this box; None where
    there is none: for a setting without effect (config-ineffective) that is a variable, for a
    refused access (permission) any other obstacle.
    """
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
    """What to try first where memory was refused and the cause stays open: the remedy that the
    program itself asks for or, with ``in_its_world``, that of its server or system. None where
    neither is known.
    """
    for observation in observations:
        name = REFUSALS.get(observation.name)
        if name and (observation.remedy or in_its_world):
            wanted = remedy_for(name, evidence, [observation])
            # "Use less memory" is no step for a program of which nothing is known.
            if wanted.id != "less":
                return _filled(wanted, names)
    return None


def _filled(remedy: Remedy, names: Mapping[str, str]) -> NextStep:
    """A remedy as a step, its placeholders filled in."""
    return NextStep(
        what=fill(remedy.advice, names),
        command=fill(remedy.command, names),
        precondition=fill(remedy.precondition, names),
        blast_radius=remedy.harm,
    )


def recovery(verdict: Verdict, evidence: CaseEvidence) -> tuple[NextStep, ...]:
    """The steps for memory that somebody or nobody holds, mildest first, without what the next
    step has already. A reset or a reboot is only for memory that no process accounts for.

    Empty for other causes, and where a text names no process that could be stopped. The steps
    are data: ladder.json.
    """
    causes = {verdict.cause}
    if verdict.cause == "cannot-tell" and evidence.bundle is not None:
        # An open verdict on a box lists its causes, the heaviest first: that one counts.
        causes = {other.cause for other in verdict.alternatives[:1]}
    if not causes & set(HELD):
        return ()
    names = names_of(evidence, ())
    if evidence.bundle is None and "external-holder" in causes and "pid" not in names:
        return ()
    vendors = ["", *(row["name"] for row in worlds_of(evidence))]  # "": any vendor's
    # Another process (external-holder) can be ended. The other causes of HELD leave memory
    # without an owner, and so does a box on which some of it is unattributed.
    is_seen = any(row.id.startswith("unattributed") for row in verdict.evidence)
    is_unaccounted = is_seen or causes != {"external-holder"}
    steps = []
    for row in table("ladder")["steps"]:
        is_for_it = is_unaccounted or not row["for_unaccounted"]
        if row["vendor"] in vendors and is_for_it:
            steps.append(_filled(remedy(row["remedy"]), names))
    return tuple(
        step for step in steps if step.command not in verdict.next_step.command
    )
