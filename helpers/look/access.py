"""What this process may do: which GPU device nodes it can open, as whom it runs, and what
stands in the way.

Sources: open(2) for the errors; Documentation/admin-guide/cgroup-v1/devices.rst (a device
cgroup refuses with EPERM, mode bits and security modules with EACCES). Which nodes are opened
and what tells a container are data: access.json.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ground.shapes import OK, Reading
from helpers.ground.tables import data

from . import files, hanging
from .bundle import Bundle, rows

_SIGNS = data("look/access")
NODES = tuple(_SIGNS["nodes"])
OPEN_LIMIT_S = 10.0
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


def walk_access() -> Iterator[dict[str, Any]]:
    """Rows of the table ``access``, one by one.

    Each node is opened and closed at once in a child: opening /dev/kfd makes a KFD process
    entry. Only for this box: nodes of another tree say nothing about what this process may do.
    """
    found = [item for pattern in NODES for item in files.find("/", pattern)]
    groups = {gid: name for name, gid, _ in _group_lines()}
    for item, row, why in hanging.read_each([f.source for f in found], _node, OPEN_LIMIT_S):
        row = row or {"path": item, "status": "not_available", "errno": "", "why": f"open() {why}"}
        if "gid" in row:
            row["group"] = groups.get(row["gid"], "")
        yield row


def _node(path: str) -> dict[str, Any]:
    row: dict[str, Any] = {"path": path, "status": "ok", "errno": "", "why": ""}
    try:
        there = os.stat(path)
        row.update(uid=there.st_uid, gid=there.st_gid, mode=f"{stat.S_IMODE(there.st_mode):04o}")
        if not stat.S_ISCHR(there.st_mode):
            row.update(status="not_available", errno="ENODEV", why="not a character device")
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        status, why = files.fault(error)
        row.update(status=status, errno=errno.errorcode.get(error.errno or 0, ""), why=why)
    return row


def _group_lines() -> Iterator[tuple[str, int, list[str]]]:
    for line in files.text("/", "/etc/group", files.FILE_LIMIT_BYTES).splitlines():
        parts = line.split(":")
        if len(parts) >= 4 and parts[2].isdigit():
            yield parts[0], int(parts[2]), [member.strip() for member in parts[3].split(",")]


def _text(source: str) -> str:
    return files.text("/", source)


def collect_identity(root: Path) -> list[dict[str, Any]]:
    """The table ``identity``: one row about this process. The user's own name is not kept."""
    accounts = [line.split(":") for line in _text("/etc/passwd").splitlines()]
    user = next((words[0] for words in accounts if words[2:3] == [str(os.getuid())]), "")
    database = list(_group_lines())
    own = {gid for name, gid, _ in database if name == user and gid >= 1000}
    names = {gid: "(the user's own)" if gid in own else name for name, gid, _ in database}
    member = sorted(names[gid] for _, gid, members in database if user and user in members)
    groups = sorted({os.getegid(), *os.getgroups()})
    label = _text("/proc/self/attr/current").rstrip("\0")
    # Labels of SELinux have at least user:role:type; a name of an AppArmor profile may stand in
    # the same file.
    selinux = label if label.count(":") >= 2 else ""
    modes = {"1": "enforcing", "0": "permissive"}
    enforcing = _text("/sys/fs/selinux/enforce")
    container, signs = _container()
    space = _link("/proc/self/ns/pid")
    mounts = [line.split() for line in _text("/proc/self/mounts").splitlines()]
    options = [o for m in mounts if m[1:3] == ["/proc", "proc"] for o in m[3].split(",")]
    hidden = [o.partition("=")[2] for o in options if o.startswith("hidepid=")]
    gid_map = [" ".join(line.split()) for line in _text("/proc/self/gid_map").splitlines()]
    return [
        {
            "uid": os.geteuid(),
            "groups": [{"gid": gid, "name": names.get(gid, "")} for gid in groups],
            "groups_in_database": member,
            "gid_map": "; ".join(gid_map),
            "selinux_mode": modes.get(enforcing, "unknown" if selinux else "disabled"),
            "selinux_context": selinux,
            "container": container,
            "container_signs": signs,
            "init_pid_ns": space == INIT_NAMESPACES["pid"] if space else None,
            "hidepid": hidden[0] if hidden else "0",
            "wsl": "microsoft" in _text("/proc/sys/kernel/osrelease").lower(),
        }
    ]


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _container() -> tuple[str, list[str]]:
    """The kind of container and every sign of one; the first sign in this order names the kind."""
    found = [(kind, path) for path, kind in _SIGNS["paths"].items() if os.path.lexists(path)]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        found.append(("kubernetes", "KUBERNETES_SERVICE_HOST is set"))
    for source in ("/proc/self/cgroup", "/proc/1/cgroup"):
        text = _text(source)
        signs = [(kind, word) for word, kind in _SIGNS["cgroups"].items() if word in text]
        found += [(kind, f"{source} names {word}") for kind, word in signs]
    manager = _text("/run/systemd/container") or os.environ.get("container", "")
    found += [(manager, f"systemd says {manager}")] if manager else []
    mounts = _text("/proc/self/mounts").splitlines()
    if any(line.split()[1:3] == ["/", "overlay"] for line in mounts):
        found.append(("container", "/ is an overlay"))
    if all(_link(f"/proc/self/ns/{name}") == INIT_NAMESPACES[name] for name in INIT_NAMESPACES):
        # A machine made from a container's image carries its signs; apptainer alone leaves all
        # of these to the machine.
        found = [(kind if kind == "apptainer" else "none", sign) for kind, sign in found]
    kinds = [kind for kind, _ in found if kind != "none"]
    first = "kubernetes" if "kubernetes" in kinds else kinds[0] if kinds else "none"
    return first, sorted({sign for _, sign in found})


