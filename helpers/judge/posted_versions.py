"""Versions in posted texts that do not go together: wheels, targets of a build, CUDA releases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.judge import form, table
from helpers.judge.evidence import CaseEvidence
from helpers.judge.hardware import is_hip
from helpers.judge.observation import Observation, make_observation


def version_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Wheels of another torch, a chip without code for it, a CUDA release before the chip."""
    yield from _wheels(evidence)
    yield from _targets(evidence)
    yield from _toolkit(evidence)


def _wheels(evidence: CaseEvidence) -> Iterator[Observation]:
    """torchaudio has torch's number; torchvision 0.(N+15) goes with torch 2.N, 0.(N+1) with 1.N
    (release tables).
    """
    versions: dict[str, tuple[int, int]] = {}
    source = ""
    for _, name, text in evidence.texts:
        for package, first, second in form("wheel").findall(f"{name}: {text}"):
            if package.lower() not in versions:
                versions[package.lower()] = (int(first), int(second))
                source = name
    if "torch" not in versions:
        return
    major, minor = versions["torch"]
    fitting = {"torchvision": (0, minor + 15), "torchaudio": (major, minor)}
    if major != 2:
        fitting = {"torchvision": (0, minor + 1), "torchaudio": (0, minor)}
    for package, version in fitting.items():
        posted = versions.get(package, version)
        if posted != version:
            words = f"{package} {posted[0]}.{posted[1]}"
            says = f"It is not the one of torch {major}.{minor}"
            yield make_observation("wheels-differ", words, source, "tool", says)


def _targets(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip that is not in a list of targets."""
    chip = form("chip").search(
        re.split(r" (?:as|presented)\b", evidence.fact("gfx"))[0]
    )
    if not chip:
        return
    for origin, source, text in evidence.texts:
        about_targets = form("targets").search(f"{source} {text[:200]}")
        if not about_targets or origin not in ("tool", "message"):
            continue
        targets = set(form("chip").findall(" ".join(form("chips").findall(text))))
        if targets and chip[1] not in targets:
            listed = ", gfx".join(sorted(targets)[:12])
            says = f"The targets are gfx{listed}"
            yield make_observation(
                "gfx-not-in-targets", chip.group(), source, "tool", says
            )
            return


def _toolkit(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip that is newer than the CUDA release (toolkits.json)."""
    torch = evidence.fact("torch")
    release = form("CUDA build").search(torch) or form("CUDA").match(
        evidence.fact("cuda")
    )
    needed = _cuda_of_chip(evidence.fact("gpu"))
    if not release or not needed or is_hip(evidence):
        return
    version = [int(part) for part in release.groups() if part]
    if version < [int(part) for part in needed.split(".")]:
        words = f"CUDA {version[0]}.{version[1]}"
        says = f"This chip needs CUDA {needed} or later"
        yield make_observation(
            "toolkit-older-than-chip", words, "cuda", "environment", says
        )


def _cuda_of_chip(gpu: str) -> str:
    """The first CUDA release for a GPU by its name; empty where the table has no such name."""
    for row in table("toolkits"):  # the newer chips stand first
        if re.search(row["gpu_names"], gpu, re.IGNORECASE):
            return str(row["first_cuda"])
    return ""
