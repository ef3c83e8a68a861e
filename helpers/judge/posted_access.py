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


def access_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """What tools print of device nodes, and of who has them open."""
    yield from _membership(evidence)
    lists_a_holder = any(row.bytes is not None for row in processes(evidence))
    for source, text in evidence.tools:
        if form("openers").search(source) and form("nothing").search(text):
            yield make_observation("no-openers", "(no output)", source, "tool")
        node = form("node").search(text)
        if node and "rw" not in node["mode"][3:]:
            yield make_observation("node-root-only", node.group()[:80], source, "tool")
        match = form("empty").search(text)
        if match and not lists_a_holder:
            hard = not is_described(text)
            yield make_observation(
                "list-empty", match.group(), source, "tool", hard=hard
            )


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """A node that is for a group alone, beside an ``id`` that does not name that group.

    Root needs none.
    """
    users: list[re.Match[str]] = []
    for _, text in evidence.tools:
        users += form("id").finditer(text)
    if len(users) != 1 or users[0].group().startswith("uid=0"):
        return
    groups = users[0]["groups"]
    for source, text in evidence.tools:
        for node in form("group's node").finditer(text):
            group = node["group"]
            if group not in re.findall(r"[\w.-]+", groups):
                says = f"Its group is {group}, and the user is in {groups}"
                yield make_observation(
                    "not-in-group", node["node"], source, "tool", says
                )
                return


def container_observations(evidence: CaseEvidence) -> Iterator[Observation]:
    """How a container was started: devices passed without their group, or not passed."""
    for origin, source, text in evidence.texts:
        if origin in ("tool", "message") and form("container").search(
            f"{source} {text}"
        ):
            yield from _of_start(origin, source, text)
    container = evidence.fact("container")
    if container and container.lower() not in ("none", "no"):
        yield make_observation(
            "in-container", container[:80], "container", "environment"
        )


def _of_start(origin: str, source: str, text: str) -> Iterator[Observation]:
    """What a command that starts a container leaves out of the devices or their group."""
    passes_kfd = "/dev/kfd" in text
    passes_dri = "/dev/dri" in text
    is_privileged = re.search(r"--privileged|privileged: true", text)
    if is_privileged or not (passes_kfd or passes_dri):
        return
    groups = re.findall(r"--group-add[= ]+(\S{1,40})", text)
    owns_nodes = any(
        name in ("render", "keep-groups") or name.isdigit() for name in groups
    )
    if passes_kfd and groups and not owns_nodes:
        yield make_observation("group-missing-in-run", " ".join(groups), source, origin)
    if passes_kfd != passes_dri:
        yield make_observation("device-missing-in-run", text[:120], source, origin)
