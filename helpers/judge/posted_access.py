"""Access to the GPU in posted texts: device nodes, groups, openers, and how a container was
started.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.judge import form
from helpers.judge.evidence import CaseEvidence, is_described
from helpers.judge.observation import Observation, make_observation
from helpers.judge.posted_processes import processes

SHOWN = 80
SHOWN_OF_COMMAND = 120
"""Characters that are quoted of a line, and of a command that starts a container."""


def access_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What tools print of device nodes, and of the processes that have them open."""
    yield from _membership(evidence)
    lists_a_holder = any(row.bytes is not None for row in processes(evidence))
    for source, text in evidence.tools:
        if form("openers").search(source) and form("nothing").search(text):
            yield make_observation("no-openers", "(no output)", source, "tool")
        node = form("node").search(text)
        # Of crw-rw---- the first three of the nine letters are the owner's, which is root.
        if node and "rw" not in node["mode"][3:]:
            yield make_observation("node-root-only", node[0][:SHOWN], source, "tool")
        match = form("empty").search(text)
        if match and not lists_a_holder:
            hard = not is_described(text)
            yield make_observation("list-empty", match[0], source, "tool", hard=hard)


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """The first node that only a group may open, beside an ``id`` that does not name this group.

    Root needs no group.
    """
    users: list[re.Match[str]] = []
    for _, text in evidence.tools:
        users += form("id").finditer(text)
    if len(users) != 1 or users[0][0].startswith("uid=0"):
        return
    groups = users[0]["groups"]
    names = re.findall(r"[\w.-]+", groups)
    for source, text in evidence.tools:
        for node in form("group's node").finditer(text):
            group = node["group"]
            if group not in names:
                says = f"Its group is {group}, and the user is in {groups}"
                yield make_observation(
                    "not-in-group", node["node"], source, "tool", says
                )
                return


def container_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """How a container was started: devices passed without their group, or not passed."""
    for origin, source, text in evidence.texts:
        is_start = form("container").search(f"{source} {text}")
        if is_start and origin in ("tool", "message"):
            yield from _of_start(origin, source, text)
    container = evidence.fact("container")
    if container and container.lower() not in ("none", "no"):
        yield make_observation(
            "in-container", container[:SHOWN], "container", "environment"
        )


def _of_start(origin: str, source: str, text: str) -> Iterator[Observation]:
    """The device, or the group of the devices, that a command which starts a container lacks.

    AMD's GPUs need both /dev/kfd and /dev/dri, and the group ``render`` or its number;
    ``keep-groups`` is Podman's word for all groups of the user.
    """
    passes_kfd = "/dev/kfd" in text
    passes_dri = "/dev/dri" in text
    is_privileged = re.search(r"--privileged|privileged: true", text)
    if is_privileged or not (passes_kfd or passes_dri):
        return
    groups = re.findall(r"--group-add[= ]+(\S{1,40})", text)
    opening = [
        name for name in groups if name in ("render", "keep-groups") or name.isdigit()
    ]
    if passes_kfd and groups and not opening:
        yield make_observation("group-missing-in-run", " ".join(groups), source, origin)
    if passes_kfd != passes_dri:
        yield make_observation(
            "device-missing-in-run", text[:SHOWN_OF_COMMAND], source, origin
        )