def access(bundle: Bundle) -> tuple[Node, ...]:
    """Every device node that was looked for, by path."""
    text = bundle.read("access")
    found = {}
    for row in bundle.table("access"):
        path = row.text("path")
        name = row.text("errno")
        why = row.text("why")
        named = [why, f"({name})" if name and name not in why else ""]
        why = " ".join(filter(None, named)) or "no reason given"
        at = text.of(path)
        ok = row.get("status") == OK
        opened = at.seen("yes") if ok else at.refused(row.get("status"), why)
        ids = row.number("uid"), row.number("gid")
        if path:
            found[path] = Node(path, opened, name, row.text("mode"), *ids, row.text("group"))
    return tuple(found[path] for path in sorted(found))


def identity(bundle: Bundle) -> Identity | None:
    """As whom the capture ran; None where that was not captured (``bundle.read("identity")``
    says why).
    """
    row = next(iter(bundle.table("identity")), None)
    if row is None:
        return None
    init = row.get("init_pid_ns")
    groups = ((group.number("gid"), group.text("name")) for group in rows(row.many("groups")))
    texts = ("gid_map", "selinux_mode", "selinux_context", "hidepid")
    return Identity(
        uid=row.number("uid"),
        groups=tuple((gid, name) for gid, name in groups if gid is not None),
        groups_in_database=tuple(str(name) for name in row.many("groups_in_database")),
        container=row.text("container") or "none",
        init_pid_ns=init if isinstance(init, bool) else None,
        wsl=row.get("wsl") is True,
        item=bundle.read("identity").item,
        **{name: row.text(name) for name in texts},
    )


# Settings that a process inherits and that change what a GPU program gets: environment
# variables and ulimits.
#
# Variables are taken by allow-list (environment.json). A name that sounds like a secret is left
# out even where its prefix is allowed.

