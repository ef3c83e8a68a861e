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
    """What tools print of device nodes, of the processes that have them open, and of lists of
    processes that are empty.
    """
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
        # An empty list says nothing where another tool lists a process with its memory.
        if match and not lists_a_holder:
            hard = not is_described(text)
            yield make_observation("list-empty", match[0], source, "tool", hard=hard)


def _membership(evidence: CaseEvidence) -> Iterator[Observation]:
    """The first device node that only root and a group may open, where the output of ``id`` says
    that the user is not in this group; nothing where there is no such node.

    Both are outputs of tools: ``ls -l`` prints the node with its group, ``id`` the user's groups.
    """
    id_lines: list[re.Match[str]] = []
    for _, text in evidence.tools:
        id_lines += form("id").finditer(text)
    # Of several users (host and container, before and after usermod) nothing says which of them
    # ran the program.
    if len(id_lines) != 1:
        return
    if id_lines[0][0].startswith("uid=0"):  # root opens every node without its group
        return
    groups = id_lines[0]["groups"]
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
    """How a container was started (devices passed without their group, or not passed), and that
    the program ran in a container, where the environment says so.
    """
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
    """What the command that starts a container lacks of what AMD's GPUs need: one of the devices
    /dev/kfd and /dev/dri, or the group that may open them.

    That group is ``render``, by its name or by any number; ``keep-groups`` is Podman's word for
    all groups of the user. A command that passes neither device is for no GPU of AMD, and a
    privileged container has every device: nothing is said of both.
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
    # Without any --group-add the user in the container may be root, as by default in Docker.
    if passes_kfd and groups and not opening:
        yield make_observation("group-missing-in-run", " ".join(groups), source, origin)
    if passes_kfd != passes_dri:
        yield make_observation(
            "device-missing-in-run", text[:SHOWN_OF_COMMAND], source, origin
        )
