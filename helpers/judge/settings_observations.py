"""Settings of the environment and of the kernel that have a verdict of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from helpers.judge import form
from helpers.judge.evidence import CaseEvidence
from helpers.judge.hardware import is_hip
from helpers.judge.observation import Observation, make_observation
from helpers.look.message import of_device

if TYPE_CHECKING:
    from helpers.settings.table import Finding

OBSERVATION_OF = {
    "misspelt": "setting-misspelt",
    "too_late": "setting-late",
    "ineffective": "setting-inert",
    "shadowed": "setting-inert",
    "unsupported": "setting-inert",
    "contradictory": "setting-cause",
    "dangerous": "setting-cause",
    "effective": "gpus-hidden",
}
"""The observation by the verdict of a Finding. Of settings that do what they say, only those that
hide every GPU have a cause.
"""
NOT_IN_FORCE = ("setting-misspelt", "setting-late", "setting-inert")
"""Observations about a setting that has no effect."""
EXPANDABLE_ON = re.compile(r"expandable_segments:\s?True")
CALLS = re.compile(
    r"((?:gradient|activation)_checkpointing_enable|\.eval|\.train|\.backward)\("
)
"""Calls in a program's text that tell whether checkpointing is on while the model trains."""
LONGEST_SENTENCE = 300
"""Characters of a sentence that quotes an allocator text, which may be of any length."""
COMPLAINTS = ("setting-refused", "number-refused")
"""Events of messages in which torch refuses an allocator text."""
EXPANDABLE = "expandable-segments-unsupported"
"""The cause of a Finding about expandable segments that the build does not have."""


def settings_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Variables and kernel parameters that are misspelt, without effect, too late or dangerous,
    and two settings in force that matter to other causes.
    """
    origin = "environment"
    pairs = evidence.variables
    if evidence.bundle is not None:
        from helpers.look.environment import variables

        origin = "bundle"
        pairs = tuple((v.name, v.value) for v in variables(evidence.bundle))
    findings = _findings(evidence)
    misspelt = [finding for finding in findings if finding.verdict == "misspelt"]
    # Among them are assignments in posted code, which are no variables of the environment.
    in_code = [(finding.name, finding.value) for finding in misspelt]
    yield from _of_allocator_text(evidence, [*pairs, *in_code], origin)
    for finding in misspelt:
        yield from _of_visibility(finding, evidence, origin)
    not_in_force: set[str] = set()
    for finding in findings:
        for observation in _of_finding(finding, origin):
            yield observation
            if observation.name not in NOT_IN_FORCE:
                continue
            not_in_force.add(finding.name)
            if EXPANDABLE_ON.search(finding.value):
                yield replace(observation, name="expandable-not-in-force")
    for _, source, text in evidence.texts:
        if _goes_backward_in_evaluation(text):
            yield make_observation(
                "checkpointing-in-eval", "model.eval()", source, "message"
            )
    posted = [
        text for _, text in evidence.tools if form("kernel parameter").search(text)
    ]
    if evidence.bundle is not None or posted:
        yield from _of_kernel_parameters(evidence, posted)
    yield from _of_settings_in_force(pairs, not_in_force, origin)


def _findings(evidence: CaseEvidence) -> list[Finding]:
    """What the audit finds in the variables of the evidence and in posted code."""
    code = [text for _, _, text in evidence.texts if form("in code").search(text)]
    if evidence.bundle is None and not evidence.variables and not code:
        return []
    # Their tables are for settings alone.
    from helpers.settings import assignments, audit

    if evidence.bundle is not None:
        findings = list(audit.audit_box(evidence.bundle))
    else:
        environ = _typed_values(evidence.variables)
        build = "cuda"
        if is_hip(evidence):
            build = "rocm"
        torch = evidence.fact("torch")
        findings = list(audit.audit(environ, torch, build, evidence.fact("gfx")))
    for text in code:
        findings += assignments.late_assignments(text)
    return findings


def _typed_values(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The variables by name, without values that a person commented: "True (second attempt)"."""
    return {name: value for name, value in variables if "(" not in value}


def _of_settings_in_force(
    pairs: Iterable[tuple[str, str]], not_in_force: set[str], origin: str
) -> Iterator[Observation]:
    """Whether expandable segments are on and a chip is overridden, which matters to other causes."""
    for name, value in pairs:
        is_of_allocator = "ALLOC_CONF" in name and name not in not_in_force
        if is_of_allocator and EXPANDABLE_ON.search(value):
            yield make_observation(
                "expandable-on", f"{name}={value}", "variables", origin
            )
        if name == "HSA_OVERRIDE_GFX_VERSION":
            yield make_observation("gfx-override", value, name, origin)