_KNOWN = data("look/environment")
NAMES = _KNOWN["names"].split()
PREFIXES = tuple(_KNOWN["prefixes"].split())
LIMITS: dict[str, str] = _KNOWN["limits"]
"""Each ulimit, named as in limits.conf(5), with its unit."""
VALUE_LIMIT = 4096


@dataclass(frozen=True)
class Variable:
    """One environment variable; an empty value is a value."""

    name: str
    value: str
    item: str


@dataclass(frozen=True)
class Limit:
    """One ulimit, the soft one, which holds.

    A limit that is not set reads as not available: unlimited.
    """

    name: str
    soft: Reading


def collect_environment() -> list[dict[str, Any]]:
    """The table ``environment``.

    The home folder in a value is written ``~``; name and password in an address are left out.
    """
    names = filter(is_allowed, sorted(os.environ))
    return [{"name": name, "value": without_names(os.environ[name])} for name in names]


def is_allowed(name: str) -> bool:
    """Whether a variable of that name may be kept."""
    if sounds_secret(name):
        return False
    return name in NAMES or name.startswith(PREFIXES)


def sounds_secret(name: str) -> bool:
    """Whether the value of an option or a variable of that name is not to be shown: HF_TOKEN,
    --api-key, dbPassword.
    """
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]
    while len(words) > 1 and words[-1] in _KNOWN["after a secret"].split():
        words.pop()
    if any(re.fullmatch(_KNOWN["secret anywhere"], word) for word in words):
        return True
    before, last = ["", "", *words][-2:]
    if last in ("keys", "tokens"):
        return before in _KNOWN["of secrets"].split()
    of_alphabet = last == "token" and before in _KNOWN["of a tokenizer"].split()
    return bool(re.fullmatch(_KNOWN["secret at the end"], last)) and not of_alphabet


def without_names(value: str) -> str:
    """A value with the home folder written ``~`` and without a name and password in an address."""
    value = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:VALUE_LIMIT]
    home = os.path.expanduser("~")
    if len(home) > 1:
        value = re.sub(re.escape(home) + r"(?=[/:;,=\s]|$)", "~", value)
    return re.sub(r"://[^/@\s]+@", "://", value)


def collect_limits() -> list[dict[str, Any]]:
    """The table ``limits``, in bytes or counts; a limit that is not set is the word ``unlimited``."""
    rows = []
    for name, unit in LIMITS.items():
        kept = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))
        soft, hard = ("unlimited" if n == resource.RLIM_INFINITY else n for n in kept)
        rows.append({"name": name, "soft": soft, "hard": hard, "unit": unit})
    return rows


def variables(bundle: Bundle) -> tuple[Variable, ...]:
    """The environment variables that were kept, by name."""
    item = bundle.read("environment").item
    table = bundle.table("environment")
    kept = {str(row["name"]): str(row.get("value", "")) for row in table if "name" in row}
    return tuple(Variable(name, kept[name], item) for name in sorted(kept))


def limits(bundle: Bundle) -> tuple[Limit, ...]:
    """The ulimits of the capturing process, by name."""
    text = bundle.read("limits")
    found = {}
    for row in bundle.table("limits"):
        name = row.text("name")
        value = row.number("soft")
        unit = "bytes" if row.get("unit") == "bytes" else "count"
        why = "unlimited" if row.get("soft") == "unlimited" else "not captured"
        at = text.of(f"ulimit {name} (soft)")
        found[name] = at.missing(why, unit) if value is None else at.seen(value, unit)
    return tuple(Limit(name, found[name]) for name in sorted(found) if name)


def looks_secret(word: str) -> bool:
    """Whether a word is a token by its own shape (secrets.json), or begins as one, or is a long
    number in hexadecimal.
    """
    for row in data("look/secrets")["tokens"]:
        begins = tuple(one for one in row["begins"].split() if one[-1] in "_-")
        if re.fullmatch(row["shape"], word) or (word.startswith(begins) and word[-1].isalnum()):
            return True
    return bool(re.fullmatch("[0-9a-f]{32,}", word))
