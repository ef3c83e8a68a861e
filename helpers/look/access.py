"""Which GPU device nodes this process can open, as which user and in which container it runs.

Sources: open(2) for the errors; Documentation/admin-guide/cgroup-v1/devices.rst (a device
cgroup refuses with EPERM, mode bits and security modules with EACCES). access.json lists the nodes
to open and the signs of a container.
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
"""Twice as long as other reads have: opening a node wakes a suspended GPU (amdgpu_driver_open_kms
in drivers/gpu/drm/amd/amdgpu/amdgpu_kms.c).
"""
NO_REASON = "no reason given"
CONTAINER_VARIABLE = "container"
"""The variable that systemd-nspawn and podman set inside (systemd.io, CONTAINER_INTERFACE)."""
INIT_NAMESPACES: dict[str, str] = _SIGNS["namespaces"]
"""The targets of the links in /proc/self/ns outside of any container: the kernel's first
namespaces have fixed inode numbers.
"""
FIRST_USER_GID = 1000
"""Groups from here on are people's (GID_MIN of login.defs(5)), and may have a person's name."""


@dataclass(frozen=True)
class Node:
    """One device node, and whether open() succeeded.

    ``opened`` is ``yes``, or not available or not allowed with the name of the error. ``errno`` is
    that name alone. ``mode`` is in octal; ``group`` is empty if ``gid`` has no name here.
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
        """Whether there is no such node."""
        return self.errno in ("ENOENT", "ENOTDIR")


@dataclass(frozen=True)
class Identity:
    """As which user, and in which container, the capture ran. None: it could not be read.

    ``groups`` are (gid, name) of those in force now; ``groups_in_database`` are the names of those
    that /etc/group gives at the next log-in. ``container`` is its kind, or ``none``.
    ``init_pid_ns`` is False if the processes of the host, or of other containers, cannot be seen.
    ``hidepid`` is the mount option of /proc (proc(5)); ``wsl``: the kernel is that of WSL.
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
    """The table ``access``: a row for each device node of this box.

    Each node is opened and closed in a child process: opening /dev/kfd registers the process with
    the driver, which forgets it only at its end.
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
    """The row of one device node, all but the name of its group."""
    row: JsonRow = {"path": path, "status": "ok", "errno": "", "why": ""}
    try:
        state = os.stat(path)
        row["uid"] = state.st_uid
        row["gid"] = state.st_gid
        row["mode"] = f"{stat.S_IMODE(state.st_mode):04o}"
        if not stat.S_ISCHR(state.st_mode):
            raise OSError(errno.ENODEV, "not a character device")
        # As torch opens it, but so that neither a modem nor a terminal can make it wait.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        os.close(os.open(path, flags))
    except OSError as error:
        row["status"], row["why"] = files.fault(error)
        if error.errno is not None:
            row["errno"] = errno.errorcode.get(error.errno, "")
    return row


def _group_lines() -> Iterator[tuple[str, int, list[str]]]:
    """(name, gid, members) of each group in /etc/group, whose lines are name:password:gid:members
    (group(5)).
    """
    for line in files.text("/", "/etc/group", files.FILE_LIMIT_BYTES).splitlines():
        columns = line.split(":")
        if len(columns) >= 4 and columns[2].isdigit():
            members = [member.strip() for member in columns[3].split(",")]
            yield columns[0], int(columns[2]), members


def _text(source: str) -> str:
    return files.text("/", source)


def collect_identity() -> list[JsonRow]:
    """The table ``identity``: one row about this process. The user's own name is not kept."""
    user = _user_name()
    names: dict[int, str] = {}
    memberships = []
    for name, gid, members in _group_lines():
        names[gid] = name
        if name == user and gid >= FIRST_USER_GID:  # a group of one person has its name
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


def _user_name() -> str:
    """The name of this user in /etc/passwd, whose lines are name:password:uid:... (passwd(5));
    empty if it has none.
    """
    for line in _text("/etc/passwd").splitlines():
        columns = line.split(":")
        if columns[2:3] == [str(os.getuid())]:
            return columns[0]
    return ""


def _is_init_namespace(name: str) -> bool | None:
    """Whether a namespace of this process is the host's own; None if that cannot be read."""
    try:
        return os.readlink(f"/proc/self/ns/{name}") == INIT_NAMESPACES[name]
    except OSError:
        return None


def _selinux() -> tuple[str, str]:
    """The mode of SELinux (``enforcing``, ``permissive``, ``disabled``, ``unknown``), and the label
    of this process.
    """
    label = _text("/proc/self/attr/current").rstrip("\0")
    # A label of SELinux is user:role:type or longer; under AppArmor the same file has the name of
    # a profile.
    if label.count(":") < 2:
        label = ""
    enforcing = _text("/sys/fs/selinux/enforce")
    if enforcing == "1":
        return "enforcing", label
    if enforcing == "0":
        return "permissive", label
    # selinuxfs is not mounted here, as in a container, but processes have labels.
    if label:
        return "unknown", label
    return "disabled", ""


def _hidepid() -> str:
    """The value of hidepid= with which /proc is mounted; 0, the kernel's default, without one."""
    for line in _text("/proc/self/mounts").splitlines():
        words = line.split()  # device, folder, type, options (fstab(5))
        if words[1:3] == ["/proc", "proc"]:
            for option in words[3].split(","):
                name, _, value = option.partition("=")
                if name == "hidepid":
                    return value
    return "0"


def _container() -> str:
    """The kind of container, or ``none``: the first sign of one in this order, which begins with
    the most reliable ones. Kubernetes wins, since its containers have the signs of others, too.
    """
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
        # A virtual machine made from a container's image has its signs, too, but namespaces of
        # its own. Of containers, only apptainer's share all of these with the host.
        kinds = [kind for kind in kinds if kind == "apptainer"]
    if "kubernetes" in kinds:
        return "kubernetes"
    return next(iter(kinds), "none")


def access(bundle: Bundle) -> tuple[Node, ...]:
    """Every device node that the capture tried to open, sorted by path."""
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
    """Whether a node could be opened, with the error's name behind the reason why not."""
    if row.get("status") == OK:
        return text.seen("yes")
    why = row.text("why")
    name = row.text("errno")
    if name and name not in why:
        why = f"{why} ({name})".strip()
    if not why:
        why = NO_REASON
    return text.refused(row.get("status"), why)


def identity(bundle: Bundle) -> Identity | None:
    """As which user the capture ran; None if the bundle does not say
    (``bundle.read("identity")`` says why).
    """
    row = next(iter(bundle.table("identity")), None)
    if row is None:
        return None
    groups = []
    for group in rows(row.many("groups")):
        gid = group.number("gid")
        if gid is not None:
            groups.append((gid, group.text("name")))
    container = row.text("container")
    if not container:
        container = "none"
    return Identity(
        uid=row.number("uid"),
        groups=tuple(groups),
        groups_in_database=tuple(str(name) for name in row.many("groups_in_database")),
        container=container,
        init_pid_ns=row.truth("init_pid_ns"),
        wsl=row.get("wsl") is True,
        item=bundle.read("identity").item,
        gid_map=row.text("gid_map"),
        selinux_mode=row.text("selinux_mode"),
        selinux_context=row.text("selinux_context"),
        hidepid=row.text("hidepid"),
    )
