"""What is known of a box before any page is read: its names, addresses, numbers and the people on it.

Read from files alone: no command, no look-up of a name and no file of credentials. Of secrets only the values of environment
variables with such a name are taken, to be found where a page holds them; nothing of it is written anywhere.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.look.bundle import Bundle
from helpers.look.environment import sounds_secret

from .redact_known import Known
from .redact_notebook import learn_data
from .redact_words import learn

ONE_VALUE = {
    "machine-id": "machine-id",
    "boot_id": "boot-id",
    "unique_id": "serial",
    "product_serial": "serial",
    "board_serial": "serial",
    "chassis_serial": "serial",
    "product_uuid": "uuid",
    "board_asset_tag": "serial",
    "chassis_asset_tag": "serial",
    "serial_number": "serial",
    "serial": "serial",
    "address": "mac",
    "hostname": "host",
    "domainname": "domain",
    "node_guid": "guid",
    "sys_image_guid": "guid",
    "uuid": "uuid",
}
"""Files of one value, by the end of their path."""
_SOURCES = (
    "etc/machine-id",
    "proc/sys/kernel/random/boot_id",
    "etc/hostname",
    "proc/sys/kernel/hostname",
    "proc/sys/kernel/domainname",
    "sys/class/dmi/id/*_serial",
    "sys/class/dmi/id/product_uuid",
    "sys/class/dmi/id/*_tag",
    "sys/class/drm/card*/device/unique_id",
    "sys/class/net/*/address",
    "sys/class/infiniband/*/*_guid",
    "sys/block/*/device/serial",
    "sys/class/kfd/kfd/topology/nodes/*/properties",
)
_TEXTS = (
    "etc/hosts",
    "etc/resolv.conf",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/mounts",
    "etc/fstab",
    "proc/driver/nvidia/gpus/*/information",
    "etc/ssh/*.pub",
)
_HOME_TEXTS = (".gitconfig", ".config/git/config", ".ssh/*.pub")
_NO_VALUE = re.compile(
    r"(?:\(?none\)?|n/?a|unknown|default string|to be filled.*|not specified|system.*|0+|)",
    re.IGNORECASE,
)
LEAST_UID, MOST_UID = 1000, 60_000
"""Accounts of people, as login.defs(5) draws the line."""


def known_values(*boxes: Bundle | str) -> Known:
    """Values of the named boxes: evidence bundles, and this one where the word "live" is among them."""
    known = Known()
    for box in boxes:
        if isinstance(box, Bundle):
            learn_bundle_files(
                {item.source: box.contents[item.path] for item in box.items if item.path}, known
            )
            learn(" ".join([box.box, *(f"{item.source} {item.why}" for item in box.items)]), known)
            for raw in box.contents.values():
                learn(raw.decode("utf-8", "replace"), known)
        else:
            learn_live(known)
    return known


def learn_bundle_files(files: Mapping[str, bytes], known: Known) -> None:
    """What files tell by their place: one value alone, and the tables of an evidence bundle."""
    for name, raw in files.items():
        last = name.rpartition("/")[2]
        if last in ONE_VALUE and len(raw) < 200:
            _one(ONE_VALUE[last], raw.decode("utf-8", "replace"), known)
    tables = {
        key: _rows(files.get(key) or files.get(f"raw/table/{key}") or b"")
        for key in ("host", "identity", "processes", "environment")
    }
    for row in tables["host"]:
        _one("boot-id", str(row.get("boot_id", "")), known)
    own = {row.get("uid") for row in tables["identity"]}
    for row in tables["identity"]:
        for group in row.get("groups") or []:
            if isinstance(group, dict) and LEAST_UID <= int(group.get("gid") or 0) < MOST_UID:
                known.add("user", str(group.get("name", "")))
    for row in tables["processes"]:
        args = row.get("args")
        if isinstance(args, list) and row.get("uid") not in own:
            _arguments([str(word) for word in args], known)
    for row in tables["environment"]:
        learn_data({str(row.get("name", "")): row.get("value")}, known)


def _rows(raw: bytes) -> list[dict[str, Any]]:
    rows = []
    for line in raw.decode("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def _one(kind: str, value: str, known: Known) -> None:
    value = value.strip().strip("\0")
    if (
        value
        and "\n" not in value
        and not _NO_VALUE.fullmatch(value)
        and not (kind == "mac" and len(set(value)) < 4)
    ):
        known.add(kind, value)


def _arguments(words: list[str], known: Known) -> None:
    """What a stranger's program was called with, as one text and in the ways a list of it is written."""
    rest = words[1:]
    if rest and sum(map(len, rest)) >= 4:
        for text in (" ".join(rest), "\0".join(rest), json.dumps(rest)[1:-1], repr(rest)[1:-1]):
            known.add("arguments", text)
    for word in rest:
        if len(word) >= 8 and not re.fullmatch(r"-{1,2}[\w-]+|[\d.]+", word):
            known.add("arguments", word)


def learn_live(
    known: Known, root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> None:
    """This box, or the tree at ``root``: what it may not read is left out, as a page's author cannot have printed it either."""
    environment = (os.environ if root == Path("/") else {}) if environment is None else environment
    if root == Path("/"):
        known.add("host", socket.gethostname())
        _addresses(known)
    for source in _found(root, _SOURCES):
        last = source.name
        text = _read(source)
        _one(ONE_VALUE.get(last, "serial"), text, known) if last != "properties" else learn(
            text, known
        )
    homes = []
    for line in _read(root / "etc/passwd").splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[2].isdigit() and LEAST_UID <= int(fields[2]) < MOST_UID:
            user = known.add("user", fields[0])
            known.add("person", fields[4].split(",")[0])
            if user and fields[5].count("/") > 1 and not fields[5].endswith("/" + fields[0]):
                known.add("home", fields[5])
            homes.append(fields[5].lstrip("/"))
    for source in _found(root, _TEXTS):
        learn(_read(source), known)
    for home in [*homes, *([os.path.expanduser("~").lstrip("/")] if root == Path("/") else [])]:
        for source in _found(root / home, _HOME_TEXTS):
            text = _read(source)
            learn(text, known)
            for name, value in re.findall(r"^\s*(name|email)\s*=\s*(.+?)\s*$", text, re.MULTILINE):
                known.add("person" if name == "name" else "email", value)
            for key in re.findall(r"AAAA[A-Za-z0-9+/=]{16,}", text):
                known.add("ssh-key", key)
    for source in _found(root, ("etc/NetworkManager/system-connections/*.nmconnection",)):
        known.add("wifi", source.stem)
    for name, value in environment.items():
        if len(value) >= 6 and sounds_secret(name) and not os.path.exists(value):
            known.add("token", value)
    _strangers(root, known)


def _addresses(known: Known) -> None:
    import psutil

    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            kind = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6", psutil.AF_LINK: "mac"}.get(
                address.family
            )
            if kind:
                _one(kind, address.address.split("%")[0], known)


def _strangers(root: Path, known: Known) -> None:
    for source in _found(root, ("proc/[0-9]*/cmdline",)):
        try:
            own = source.stat().st_uid == os.getuid() and root == Path("/")
        except OSError:
            continue
        if not own:
            _arguments(_read(source).rstrip("\0").split("\0"), known)


def _found(root: Path, patterns: Iterable[str]) -> list[Path]:
    found = []
    for pattern in patterns:
        try:
            found += sorted(root.glob(pattern))
        except OSError:
            continue
    return found


def _read(path: Path) -> str:
    try:
        return path.read_bytes()[: 1 << 20].decode("utf-8", "replace")
    except OSError:
        return ""
