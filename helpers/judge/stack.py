"""What settings, versions, chips and containers are evidence of, as they were posted or captured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from helpers.grammar import lazy
from helpers.judge import table
from helpers.judge.evidence import CaseEvidence, Observation, note, texts
from helpers.judge.sizes import is_hip

if TYPE_CHECKING:
    from helpers.settings.rules import Finding

SETTINGS = {
    "misspelt": "setting-misspelt",
    "too_late": "setting-late",
    "ineffective": "setting-inert",
    "shadowed": "setting-inert",
    "unsupported": "setting-inert",
    "contradictory": "setting-cause",
    "dangerous": "setting-cause",
}
EXPANDABLE = "expandable-segments-unsupported"
_WHEEL = lazy(r"\b(torch|torchvision|torchaudio)\b[ =:(]{1,4}v?(\d)\.(\d{1,2})", re.IGNORECASE)
_GFX = lazy(r"\bgfx([0-9]{2,4}[0-9a-f])\b")
_LISTS = lazy(r"gfx\w{3,5}(?:[\s,;|'\"\]\[(]{1,6}gfx\w{3,5}){2,64}")
_TARGETS = lazy(r"target|arch|support|built|obj", re.IGNORECASE)
_CUDA = lazy(r"(?<![\d.])(\d{1,2})\.(\d)(?:\.\d{1,3})?(?![\d.]*\.\d|\d)")
_BUILD = lazy(r"\+cu(\d{2})(\d)")
_IN_CODE = lazy(r"environ|%(?:set_)?env|putenv")
_KERNEL = lazy(r"\b(?:amdgpu|amdttm|ttm)\.\w+=|^\s*options\s+(?:amdgpu|amdttm|ttm)\s", re.MULTILINE)
_RUNS = lazy(r"\b(?:docker|podman|nerdctl)\b|--device|devices:")


def stack_observations(evidence: CaseEvidence) -> list[Observation]:
    """Settings with their own verdicts, versions that do not fit, chips without code, and how a container was started."""
    readers = (_settings, _parameters, _wheels, _chips, _container)
    return [one for reader in readers for one in reader(evidence)]


def _settings(evidence: CaseEvidence) -> Iterator[Observation]:
    code = [text for _, _, text in texts(evidence) if _IN_CODE.search(text)]
    if evidence.bundle is None and not evidence.variables and not code:
        return
    from helpers.settings.audit import audit, audit_box  # its tables are for settings alone
    from helpers.settings.posted import late_assignments

    if evidence.bundle is not None:
        findings, origin = audit_box(evidence.bundle), "bundle"
        from helpers.look.environment import variables

        given = tuple((v.name, v.value) for v in variables(evidence.bundle))
    else:
        build = "rocm" if is_hip(evidence) else "cuda"  # where nothing of AMD's is spoken of
        given, origin = evidence.variables, "environment"
        findings = audit(dict(given), evidence.fact("torch"), build, evidence.fact("gfx"), True)
    for text in code:
        findings = (*findings, *late_assignments(text))
    for one in findings:
        yield from _of_setting(one, origin)
    for name, value in given:
        if "ALLOC_CONF" in name and re.search(r"expandable_segments:\s?True", value):
            yield note("expandable-on", f"{name}={value}", "variables", origin)
        if name == "HSA_OVERRIDE_GFX_VERSION":
            yield note("gfx-override", value, name, origin)


def _parameters(evidence: CaseEvidence) -> Iterator[Observation]:
    """Kernel parameters of the memory pools that are misspelt, in the wrong unit, or of another module."""
    posted = [text for source, text in evidence.tools if _KERNEL.search(text)]
    if evidence.bundle is None and not posted:
        return
    from helpers.settings.kernel import audit_cmdline, audit_kernel

    found = [(one, "bundle") for one in audit_kernel(evidence.bundle)] if evidence.bundle else []
    found += [(one, "tool") for text in posted for one in audit_cmdline(text)]
    for one, origin in found:
        yield from _of_setting(one, origin)


def _of_setting(one: Finding, origin: str) -> Iterator[Observation]:
    name = SETTINGS.get(one.verdict)
    if name is None or not one.carries_cause:
        return
    if one.cause == EXPANDABLE:
        name = "setting-expandable" + ("-danger" if one.verdict == "dangerous" else "")
    words = f"{one.name}={one.value}" if one.value else one.name
    says = one.says + (f" ({one.why})" if one.why else "")
    yield note(name, words, one.source or "the table of settings", origin, says, not one.hearsay)


def _wheels(evidence: CaseEvidence) -> Iterator[Observation]:
    """torchaudio has torch's number; torchvision 0.(N+15) goes with torch 2.N, 0.(N+1) with 1.N (release tables)."""
    got: dict[str, tuple[int, int]] = {}
    source = ""
    for origin, name, text in texts(evidence):
        for package, major, minor in _WHEEL.findall(f"{name}: {text}"):
            if origin != "narrative" and package.lower() not in got:
                got[package.lower()], source = (int(major), int(minor)), name
    if "torch" not in got:
        return
    major, minor = got["torch"]
    right = {"torchvision": (0, minor + 15), "torchaudio": (major, minor)}
    if major != 2:
        right = {"torchvision": (0, minor + 1), "torchaudio": (0, minor)}
    for package, version in right.items():
        if got.get(package, version) != version:
            words = f"{package} {got[package][0]}.{got[package][1]}"
            yield note("wheels-differ", words, source, "tool", torch=f"{major}.{minor}")


def _chips(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip that is not in a list of targets, or that is newer than the CUDA release."""
    chip = _GFX.search(re.split(r" (?:as|presented)\b", evidence.fact("gfx"))[0])
    for origin, source, text in texts(evidence):
        if chip and origin in ("tool", "message") and _TARGETS.search(f"{source} {text[:200]}"):
            listed = set(_GFX.findall(" ".join(_LISTS.findall(text))))
            if listed and chip[1] not in listed:
                names = "gfx" + ", gfx".join(sorted(listed)[:12])
                yield note("gfx-not-in-targets", chip.group(), source, "tool", targets=names)
                break
    said = _BUILD.search(evidence.fact("torch")) or _CUDA.match(evidence.fact("cuda"))
    gpu = evidence.fact("gpu")
    rows = (row["cuda"] for row in table("toolkits") if re.search(row["names"], gpu, re.IGNORECASE))
    needed = next(rows, None)  # the newer chips stand first
    if said and needed and not is_hip(evidence):
        version = [int(part) for part in said.groups() if part]
        if version < [int(part) for part in needed.split(".")]:
            words = f"CUDA {version[0]}.{version[1]}"
            yield note("toolkit-older-than-chip", words, "cuda", "environment", needed=needed)


def _container(evidence: CaseEvidence) -> Iterator[Observation]:
    """How a container was started: devices passed without the group that owns them, or not passed."""
    for origin, source, text in texts(evidence):
        if origin not in ("tool", "message") or not _RUNS.search(f"{source} {text}"):
            continue
        kfd, dri = "/dev/kfd" in text, "/dev/dri" in text
        if re.search(r"--privileged|privileged: true", text) or not (kfd or dri):
            continue
        groups = re.findall(r"--group-add[= ]+(\S{1,40})", text)
        render = any(g in ("render", "keep-groups") or g.isdigit() for g in groups)
        if kfd and groups and not render:
            yield note("group-missing-in-run", " ".join(groups), source, origin)
        if kfd != dri:
            yield note("device-missing-in-run", text[:120], source, origin)
    container = evidence.fact("container")
    if container and container.lower() not in ("none", "no"):
        yield note("in-container", container[:80], "container", "environment")