def _of_visibility(
    finding: Finding, evidence: CaseEvidence, origin: str
) -> Iterator[Observation]:
    """A misspelt visibility variable (CUDA_VISIBLE_DEVICE=1), where memory was refused on a GPU
    that it should hide. Nothing where its value is no list of numbers, or no message names a GPU.
    """
    # Their tables are for settings alone.
    from helpers.settings.audit import ALIKE, nearest_name
    from helpers.settings.table import VARIABLES

    refusing = [message for message in evidence.messages if of_device(message)]
    used = {message.device for message in refusing if message.device is not None}
    is_list = re.fullmatch(r"\d{1,2}(?:,\d{1,2}){0,15}", finding.value)
    name = nearest_name(finding.name.upper(), tuple(VARIABLES), ALIKE)
    if "VISIBLE" not in name or not is_list or not used:
        return
    wanted = {int(number) for number in finding.value.split(",")}
    if used.isdisjoint(wanted):
        device = min(used)
        says = f"Nothing reads {finding.name}, so the program ran on GPU {device}, which was to "
        says += "be left out"
        words = f"{name}={finding.value}"
        yield make_observation("setting-visibility", words, "variables", origin, says)


def _goes_backward_in_evaluation(code: str) -> bool:
    """Whether a program's text turns checkpointing on, and calls backward() in evaluation mode,
    in which the layers of transformers do not checkpoint (modeling_layers.py).
    """
    is_on = False
    trains = True  # as a model is after it was made
    for call in CALLS.findall(code):
        if call == ".backward" and is_on and not trains:
            return True
        if call.endswith("_enable"):
            is_on = True
        elif call in (".eval", ".train"):
            trains = call == ".train"
    return False


def _of_allocator_text(
    evidence: CaseEvidence, pairs: Iterable[tuple[str, str]], origin: str
) -> Iterator[Observation]:
    """The allocator's text that does nothing or that torch refuses, as it was meant. One that is
    set in a posted text counts where torch complains of it.
    """
    environ = _typed_values(pairs)
    is_refused = any(message.event in COMPLAINTS for message in evidence.messages)
    if is_refused:
        for _, _, text in evidence.texts:
            for match in form("allocator text").finditer(text):
                environ[match["name"]] = match["quoted"] or match["bare"]
    if not environ:
        return
    # Its tables are for settings alone.
    from helpers.settings.trouble import settings_trouble

    trouble = settings_trouble({"end": environ}, {}, recorded_torch(evidence))
    if trouble is None:
        return
    if trouble.fatal and is_refused:
        words = f"{trouble.variable}={trouble.value}"
        says = f"This text {trouble.why}"[:LONGEST_SENTENCE]
        yield make_observation("setting-malformed", words, "variables", origin, says)
        if trouble.instead:
            yield make_observation(
                "setting-corrected", trouble.instead, "variables", origin
            )
    elif trouble.instead:
        name = "setting-misspelt"
        if trouble.kind == "ineffective":
            name = "setting-inert"
        says = f"Meant: {trouble.says}"
        yield make_observation(name, trouble.instead, "variables", origin, says)


def recorded_torch(evidence: CaseEvidence) -> dict[str, object]:
    """The torch of the evidence in the form that a recorder has ({"version", "cuda", "hip"})."""
    version = evidence.fact("torch")
    is_rocm = is_hip(evidence)
    if evidence.bundle is not None:
        from helpers.look.framework import framework  # only a captured box has builds

        torch = framework(evidence.bundle)
        version = ""
        if torch.version.ok:
            version = str(torch.version.value)
        is_rocm = torch.build == "rocm"
    hip = ""
    if is_rocm:
        hip = "7.0"  # any release says that it is a ROCm build: the version has its own
    return {"version": version, "cuda": not is_rocm, "hip": hip}


def rocm_has_expandable(version: str) -> bool | None:
    """Whether a ROCm build of torch has expandable segments that are safe there; None where its
    version does not tell.
    """
    # Their tables are for settings alone.
    from helpers.settings.rules import facts_of, rule_findings

    option = "expandable_segments"
    facts = facts_of({}, version, "rocm")
    findings = rule_findings(f"option:{option}", option, option, "True", facts)
    verdicts = {finding.verdict for finding in findings}
    if verdicts & {"unsupported", "dangerous"}:
        return False
    if verdicts:
        return None
    return True


def _of_kernel_parameters(
    evidence: CaseEvidence, posted: list[str]
) -> Iterator[Observation]:
    """What the audit finds in the parameters of the box's kernel, and in posted ones."""
    from helpers.settings import kernel_parameters  # its tables are for settings alone

    if evidence.bundle is not None:
        for finding in kernel_parameters.audit_kernel(evidence.bundle):
            yield from _of_finding(finding, "bundle")
    for text in posted:
        for finding in kernel_parameters.audit_cmdline(text):
            yield from _of_finding(finding, "tool")


def _of_finding(finding: Finding, origin: str) -> Iterator[Observation]:
    """The observation of a finding that can be the cause of a failure."""
    name = OBSERVATION_OF.get(finding.verdict)
    if name is None or not finding.cause:
        return
    if name == "gpus-hidden" and origin == "bundle":
        return  # the obstacles of the box say so
    # Two settings have observations of their own, whatever the verdict on them.
    if finding.cause == EXPANDABLE:
        name = "setting-expandable"
        if finding.verdict == "dangerous":
            name = "setting-expandable-danger"
    is_override = finding.name.startswith("HSA_OVERRIDE")
    if is_override and finding.cause == "config-ineffective":
        name = "setting-override"
    words = finding.name
    if finding.value:
        words += f"={finding.value}"
    says = finding.says
    if finding.why:
        says += f" ({finding.why})"
    source = finding.source
    if not source:
        source = "the table of settings"
    yield make_observation(name, words, source, origin, says)
