"""Versions in posted texts that do not go together: wheels, targets of a build, CUDA releases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.judge import form, table
from helpers.judge.evidence import CaseEvidence
from helpers.judge.hardware import is_hip
from helpers.judge.observation import Observation, make_observation

MOST_LISTED = 12
"""Targets of a build that a sentence lists."""


def version_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """Wheels of another torch, a chip without code for it, a CUDA release before the chip."""
    yield from _wheels(evidence)
    yield from _targets(evidence)
    yield from _toolkit(evidence)


def _wheels(evidence: CaseEvidence) -> Iterator[Observation]:
    """Wheels of torchvision or torchaudio that are for another torch.

    torchvision 0.(N+15) is for torch 2.N, 0.(N+1) for 1.N; torchaudio has torch's own number, or
    0.N for 1.N (the tables of releases in both repositories).
    """
    versions: dict[str, tuple[int, int]] = {}  # (major, minor) of each package
    source = ""
    for _, name, text in evidence.texts:
        for package, major, minor in form("wheel").findall(f"{name}: {text}"):
            if package.lower() not in versions:
                versions[package.lower()] = (int(major), int(minor))
                source = name
    if "torch" not in versions:
        return
    torch, minor = versions["torch"]
    fitting = {"torchvision": (0, minor + 15), "torchaudio": (torch, minor)}
    if torch != 2:
        fitting = {"torchvision": (0, minor + 1), "torchaudio": (0, minor)}
    for package, version in fitting.items():
        posted = versions.get(package, version)
        if posted != version:
            words = f"{package} {posted[0]}.{posted[1]}"
            says = f"It is not the one of torch {torch}.{minor}"
            yield make_observation("wheels-differ", words, source, "tool", says)


def _targets(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip (gfx1100) that is not in a list of a build's targets: the chip as a fact of the
    environment names it, the list as a tool or a message prints it. Nothing without either.
    """
    # "gfx1035 as gfx1030": the chip is the first, the second is what it is passed off as.
    own_name = re.split(r" (?:as|presented)\b", evidence.fact("gfx"))[0]
    chip = form("chip").search(own_name)
    if not chip:
        return
    for origin, source, text in evidence.texts:
        about_targets = form("targets").search(f"{source} {text[:200]}")
        if not about_targets or origin not in ("tool", "message"):
            continue
        lists = form("chips").findall(text)
        targets = set(form("chip").findall(" ".join(lists)))  # without their gfx
        if targets and chip[1] not in targets:
            listed = ", gfx".join(sorted(targets)[:MOST_LISTED])
            says = f"The targets are gfx{listed}"
            yield make_observation("gfx-not-in-targets", chip[0], source, "tool", says)
            return


def _toolkit(evidence: CaseEvidence) -> Iterator[Observation]:
    """A chip that is newer than the CUDA release (toolkits.json): that of torch's build where its
    version names one (+cu118), else the one that is installed.
    """
    release = form("CUDA build").search(evidence.fact("torch"))
    if release is None:
        release = form("CUDA").match(evidence.fact("cuda"))
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
