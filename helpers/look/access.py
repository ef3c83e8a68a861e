"""What this process may do: which GPU device nodes it can open, as whom it runs, and what
stands in the way.

Sources: open(2) for the errors; Documentation/admin-guide/cgroup-v1/devices.rst (a device
cgroup refuses with EPERM, mode bits and security modules with EACCES). Which nodes are opened
and what tells a container are data: access.json.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from helpers.ground.shapes import OK, Reading
from helpers.ground.tables import data
from helpers.look.bundle import Bundle, JsonRow, Row, Text, rows

from . import files, hanging

_SIGNS = data("look/access")
NODES = tuple(_SIGNS["nodes"])
OPEN_LIMIT_S = 10.0
NO_REASON = "no reason given"
CONTAINER_VARIABLE = "container"
"""What systemd-nspawn and podman set inside (systemd.io, CONTAINER_INTERFACE)."""
INIT_NAMESPACES: dict[str, str] = _SIGNS["namespaces"]


@dataclass(frozen=True)
class Node:
    """One device node and what open() said of it: ``opened`` is ``yes``, not available or not
    allowed, with the error's name.

    ``mode`` is octal text; ``group`` is empty where no name goes with ``gid`` here.
    """

    path: str
    opened: Reading
    errno: str
    mode: str
    uid: int | None
    gid: int | None
    group: str

    @property
    def missing(self) -> bool:
        return self.errno in ("ENOENT", "ENOTDIR")


@dataclass(frozen=True)
class Identity:
    """As whom, and inside what, the capture ran. None means that it could not be read.

    ``groups`` are in force now, ``groups_in_database`` are those /etc/group would give at the
    next log-in. ``container`` is ``none`` where no sign was found, or where the namespaces are
    the machine's own. ``init_pid_ns`` is False where processes of the host, or of other
    containers, are unseen.
    """

    uid: int | None
    groups: tuple[tuple[int, str], ...]
    groups_in_database: tuple[str, ...]
    gid_map: str
    selinux_mode: str
    selinux_context: str
    container: str
    init_pid_ns: bool | None
    hidepid: str
    wsl: bool
    item: str


def walk_access() -> Iterator[JsonRow]:
    """Rows of the table ``access``, one by one.

    Each node is opened and closed at once in a child: opening /dev/kfd makes a KFD process
    entry. Only for this box: nodes of another tree say nothing about what this process may do.
    """
    paths = []
    for pattern in NODES:
        paths += [match.source for match in files.find("/", pattern)]
    groups = {gid: name for name, gid, _ in _group_lines()}
    for path, row, why in hanging.read_each(paths, _node, OPEN_LIMIT_S):
        if row is None:
            why = f"open() {why}"
            row = {"path": path, "status": "not_available", "errno": "", "why": why}
        if "gid" in row:
            row["group"] = groups.get(row["gid"], "")
        yield row


def _node(path: str) -> JsonRow:
    row: JsonRow = {"path": path, "status": "ok", "errno": "", "why": ""}
    try:
        state = os.stat(path)
        row["uid"] = state.st_uid
        row["gid"] = state.st_gid
        row["mode"] = f"{stat.S_IMODE(state.st_mode):04o}"
        if stat.S_ISCHR(state.st_mode):
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            os.close(os.open(path, flags))
        else:
            why = "not a character device"
            row.update(status="not_available", errno="ENODEV", why=why)
    except OSError as error:
        status, why = files.fault(error)
        name = ""
        if error.errno is not None:
            name = errno.errorcode.get(error.errno, "")
        row.update(status=status, errno=name, why=why)
    return row


def _group_lines() -> Iterator[tuple[str, int, list[str]]]:
    for line in files.text("/", "/etc/group", files.FILE_LIMIT_BYTES).splitlines():
        parts = line.split(":")
        if len(parts) >= 4 and parts[2].isdigit():
            members = [member.strip() for member in parts[3].split(",")]
            yield parts[0], int(parts[2]), members


def _text(source: str) -> str:
    return files.text("/", source)


def collect_identity() -> list[JsonRow]:
    """The table ``identity``: one row about this process. The user's own name is not kept."""
    accounts = [line.split(":") for line in _text("/etc/passwd").splitlines()]
    user = next(
        (words[0] for words in accounts if words[2:3] == [str(os.getuid())]), ""
    )
    names: dict[int, str] = {}
    memberships = []
    for name, gid, members in _group_lines():
        names[gid] = name
        if name == user and gid >= 1000:
            names[gid] = "(the user's own)"
        if user and user in members:
            memberships.append(names[gid])
    groups = sorted({os.getegid(), *os.getgroups()})
    mode, context = _selinux()
    gid_map = _text("/proc/self/gid_map").splitlines()
    return [
        {
            "uid": os.geteuid(),
            "groups": [{"gid": gid, "name": names.get(gid, "")} for gid in groups],
            "groups_in_database": sorted(memberships),
            "gid_map": "; ".join(" ".join(line.split()) for line in gid_map),
            "selinux_mode": mode,
            "selinux_context": context,
            "container": _container(),
            "init_pid_ns": _is_init_namespace("pid"),
            "hidepid": _hidepid(),
            "wsl": "microsoft" in _text("/proc/sys/kernel/osrelease").lower(),
        }
    ]


