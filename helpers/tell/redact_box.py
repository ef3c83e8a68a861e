"""What is known of a box before any page is read: its names, addresses, numbers and the people
on it.

Read from files alone: no command, no look-up of a name and no file of credentials. Of secrets
only the values of environment variables with such a name are taken, to be found where a page
holds them; nothing of it is written anywhere.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.look import files
from helpers.look.access import sounds_secret
from helpers.look.bundle import Bundle

from .redact_known import TABLE, Known
from .redact_text import learn, learn_data

LEAST_UID = 1000
MOST_UID = 60_000
"""Accounts of people, as login.defs(5) draws the line."""
MOST_BYTES = 1 << 20
_NO_VALUE = re.compile(TABLE["no_value"], re.IGNORECASE)


def known_values(*boxes: Bundle | str) -> Known:
    """Values of the named boxes: evidence bundles, and this one where the word "live" is among
    them.
    """
    known = Known()
    for box in boxes:
        if not isinstance(box, Bundle):
            learn_live(known)
            continue
        contents = {item.source: box.contents[item.path] for item in box.items if item.path}
        learn_bundle_files(contents, known)
        learn(" ".join([box.box, *(f"{item.source} {item.why}" for item in box.items)]), known)
        for raw in box.contents.values():
            learn(raw.decode("utf-8", "replace"), known)
    return known


def learn_bundle_files(files: Mapping[str, bytes], known: Known) -> None:
    """What files tell by their place: one value alone, and the tables of an evidence bundle."""
    for name, raw in files.items():
        kind = TABLE["one_value"].get(name.rpartition("/")[2])
        if kind and len(raw) < 200:
            _one(kind, raw.decode("utf-8", "replace"), known)
    host, identity, processes, environment = (
        _rows(files.get(key) or files.get(f"raw/table/{key}") or b"")
        for key in ("host", "identity", "processes", "environment")
    )
    for row in host:
        _one("boot-id", str(row.get("boot_id", "")), known)
    for group in (group for row in identity for group in row.get("groups") or []):
        if isinstance(group, dict) and LEAST_UID <= int(group.get("gid") or 0) < MOST_UID:
            known.add("user", str(group.get("name", "")))
    own = {row.get("uid") for row in identity}
    for row in processes:
        if isinstance(row.get("args"), list) and row.get("uid") not in own:
            _arguments([str(word) for word in row["args"]], known)
    for row in environment:
        learn_data({str(row.get("name", "")): row.get("value")}, known)


def _rows(raw: bytes) -> list[dict[str, Any]]:
    rows = []
    for line in raw.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _one(kind: str, value: str, known: Known) -> None:
    value = value.strip().strip("\0")
    empty = "\n" in value or _NO_VALUE.fullmatch(value) or (kind == "mac" and len(set(value)) < 4)
    if not empty:
        known.add(kind, value)


def _arguments(words: list[str], known: Known) -> None:
    """What a stranger's program was called with, as one text and in the ways a list of it is
    written.
    """
    rest = words[1:]
    if sum(map(len, rest)) >= 4:
        for text in (" ".join(rest), "\0".join(rest), json.dumps(rest)[1:-1], repr(rest)[1:-1]):
            known.add("arguments", text)
    for word in rest:
        if len(word) >= 8 and not re.fullmatch(r"-{1,2}[\w-]+|[\d.]+", word):
            known.add("arguments", word)


def learn_live(
    known: Known, root: Path = Path("/"), environment: Mapping[str, str] | None = None
) -> None:
    """This box, or the tree at ``root``: what it may not read is left out, as a page's author
    cannot have printed it either.
    """
    live = root == Path("/")
    environment = (os.environ if live else {}) if environment is None else environment
    if live:
        known.add("host", socket.gethostname())
        _addresses(known)
    for path, text in _texts(root, TABLE["one_value_files"]):
        _one(TABLE["one_value"].get(path.name, "serial"), text, known)
    homes = [os.path.expanduser("~")] if live else []
    for _, text in _texts(root, "etc/passwd"):
        homes += _accounts(text, known)
    for _, text in _texts(root, TABLE["text_files"]):
        learn(text, known)
    for home in homes:
        _home(root / home.lstrip("/"), known)
    for path in _paths(root, "etc/NetworkManager/system-connections/*.nmconnection"):
        known.add("wifi", path.stem)  # its name alone: inside stands the password
    # A cluster's accounts stand in no file of the box: LDAP, SSSD.
    for name in ("USER", "LOGNAME", "HOME"):
        known.add("user", environment.get(name, "").rpartition("/")[2])
    for name, value in environment.items():
        if len(value) >= 6 and sounds_secret(name) and not os.path.exists(value):
            known.add("token", value)
    for path, text in _texts(root, "proc/[0-9]*/cmdline"):
        if not (live and _is_own(path)):
            _arguments(text.rstrip("\0").split("\0"), known)


def _accounts(passwd: str, known: Known) -> list[str]:
    """The home folders of the people in a table of accounts, whose names are remembered."""
    homes = []
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 7 and fields[2].isdigit() and LEAST_UID <= int(fields[2]) < MOST_UID:
            name = fields[0]
            home = fields[5]
            user = known.add("user", name)
            known.add("person", fields[4].split(",")[0])
            if user and home.count("/") > 1 and not home.endswith("/" + name):
                known.add("home", home)
            homes.append(home)
    return homes


def _home(folder: Path, known: Known) -> None:
    for _, text in _texts(folder, TABLE["home_files"]):
        learn(text, known)
        for name, value in re.findall(r"^\s*(name|email)\s*=\s*(.+?)\s*$", text, re.MULTILINE):
            known.add("person" if name == "name" else "email", value)
        for key in re.findall(r"AAAA[A-Za-z0-9+/=]{16,}", text):
            known.add("ssh-key", key)


def _addresses(known: Known) -> None:
    import psutil

    kinds = {socket.AF_INET: "ipv4", socket.AF_INET6: "ipv6", psutil.AF_LINK: "mac"}
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family in kinds:
                _one(kinds[address.family], address.address.split("%")[0], known)


def _is_own(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_uid == os.getuid()
    return True


def _paths(root: Path, patterns: str) -> Iterator[Path]:
    for pattern in patterns.split():
        with suppress(OSError):
            yield from sorted(root.glob(pattern))


def _texts(root: Path, patterns: str) -> Iterator[tuple[Path, str]]:
    """Each file below a folder that fits one of the patterns, with its text; without text where
    it may not be read.
    """
    for path in _paths(root, patterns):
        yield path, files.text("", str(path), MOST_BYTES)