def _is_init_namespace(name: str) -> bool | None:
    """Whether a namespace of this process is the machine's own; None where that cannot be read."""
    try:
        return os.readlink(f"/proc/self/ns/{name}") == INIT_NAMESPACES[name]
    except OSError:
        return None


def _selinux() -> tuple[str, str]:
    """The mode of SELinux, and the label of this process."""
    label = _text("/proc/self/attr/current").rstrip("\0")
    # A label of SELinux has at least user:role:type; the name of an AppArmor profile may stand
    # in the same file.
    if label.count(":") < 2:
        label = ""
    enforcing = _text("/sys/fs/selinux/enforce")
    if enforcing == "1":
        return "enforcing", label
    if enforcing == "0":
        return "permissive", label
    if label:
        return "unknown", label
    return "disabled", ""


def _hidepid() -> str:
    """The value of hidepid= with which /proc is mounted; 0, the kernel's default, without one."""
    for line in _text("/proc/self/mounts").splitlines():
        words = line.split()
        if words[1:3] == ["/proc", "proc"]:
            for option in words[3].split(","):
                if option.startswith("hidepid="):
                    return option.partition("=")[2]
    return "0"


def _container() -> str:
    """The kind of container; the first sign of one in this order names it."""
    kinds = [kind for path, kind in _SIGNS["paths"].items() if os.path.lexists(path)]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        kinds.append("kubernetes")
    for source in ("/proc/self/cgroup", "/proc/1/cgroup"):
        text = _text(source)
        kinds += [kind for word, kind in _SIGNS["cgroups"].items() if word in text]
    kinds.append(_text("/run/systemd/container"))
    kinds.append(os.environ.get(CONTAINER_VARIABLE, ""))
    mounts = _text("/proc/self/mounts").splitlines()
    if any(line.split()[1:3] == ["/", "overlay"] for line in mounts):
        kinds.append("container")
    kinds = [kind for kind in kinds if kind not in ("", "none")]
    if all(map(_is_init_namespace, INIT_NAMESPACES)):
        # A machine made from a container's image carries its signs; apptainer alone leaves all
        # of these to the machine.
        kinds = [kind for kind in kinds if kind == "apptainer"]
    if "kubernetes" in kinds:
        return "kubernetes"
    return next(iter(kinds), "none")


def access(bundle: Bundle) -> tuple[Node, ...]:
    """Every device node that was looked for, by path."""
    text = bundle.read("access")
    nodes = {}
    for row in bundle.table("access"):
        path = row.text("path")
        if not path:
            continue
        nodes[path] = Node(
            path=path,
            opened=_opened(row, text.of(path)),
            errno=row.text("errno"),
            mode=row.text("mode"),
            uid=row.number("uid"),
            gid=row.number("gid"),
            group=row.text("group"),
        )
    return tuple(nodes[path] for path in sorted(nodes))


def _opened(row: Row, text: Text) -> Reading:
    if row.get("status") == OK:
        return text.seen("yes")
    why = row.text("why")
    name = row.text("errno")
    if name and name not in why:
        why = f"{why} ({name})".strip()
    return text.refused(row.get("status"), why or NO_REASON)


def identity(bundle: Bundle) -> Identity | None:
    """As whom the capture ran; None where that was not captured (``bundle.read("identity")``
    says why).
    """
    row = next(iter(bundle.table("identity")), None)
    if row is None:
        return None
    init = row.get("init_pid_ns")
    groups = (
        (group.number("gid"), group.text("name")) for group in rows(row.many("groups"))
    )
    return Identity(
        uid=row.number("uid"),
        groups=tuple((gid, name) for gid, name in groups if gid is not None),
        groups_in_database=tuple(str(name) for name in row.many("groups_in_database")),
        container=row.text("container") or "none",
        init_pid_ns=init if isinstance(init, bool) else None,
        wsl=row.get("wsl") is True,
        item=bundle.read("identity").item,
        gid_map=row.text("gid_map"),
        selinux_mode=row.text("selinux_mode"),
        selinux_context=row.text("selinux_context"),
        hidepid=row.text("hidepid"),
    )
